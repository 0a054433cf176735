"""Giving memory back: what a long answer leaves behind in the heap would otherwise stay with the process."""

from __future__ import annotations

import asyncio
import ctypes
import sys
from collections.abc import Callable

LARGE_BYTES = 16 * 1024 * 1024
"""Answers from here on are worth a look through the heap (some ms); an hour of mp3 is above it."""


def _find_trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim; other allocators return pages by themselves."""
    if not sys.platform.startswith("linux"):
        return None
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim


_TRIM = _find_trim()


async def give_back(answer_bytes: int) -> None:
    """After an answer of this size has gone: return free pages to the system, if it was a large one."""
    if _TRIM is not None and answer_bytes >= LARGE_BYTES:
        await asyncio.to_thread(_TRIM, 0)
