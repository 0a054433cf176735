"""Frames over a stream socket: [bytes of the rest][bytes of the head] head padding tail.

Both sizes are four bytes, little-endian. The padding puts the tail on a multiple of four, so that samples
can be used where they were received: every frame has memory of its own, which belongs to whoever was called.
A frame that is larger than the read buffer is received right there.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import cast

from polychoir.errors import InternalError

MAX_FRAME_BYTES = 256 * 2**20
"""More than any request that the door lets in, or any chunk that a model makes."""

READ_BYTES = 65_536
HIGH_WATER_BYTES = 8 * 2**20
"""Bytes not taken by the other side from which on a sender should wait."""

_SIZES = struct.Struct("<II")
_TAIL_ALIGNMENT = 4

OnFrame = Callable[[memoryview, memoryview], None]
"""Called with head and tail."""


class Frames(asyncio.BufferedProtocol):
    """One end of a connection. `closed` is set once nothing more will come."""

    def __init__(self, on_frame: OnFrame) -> None:
        self.closed = asyncio.Event()
        self.writable = asyncio.Event()
        self.heard_at = time.monotonic()
        self._on_frame = on_frame
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._end = 0
        self._large: memoryview | None = None
        """The frame that is too large for the buffer; `_end` then counts what of it is there."""

    def send(self, head: bytes, tail: Sequence[bytes | memoryview] = ()) -> None:
        """Send one frame; one that has ended swallows it. Raises InternalError if the frame is too large."""
        size = sum(len(part) for part in tail)
        padding = -(_SIZES.size + len(head)) % _TAIL_ALIGNMENT if tail else 0
        rest = _SIZES.size - 4 + len(head) + padding + size
        if rest > MAX_FRAME_BYTES:
            raise InternalError(f"this is a bug: a frame of {rest} bytes")
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(b"".join((_SIZES.pack(rest, len(head)), head, bytes(padding))))
        for part in tail:
            self._transport.write(part)

    def pause_reading(self) -> None:
        """Take nothing more for now: the other side waits in its turn."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """End the connection once what was sent has been taken."""
        if self._transport is not None:
            self._transport.close()

    # -- called by the transport -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every loop's transport is of asyncio's own class, but a stream's has all of its methods.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        self.writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.writable.set()
        self.closed.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return (self._buffer if self._large is None else self._large)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = time.monotonic()
        self._end += nbytes
        if self._large is not None:
            if self._end == len(self._large):
                frame, self._large, self._end = self._large, None, 0
                self._take(frame)
            return
        start = self._take_whole_frames()
        left = self._end - start
        if start and left:
            self._buffer[:left] = bytes(self._buffer[start : self._end])
        self._end = left
        self._grow()

    def _take_whole_frames(self) -> int:
        """Hand on the frames that are in the buffer; gives where the first one begins that is not whole."""
        start = 0
        while self._end - start >= 4:
            end = start + 4 + int.from_bytes(self._buffer[start : start + 4], "little")
            if end > self._end:
                break
            self._take(memoryview(bytearray(self._buffer[start:end])))
            start = end
        return start

    def _grow(self) -> None:
        """Make room for a frame that the buffer cannot hold. Ends the connection if it is too large."""
        if self._end < 4:
            return
        size = 4 + int.from_bytes(self._buffer[:4], "little")
        if size <= READ_BYTES:
            return
        if size > 4 + MAX_FRAME_BYTES:
            self.close()
            self._end = 0
            return
        self._large = memoryview(bytearray(size))
        self._large[: self._end] = self._buffer[: self._end]

    def _take(self, frame: memoryview) -> None:
        _, head_size = _SIZES.unpack_from(frame)
        head_end = _SIZES.size + head_size
        tail_start = head_end + (-head_end % _TAIL_ALIGNMENT if len(frame) > head_end else 0)
        self._on_frame(frame[_SIZES.size : head_end], frame[tail_start:])


async def join(frames: Frames, connection: socket.socket) -> None:
    """Let frames run over a connected socket."""
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    if connection.family == getattr(socket, "AF_UNIX", None):
        await loop.create_unix_connection(lambda: frames, sock=connection)
    else:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.create_connection(lambda: frames, sock=connection)
