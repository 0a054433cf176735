"""How many cells a sequence reveals at each of its steps, known before it starts.

The unmasking time runs from 0 to 1 along t(x) = s * x / (1 + (s - 1) * x) with shift s, so a shift below one
reveals few cells early and many late; step i of N reveals the rounded-up share t((i + 1) / N) - t(i / N).

Rounding up makes a short sequence run out of cells before its steps are used up. Steps that would reveal
nothing are dropped wherever they fall: they change no token, so a step of ours is always a live one, and
its index (which the noise of the sampler depends on) counts live steps only.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from polychoir.models.omnivoice.row import CODEBOOKS


def timetable(frames: int, num_step: int, t_shift: float) -> tuple[int, ...]:
    """Cells to reveal at each live step; all positive, their sum is 8 * frames."""
    total = remaining = CODEBOOKS * frames
    times = _times(num_step, t_shift)
    counts: list[int] = []
    for step in range(num_step - 1):
        count = min(math.ceil(total * (times[step + 1] - times[step])), remaining)
        if count > 0:
            counts.append(count)
            remaining -= count
    if remaining:
        counts.append(remaining)
    return tuple(counts)


@lru_cache(maxsize=256)
def _times(num_step: int, t_shift: float) -> tuple[float, ...]:
    """The num_step + 1 points in time, in float32 as the published model computes them: a cell count is
    rounded up, so the last bit of a time can matter.

    The grid x is counted from both ends with one rounding per point (a fused multiply-add in the original;
    here the product is exact in float64), the shift is applied operation by operation.
    """
    one = np.float32(1.0)
    step = np.float64(one / np.float32(num_step))
    index = np.arange(num_step + 1)
    grid = np.where(index < (num_step + 1) // 2, step * index, 1.0 - step * (num_step - index)).astype(
        np.float32
    )
    times = np.float32(t_shift) * grid / (one + np.float32(t_shift - 1.0) * grid)
    return tuple(float(time) for time in times)
