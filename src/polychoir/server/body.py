"""From the bytes of a request to a checked body: only JSON, only an object, every name once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from starlette.requests import Request

from polychoir.errors import InvalidRequest
from polychoir.server.errors import BodyLate
from polychoir.server.schemas import SpeechBody, parse_body

INLINE_BYTES = 256 * 1024
"""Up to this size a body is parsed where it is; a larger one must not hold up the event loop."""


BODY_S = 30.0
"""How long a body may take before it has to keep up the pace of MIN_BYTES_PER_S."""

MIN_BYTES_PER_S = 16 * 1024


async def read_speech_body(request: Request, hold: Callable[[int], None]) -> SpeechBody:
    """Read and validate. Raises InvalidRequest (or a kind of it) that says what is wrong with the body.

    `hold` is told of each piece's size before it is kept, and may refuse it.
    """
    _check_content_type(request)
    data = await _read(request, hold)
    if len(data) <= INLINE_BYTES:
        return _parse(data)
    return await asyncio.to_thread(_parse, data)


async def _read(request: Request, hold: Callable[[int], None]) -> bytes:
    """The body, from a client that keeps sending: the longer it is, the more time it gets."""
    now = asyncio.get_running_loop().time
    data, started = bytearray(), now()
    try:
        async with asyncio.timeout(BODY_S) as patience:
            async for piece in request.stream():
                hold(len(piece))
                data += piece
                patience.reschedule(started + BODY_S + len(data) / MIN_BYTES_PER_S)
    except TimeoutError:
        raise BodyLate(f"The body did not arrive: {len(data)} bytes in {now() - started:.0f} s.") from None
    return bytes(data)


def _check_content_type(request: Request) -> None:
    """Only JSON: a web page may send the other types across origins without asking first."""
    sent = request.headers.get("content-type", "")
    kind = sent.partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise InvalidRequest(f"Send Content-Type: application/json (got {sent[:100]!r}).")


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def _parse(data: bytes) -> SpeechBody:
    return parse_body(_decode(data))


def _decode(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_unique, parse_constant=_not_a_number)
        if isinstance(fields, dict) and _SURROGATE.search(data):
            _check_text(fields)
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not UTF-8.") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"The body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})."
        ) from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    except ValueError:  # an integer of thousands of digits
        raise InvalidRequest("The body holds a number that is too long.") from None
    if not isinstance(fields, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return fields


def _check_text(fields: dict[str, Any]) -> None:
    """Escapes can spell half of a surrogate pair: JSON lets it pass, but it is no text and has no bytes."""
    for name, value in fields.items():
        try:
            json.dumps([name, value], ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"The field {name[:50]!r} holds half of a surrogate pair.", param=name[:200]
            ) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The parser would keep the last of two equal names; which one was meant, nobody can know."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise InvalidRequest(f"The field {name[:50]!r} is there twice.", param=name[:200])
        fields[name] = value
    return fields


def _not_a_number(text: str) -> NoReturn:
    raise InvalidRequest(f"The body is not JSON: {text} is not a JSON number.")
