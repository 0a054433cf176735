"""Puts the device side together: weights, slots, step, codec, booth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from polychoir.models.omnivoice.codec import Codec
from polychoir.models.omnivoice.config import OmniVoiceConfig
from polychoir.models.omnivoice.network import Weights
from polychoir.runner.booth import Booth
from polychoir.runner.device_class import describe, device_class
from polychoir.runner.measuring import Sweep
from polychoir.runner.model_runner import ModelRunner, OmniVoiceRunner
from polychoir.runner.modes import make_step, resolve_mode
from polychoir.runner.prompt_cache import PromptCache
from polychoir.runner.slots import SlotTable
from polychoir.runner.threaded import Outbox

GPU_SWEEP_S, CPU_SWEEP_S = 3.0, 1.5
"""For measuring steps at the first start. A GPU is done with all sizes in less."""


@dataclass(frozen=True, slots=True)
class RunnerPlan:
    """How much the device side must be able to hold, and how it runs.

    mode: a RunnerMode or auto. max_rows, step_tokens: of one step, its tokens None for
    what suits the device. resident_rows, resident_tokens: of what
    holds a slot. memory_utilization: share of the device's memory that captured graphs may fill.
    """

    mode: str = "auto"
    max_rows: int = 256
    resident_rows: int = 1_024
    resident_tokens: int = 1 << 20
    step_tokens: int | None = None
    prompt_cache_bytes: int = 256 << 20
    memory_utilization: float = 0.9


def build_runner(
    config: OmniVoiceConfig, weights: Weights, codec_folder: Path, plan: RunnerPlan, wake: Callable[[], None]
) -> OmniVoiceRunner:
    """A warm runner of these weights. Raises ModelLoadError."""
    device = weights.norm.device
    mode = resolve_mode(plan.mode, device, weights.norm.dtype)
    slots = SlotTable(
        codebooks=config.codebooks,
        mask_id=config.mask_id,
        limit=plan.resident_rows,
        tokens=plan.resident_tokens,
        longest=config.context,
        device=device,
    )
    step_tokens = plan.step_tokens or device_class(device).step_tokens
    outbox = Outbox(wake)
    codec = Codec(codec_folder, device, plan.memory_utilization)
    booth = Booth(codec, prompts=PromptCache(plan.prompt_cache_bytes), emit=outbox.put, device=device)
    step = make_step(
        mode,
        config,
        weights,
        slots,
        max_rows=plan.max_rows,
        largest=step_tokens,
        utilization=plan.memory_utilization,
    )
    stage = ModelRunner(step, slots, booth, device=device, mask_id=config.mask_id)
    sweep = Sweep(
        tokens=min(step_tokens, plan.resident_tokens),
        rows=min(plan.max_rows, plan.resident_rows),
        longest=config.context,
        budget_s=GPU_SWEEP_S if device.type == "cuda" else CPU_SWEEP_S,
    )
    place = describe(device, weights.norm.dtype, f"{mode} steps to {step_tokens} tokens")
    return OmniVoiceRunner(stage, outbox, mode=mode, step_tokens=step_tokens, device=place, sweep=sweep)
