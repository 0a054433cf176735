"""The connection below the app: bounds that HTTP's parser and server leave open.

A peer may send heads, chunk lines and trailers without end, or stop in the middle of a head, or never read
its answer. Here each of them ends the connection; an app sees none of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
"""Of a request line with its headers; also of what is between two pieces of a body, or behind the last."""

HEAD_S = 30.0
"""From the connection, or a request's first byte, to the end of the head."""

UNREAD_S = 300.0
"""How long a peer may leave an answer unread. Long: players stop reading while they are paused."""

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class HeadTooLargeError(Exception):
    """Raised into the parser, which stops there."""


class Wire(HttpToolsProtocol):
    """uvicorn's protocol with an end to everything that has none there."""

    _unparsed = 0  # bytes since the parser last gave us a head or a piece of a body
    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self._later(HEAD_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_unread_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:  # a later request of a kept connection
            self._head_timer = self._later(HEAD_S, self.transport.close)

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        self._unparsed = 0
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refuse_head()
            raise HeadTooLargeError
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """The parser has stopped, because of the peer or because of us; then the answer is out already."""
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_unread_timer()
        self._unread_timer = self._later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_unread_timer()
        super().resume_writing()

    def _refuse_head(self) -> None:
        self.transport.write(_TOO_LARGE)
        self.transport.close()

    def _later(self, seconds: float, end: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, end)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
