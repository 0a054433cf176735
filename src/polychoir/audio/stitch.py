"""Chunks come back in any order and at the model's rate; listeners want one signal at theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polychoir.audio.resample import Resampler
from polychoir.errors import InternalError

if TYPE_CHECKING:
    from polychoir.types import Samples


class Stitcher:
    """Restores the order of `total` chunks and resamples them as one continuous signal.

    Every seam runs through the same filter, so resampling adds no click; the joined pieces are as long as the
    joined chunks, to the sample. Holds at most the request's own chunks.
    """

    def __init__(self, total: int, model_rate: int, output_rate: int) -> None:
        self._total = total
        self._resampler = Resampler(model_rate, output_rate)
        self._waiting: dict[int, Samples] = {}
        self._next = 0

    @property
    def done(self) -> bool:
        """True once the last sample has been handed out."""
        return self._next == self._total

    def add(self, index: int, samples: Samples) -> list[Samples]:
        """Take chunk `index` (from 0; float32 mono at the model's rate); give what is now next in order.

        The chunk that completes the request also brings the resampler's tail. Raises InternalError for an
        index that is out of range or came before.
        """
        if not self._next <= index < self._total or index in self._waiting:
            raise InternalError(f"chunk {index} of {self._total} came twice or out of range")
        self._waiting[index] = samples
        pieces: list[Samples] = []
        while self._next in self._waiting:
            pieces.append(self._resampler.feed(self._waiting.pop(self._next)))
            self._next += 1
        if self.done:
            pieces[-1] = np.concatenate([pieces[-1], self._resampler.finish()])
        return [piece for piece in pieces if len(piece)]
