"""The exit's encoder: samples in, one container out, beside the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor

from polychoir.audio.encode import Encoder
from polychoir.audio.resample import Resampler
from polychoir.types import OUTPUT_SAMPLE_RATE, AudioFormat, Samples


class Mouth:
    """Encodes a whole answer piece by piece, so that its samples need not be kept."""

    def __init__(self, pool: Executor, format: AudioFormat, sample_rate: int | None) -> None:
        """`sample_rate` is what the client asked for; None is the rate that speech comes in.

        Raises InvalidRequest for a format or rate that cannot be written: before anything is sung.
        """
        self.sample_rate = sample_rate or OUTPUT_SAMPLE_RATE
        self.encode_s = 0.0
        self._pool = pool
        self._encoder = Encoder(format, self.sample_rate)
        self._resampler = Resampler(OUTPUT_SAMPLE_RATE, self.sample_rate)
        self._out = bytearray()

    async def feed(self, samples: Samples) -> None:
        """Take the next piece, float32 mono at OUTPUT_SAMPLE_RATE."""
        await self._beside(lambda: self._feed(samples))

    async def finish(self) -> bytes:
        """The whole file."""
        await self._beside(self._finish)
        return bytes(self._out)

    async def _beside(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._pool, self._timed, work)

    def _timed(self, work: Callable[[], None]) -> None:
        started = time.perf_counter()
        work()
        self.encode_s += time.perf_counter() - started

    def _feed(self, samples: Samples) -> None:
        self._out += self._encoder.feed(self._resampler.feed(samples))

    def _finish(self) -> None:
        self._out += self._encoder.feed(self._resampler.finish())
        self._out += self._encoder.finish()
