"""Change of sample rate by soxr, whole or piece by piece, always with the exact length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import soxr

from polychoir.errors import InternalError

if TYPE_CHECKING:
    from polychoir.types import Samples

QUALITY = "HQ"
"""20-bit precision, past what a 16-bit answer can hold; VHQ costs half as much again for nothing heard."""


def resampled_length(samples: int, src: int, dst: int) -> int:
    """Samples at `dst` Hz that last as long as `samples` at `src` Hz, rounded to nearest."""
    return (2 * samples * dst + src) // (2 * src)


def resample(samples: Samples, src: int, dst: int) -> Samples:
    """float32 mono at `src` Hz -> float32 mono at `dst` Hz, `resampled_length` long, without delay."""
    resampler = Resampler(src, dst)
    head = resampler.feed(samples)
    return np.concatenate([head, resampler.finish()])


class Resampler:
    """`resample` for a signal that arrives in pieces: the pieces out, joined, are the whole resampled.

    What comes out lags behind what went in by the filter's reach (some ms) until `finish`.
    """

    def __init__(self, src: int, dst: int) -> None:
        self._src, self._dst = src, dst
        self._stream = None if src == dst else soxr.ResampleStream(src, dst, 1, "float32", quality=QUALITY)
        self._in = 0
        self._out = 0

    def feed(self, samples: Samples) -> Samples:
        """float32 mono at `src` Hz in, what is ready at `dst` Hz out (perhaps nothing)."""
        piece = np.ascontiguousarray(samples, dtype=np.float32)
        self._in += len(piece)
        if self._stream is not None:
            piece = self._stream.resample_chunk(piece)
        self._out += len(piece)
        return piece

    def finish(self) -> Samples:
        """The tail, cut or filled by a sample so that the total is exact."""
        if self._stream is None:
            return np.empty(0, dtype=np.float32)
        missing = resampled_length(self._in, self._src, self._dst) - self._out
        if missing < 0:
            raise InternalError("the resampler gave more than the length of its input")
        tail = self._stream.resample_chunk(np.empty(0, dtype=np.float32), last=True)
        self._out += missing
        exact = np.zeros(missing, dtype=np.float32)
        exact[: min(missing, len(tail))] = tail[:missing]
        return exact
