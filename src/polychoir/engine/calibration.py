"""From measured steps to a cost curve.

Fitted by least squares of relative errors, every term at least 0; the steps of fewest tokens may lie on the
floor instead. Some ten samples, so every choice is simply tried.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polychoir.engine.cost import StepCost
from polychoir.types import StepSample

FEWEST_SAMPLES = 2


def fit(samples: Sequence[StepSample], *, decode_s: float = 0.0, lanes: int = 1) -> StepCost:
    """The curve through the samples. Raises ValueError for fewer than two sizes or a time that is none."""
    ordered = sorted(samples, key=lambda sample: sample.tokens)
    if len({sample.tokens for sample in ordered}) < FEWEST_SAMPLES:
        raise ValueError("a cost curve needs steps of two sizes")
    if any(not (0 < sample.seconds < np.inf and sample.tokens > 0) for sample in ordered):
        raise ValueError("a step takes more than no time")
    tries = [_with_floor(ordered, flat) for flat in range(max(1, len(ordered) - 2))]
    host, slope, square, floor = min(tries, key=lambda found: _error(ordered, found))
    return StepCost(host, slope, square, floor, decode_s, lanes)


Terms = tuple[float, float, float, float]
"""host, per token, per square, floor; seconds."""


def _with_floor(samples: Sequence[StepSample], flat: int) -> Terms:
    """Terms with the first `flat` samples on the floor."""
    host, slope, square = _least_squares(samples[flat:])
    level = float(np.mean([sample.seconds for sample in samples[:flat]])) if flat else 0.0
    return host, slope, square, max(0.0, level - host)


def _least_squares(samples: Sequence[StepSample]) -> tuple[float, float, float]:
    """host, slope, square >= 0 with a slope: the best of the fits with some terms left out."""
    seconds = np.array([sample.seconds for sample in samples])
    columns = np.array([(1.0, sample.tokens, sample.squares) for sample in samples]) / seconds[:, None]
    best: tuple[float, tuple[float, float, float]] | None = None
    for kept in ((1,), (0, 1), (1, 2), (0, 1, 2)):
        if len(kept) > len(samples):
            continue
        values, *_ = np.linalg.lstsq(columns[:, kept], np.ones(len(samples)), rcond=None)
        if values.min() < 0 or values[kept.index(1)] <= 0:
            continue
        terms = [0.0, 0.0, 0.0]
        for place, value in zip(kept, values, strict=True):
            terms[place] = float(value)
        error = float(np.square(columns @ terms - 1).sum())
        if best is None or error < best[0] * 0.999:
            best = error, (terms[0], terms[1], terms[2])
    assert best is not None  # the slope alone always fits
    return best[1]


def _error(samples: Sequence[StepSample], terms: Terms) -> float:
    cost = StepCost(*terms)
    return sum((cost.seconds(one.tokens, one.squares) / one.seconds - 1) ** 2 for one in samples)
