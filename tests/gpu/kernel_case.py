"""What a kernel's check on a GPU is made of, and how its time is taken."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Make = Callable[[torch.Generator, torch.device, torch.dtype], tuple[Tensor, ...]]
"""Fresh random inputs; the generator is one of the device."""
Compute = Callable[..., tuple[Tensor, ...]]
"""From inputs, which it may change, to everything that it must get right, the changed inputs included."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CACHE_BYTES = 160_000_000
"""What timed inputs together exceed, so that they come from memory: three times an H200's L2 cache."""


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One kernel at one size.

    fused, plain: the kernel, and what it must equal. nbytes: least memory traffic of one call in a two-byte
    format. flops: of its matrix products. others: further ways to do the same, to be timed beside it.
    compiles: whether torch.compile of the plain form is worth a line.
    """

    name: str
    make: Make
    fused: Compute
    plain: Compute
    nbytes: int
    flops: int = 0
    others: dict[str, Compute] = field(default_factory=dict)
    compiles: bool = True


@dataclass(frozen=True, slots=True)
class Exactness:
    """Largest |x - exact| / (1 + |exact|) of the fused and the plain form."""

    fused: float
    plain: float
    good: bool


def compare(case: KernelCase, dtype: torch.dtype, seed: int, device: torch.device) -> Exactness:
    """Fused and plain form beside the plain form in float32 on the same inputs.

    A half format's own roundings decide how far either may be off, so the fused form is held to what the
    plain one reaches: half as much again, and one rounding more for where both are nearly exact.
    """
    inputs = case.make(torch.Generator(device).manual_seed(seed), device, dtype)
    exact = case.plain(*(_widened(x) for x in inputs))
    plain = worst_error(case.plain(*(x.clone() for x in inputs)), exact)
    fused = worst_error(case.fused(*inputs), exact)
    single = dtype == torch.float32
    limit = 2e-5 if single else 1.5 * plain + torch.finfo(dtype).eps / 2
    return Exactness(fused, plain, fused <= limit)  # false for not-a-number


def _widened(x: Tensor) -> Tensor:
    """A copy, in float32 if it is a number: `float()` alone copies nothing where it is that already."""
    return x.clone().float() if x.is_floating_point() else x.clone()


def worst_error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Largest |a - b| / (1 + |b|); not a number if any of either is none."""
    errors = [
        ((a.double() - b.double()).abs() / (1 + b.double().abs())).max()
        for a, b in zip(found, exact, strict=True)
    ]
    return float(torch.stack(errors).max())  # max and stack keep what is not a number


def microseconds(calls: Sequence[Callable[[], object]], repeats: int = 28) -> float:
    """Median time of one call within a CUDA graph of `repeats`, which take turns with the calls given."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(repeats):
            calls[turn % len(calls)]()
    times = []
    for _ in range(9):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1_000 / repeats)
    return statistics.median(times)
