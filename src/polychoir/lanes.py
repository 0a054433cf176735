"""The threads of the desk, in two lanes, so that a short text waits for nothing but its like.

A phonemiser in pure Python needs seconds for 100,000 characters and holds the interpreter lock meanwhile:
several at once would fill a pool and slow each other down. So long texts are prepared one at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import TypeVar

from polychoir.errors import Overloaded

SHORT_CHARS = 2_000
"""Longest text of the quick lane: tens of milliseconds for the slowest of our frontends."""
LONG_INSIDE = 16
"""Most long texts that wait or are at work; one more is Overloaded."""
_T = TypeVar("_T")


class Lanes:
    """A pool for short texts, one thread for long ones. The door bounds how many short ones there are."""

    def __init__(self, threads: int) -> None:
        self._short = ThreadPoolExecutor(threads, thread_name_prefix="polychoir-desk")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="polychoir-desk-long")
        self._places = BoundedSemaphore(LONG_INSIDE)
        self._took_s = 1.0

    async def run(self, chars: int, work: Callable[[], _T]) -> _T:
        """The result of `work` on a text of `chars`; a caller who leaves the queue frees its place.

        Raises Overloaded, and what `work` raises.
        """
        if chars <= SHORT_CHARS:
            return await asyncio.wrap_future(self._short.submit(work))
        return await asyncio.wrap_future(self._submit_long(work))

    def close(self) -> None:
        """Let what is at work end; what waits is cancelled."""
        self._short.shutdown(cancel_futures=True)
        self._long.shutdown(cancel_futures=True)

    def _submit_long(self, work: Callable[[], _T]) -> Future[_T]:
        if not self._places.acquire(blocking=False):
            raise Overloaded("too many long texts are being prepared", retry_after_s=self._took_s)
        future = self._long.submit(self._timed, work)
        future.add_done_callback(lambda done: self._places.release())
        return future

    def _timed(self, work: Callable[[], _T]) -> _T:
        """A place is free again when the text at work is done: the last one's time is the best guess."""
        started = time.perf_counter()
        try:
            return work()
        finally:
            self._took_s = max(1.0, time.perf_counter() - started)
