"""What surrounds every route, as plain ASGI so that neither a byte nor a disconnect is held up.

RequestId  names the request and logs one line for it
Boundary   turns every exception into an error object
BodyLimit  a body that is too large is refused before it has been read
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polychoir.errors import BodyTooLarge, NotFound, PolychoirError
from polychoir.server.errors import as_error, error_response, status_of

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Room for a reference clip in base64 beside the longest text."""

ACCESS = "polychoir.access"
"""Key of the request's state under which a route leaves facts for the access log."""

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_LOGGED_PATH_CHARS = 200

log: structlog.stdlib.BoundLogger = structlog.get_logger("polychoir.server")


class RequestId:
    """Outermost: names the request, adds the name to the answer, and writes one line when it is over."""

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self.app = app
        self.clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent = Headers(scope=scope).get("x-request-id", "")
        request_id = sent if _SANE_ID.fullmatch(sent) else f"req_{uuid.uuid4().hex}"
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        facts: dict[str, Any] = state.setdefault(ACCESS, {})
        started = self.clock()

        async def named_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
                facts.setdefault("status", message["status"])
            await send(message)

        try:
            await self.app(scope, receive, named_send)
        finally:
            path = scope["path"][:_LOGGED_PATH_CHARS]
            took = round(self.clock() - started, 4)
            log.info(
                "request", request_id=request_id, method=scope["method"], path=path, seconds=took, **facts
            )


class Boundary:
    """Turns whatever the app raises into an error object; what broke is told to the log alone."""

    def __init__(self, app: ASGIApp, paths: frozenset[str]) -> None:
        """`paths`: the addresses that exist, to name one when a request has missed it."""
        self.app = app
        self.paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, watched_send)
        except Exception as error:
            ours = self._ours(error, scope)
            _record(ours, scope)
            if started:  # the status has gone out: all that is left is to cut the answer short
                raise
            await error_response(ours, scope["state"]["request_id"])(scope, receive, send)

    def _ours(self, error: Exception, scope: Scope) -> PolychoirError:
        ours = as_error(error)
        if isinstance(ours, NotFound) and ours is not error:  # no route, rather than a route's own NotFound
            return NotFound(ours.message + _hint(scope["path"], self.paths))
        return ours


def _record(error: PolychoirError, scope: Scope) -> None:
    state = scope["state"]
    state[ACCESS] |= {"status": status_of(error), "code": error.code, "param": error.param}
    if status_of(error) == 500:
        cause = error.__cause__ or error
        log.error("request failed", request_id=state["request_id"], message=error.message, exc_info=cause)


def _hint(path: str, paths: frozenset[str]) -> str:
    """Name the address that was probably meant: a slash too many, /v1 doubled or left out, a slip."""
    tidy = re.sub(r"/{2,}", "/", path[:_LOGGED_PATH_CHARS]).rstrip("/").lower()
    single = re.sub(r"^(/v1)+(?=/|$)", "/v1", tidy)
    for candidate in (single, "/v1" + single):
        if candidate in paths:
            return f" Did you mean {candidate}?"
    near = get_close_matches(single, sorted(paths), n=1, cutoff=0.8)
    return f" Did you mean {near[0]}?" if near else ""


class BodyLimit:
    """Refuses by Content-Length at once, and a chunked body at the byte that is too many."""

    def __init__(self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > self.max_bytes:
            raise self._refusal()
        taken = 0

        async def counted_receive() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.max_bytes:
                raise self._refusal()
            return message

        await self.app(scope, counted_receive, send)

    def _refusal(self) -> BodyTooLarge:
        return BodyTooLarge(f"The body is larger than {self.max_bytes} bytes.")


class HeadAsGet:
    """Answers HEAD as GET without the body, for every route."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def bodiless_send(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self.app({**scope, "method": "GET"}, receive, bodiless_send)
