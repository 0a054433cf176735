"""Postbox: calls from any thread, made in the event loop, in order, with one wake-up for many."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

from polychoir.cluster.frames import Frames
from polychoir.cluster.messages import Log, encode

LOG_LIMIT = 1_000
"""Lines on their way; more are dropped, since a model that floods its log must not cost memory."""


class Postbox:
    """What the engine's thread does here is an append and, if nobody is on the way, a wake-up.

    It holds at most one call for each answer and each chunk of what was let in, and `LOG_LIMIT` lines.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._calls)

    def post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call from any thread."""
        with self._lock:
            self._calls.append((function, arguments))
            first = len(self._calls) == 1
        if first:
            self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        with self._lock:
            calls, self._calls = self._calls, []
        for function, arguments in calls:
            function(*arguments)


class LogPost(logging.Handler):
    """Sends log lines to the parent, which writes them among its own."""

    def __init__(self, postbox: Postbox, link: Frames) -> None:
        super().__init__()
        self._postbox = postbox
        self._link = link
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._postbox) < LOG_LIMIT:
            line = encode(Log(record.name, record.levelno, self.format(record)))
            self._postbox.post(self._link.send, line)
