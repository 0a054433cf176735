"""The exit's encoder: samples in, one container out, beside the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import lru_cache

from polychoir.audio.encode import Encoder
from polychoir.audio.resample import Resampler
from polychoir.types import OUTPUT_SAMPLE_RATE, AudioFormat, Samples


@lru_cache(maxsize=128)
def check_writable(format: AudioFormat, sample_rate: int) -> None:
    """Raises InvalidRequest for a format or rate that cannot be written; asked before anything is sung."""
    Encoder(format, sample_rate)


class Mouth:
    """Encodes a whole answer piece by piece, so that its samples need not be kept.

    An encoder weighs up to 7 MB: it is made for the first piece, not for everybody in the queue.
    """

    def __init__(self, pool: Executor, format: AudioFormat, sample_rate: int | None) -> None:
        """`sample_rate` is what the client asked for; None is the rate that speech comes in."""
        self.sample_rate = sample_rate or OUTPUT_SAMPLE_RATE
        self.encode_s = 0.0
        self._format = format
        self._pool = pool
        self._encoder: Encoder | None = None
        self._resampler = Resampler(OUTPUT_SAMPLE_RATE, self.sample_rate)
        self._pieces: list[bytes] = []
        check_writable(format, self.sample_rate)

    async def feed(self, samples: Samples) -> None:
        """Take the next piece, float32 mono at OUTPUT_SAMPLE_RATE."""
        await self._beside(lambda: self._feed(samples))

    async def finish(self) -> list[bytes]:
        """The whole file, in the pieces that it came in: joined, it would be held twice."""
        await self._beside(self._finish)
        return self._pieces

    async def _beside(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._pool, self._timed, work)

    def _timed(self, work: Callable[[], None]) -> None:
        started = time.perf_counter()
        work()
        self.encode_s += time.perf_counter() - started

    def _feed(self, samples: Samples) -> None:
        self._keep(self._opened().feed(self._resampler.feed(samples)))

    def _finish(self) -> None:
        self._keep(self._opened().feed(self._resampler.finish()))
        self._keep(self._opened().finish())

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)

    def _opened(self) -> Encoder:
        if self._encoder is None:
            self._encoder = Encoder(self._format, self.sample_rate)
        return self._encoder
