"""A whole answer on its way out, in slices and without a second copy."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from polychoir.server.memory import give_back

SLICE_BYTES = 64 * 1024
"""What is handed to the connection at once: it waits there, copied, for a peer that reads slowly."""


class PiecesResponse(Response):
    """The pieces of one file with their exact length; each is let go as soon as it is sent."""

    def __init__(self, pieces: Sequence[bytes], headers: Mapping[str, str], media_type: str) -> None:
        self._pieces = deque(pieces)
        self._size = self._left = sum(map(len, pieces))
        super().__init__(
            headers={**headers, "content-length": str(self._left)},
            media_type=media_type,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._slices():
            self._left -= len(part)
            await send({"type": "http.response.body", "body": part, "more_body": self._left > 0})
        await give_back(self._size)

    def _slices(self) -> Iterator[bytes]:
        if not self._left:
            yield b""
        while self._pieces:
            piece = memoryview(self._pieces.popleft())
            for start in range(0, len(piece), SLICE_BYTES):
                yield bytes(piece[start : start + SLICE_BYTES])
