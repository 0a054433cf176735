"""Which way of running a step a device gets: `--runner-mode`, and what `auto` comes to.

eager    plain torch, operation by operation: every device and number format
graph    the same operations, the backbone captured in CUDA graphs: no Triton needed
triton   fused kernels, launched one by one
hybrid   fused kernels, the whole step in one CUDA graph
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import Literal, get_args

import torch

from polychoir.errors import ModelLoadError
from polychoir.kernels import plain
from polychoir.models.omnivoice.config import OmniVoiceConfig
from polychoir.models.omnivoice.network import Network, Weights
from polychoir.runner.slots import SlotTable
from polychoir.runner.step import StepExecutor

RunnerMode = Literal["eager", "graph", "triton", "hybrid"]

_log = logging.getLogger(__name__)
_AMPERE = (8, 0)
"""Triton's matrix products and torch's flash attention both start here; Turing runs eager with SDPA."""


def resolve_mode(asked: str, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> RunnerMode:
    """The mode to run in. Raises ModelLoadError for one that this device cannot run in this number format."""
    if asked not in ("auto", *get_args(RunnerMode)):
        raise ModelLoadError(f"runner_mode {asked!r} is not known", param="runner_mode")
    possible = _possible(device, dtype)
    if asked == "auto":
        return possible[-1]
    for mode in possible:
        if mode == asked:
            return mode
    raise ModelLoadError(
        f"runner_mode {asked!r} is not possible on {device} in {dtype}; possible: {', '.join(possible)}",
        param="runner_mode",
    )


def _possible(device: torch.device, dtype: torch.dtype) -> tuple[RunnerMode, ...]:
    """Slowest first. Flash attention, which a captured backbone needs, has half precision only."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _AMPERE:
        return ("eager",)
    half: tuple[RunnerMode, ...] = ("graph",) if dtype in (torch.float16, torch.bfloat16) else ()
    if find_spec("triton") is None or dtype == torch.float64:
        return ("eager", *half)
    return ("eager", *half, "triton", "hybrid")


def make_step(
    mode: RunnerMode,
    config: OmniVoiceConfig,
    weights: Weights,
    slots: SlotTable,
    *,
    max_rows: int,
    largest: int,
    utilization: float,
) -> StepExecutor:
    """Put the step together and warm it up.

    largest: tokens of the largest step worth a graph. utilization: share of the device's memory to use.
    """
    from polychoir.runner.plain_step import PlainStep

    if mode in ("triton", "hybrid"):
        from polychoir.kernels.fused import backbone
        from polychoir.runner.fused_step import FusedStep

        fused = FusedStep(Network(config, weights, backbone), slots, max_rows=max_rows, largest=largest)
        if mode == "hybrid":
            fused.capture(utilization)
        return fused
    network = Network(config, weights, plain)
    if mode == "graph":
        from polychoir.runner.graphed_step import GraphedStep

        if network.attention == "grouped":
            raise ModelLoadError("runner_mode graph needs torch's varlen attention", param="runner_mode")
        graphed = GraphedStep(network, slots, max_rows=max_rows, largest=largest)
        graphed.capture(utilization)
        return graphed
    _log.info("attention: %s", network.attention)
    return PlainStep(network, slots)
