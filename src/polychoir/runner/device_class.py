"""What suits a device that nobody measured: number format and step size from its own data.

Measured on an H200 (132 multiprocessors, capability 9.0): steps of 8,192 tokens take 15 ms and reach 97 % of
the throughput of steps twice as large (docs/benchmarks.md). The other classes are estimates: as many tokens
as take about as long at the peak rate of the card's matrix units.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from polychoir.runner.cpu import cpu_device
from polychoir.types import Device, DeviceKind

_RATES = ((7, 0, 1_024), (8, 0, 2_048), (8, 6, 1_024), (9, 0, 4_096), (10, 0, 4_096))
"""Capability and the half-precision operations, products and sums apart, a multiprocessor does in a cycle;
vendor's figures for Volta and Turing, A100, other Ampere and Ada, Hopper, Blackwell."""
_MEASURED_TOKENS = 8_192
_MEASURED_RATE = 132 * 4_096
_LEAST_TOKENS, _UNIT = 1_024, 512
_LARGE_TOKENS = 3_072
"""Step size from which a card counts as large: A100 and up."""


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """dtype: name of the number format for `auto`. step_tokens: of the largest step."""

    dtype: str
    step_tokens: int
    kind: DeviceKind = "cpu"


def device_class(device: torch.device) -> DeviceClass:
    """Defaults for a device. A CPU computes in float32. Two cores of a server take 0.16 s and 7.5 ms a token
    of the published size: past 200 tokens a larger step gains nothing, and this one takes 8 s already."""
    if device.type != "cuda":
        return DeviceClass("float32", _LEAST_TOKENS)
    properties = torch.cuda.get_device_properties(device)
    return _estimate((properties.major, properties.minor), properties.multi_processor_count)


def _estimate(capability: tuple[int, int], multiprocessors: int) -> DeviceClass:
    """Turing has no bfloat16. The clock, near 1.7 GHz on all of these, is left out."""
    rate = next((rate for *since, rate in reversed(_RATES) if capability >= tuple(since)), _RATES[0][2])
    tokens = _MEASURED_TOKENS * multiprocessors * rate / _MEASURED_RATE
    bounded = min(max(round(tokens / _UNIT) * _UNIT, _LEAST_TOKENS), _MEASURED_TOKENS)
    kind: DeviceKind = "large_gpu" if bounded >= _LARGE_TOKENS else "small_gpu"
    return DeviceClass("bfloat16" if capability >= (8, 0) else "float16", bounded, kind)


def describe(device: torch.device, dtype: torch.dtype, how: str) -> Device:
    """The device as the cost of a step knows it. On a GPU the host is one step ahead (model_runner.py)."""
    details = (str(dtype).removeprefix("torch."), how, f"torch {torch.__version__}")
    if device.type != "cuda":
        return cpu_device(f"{torch.get_num_threads()} threads", *details)
    name = torch.cuda.get_device_name(device)
    return Device(device_class(device).kind, ", ".join((name, *details)), lag=1)
