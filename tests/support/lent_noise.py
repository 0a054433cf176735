"""Lends the published package our noise, so that its sampling can be compared with ours cell by cell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tests.support.philox import uniform


class LentNoise:
    """Stands in for torch.rand_like while the package generates one item: our noise, call by call.

    In each step the package asks for class noise [1, 8, T, V] if its class temperature is above 0, then for
    position noise [1, 8, T] if its position temperature is.
    """

    def __init__(self, seed: int, dims_of_last_call: int) -> None:
        self._seed = seed
        self._last = dims_of_last_call
        self._step = 0

    def __call__(self, like: torch.Tensor) -> torch.Tensor:
        codebooks, frames = like.shape[1:3]
        entries = like.shape[3] if like.dim() == 4 else None
        noise = uniform(self._seed, self._step, (codebooks, frames, entries))
        if like.dim() == self._last:
            self._step += 1
        return torch.from_numpy(noise)[None].to(like)


@contextmanager
def lent_noise(seed: int, position_temperature: float) -> Iterator[None]:
    """Within the block torch.rand_like is ours. One item at a time."""
    real = torch.rand_like
    torch.rand_like = LentNoise(seed, 3 if position_temperature > 0 else 4)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.rand_like = real
