"""From an error to an answer: the one table of statuses, OpenAI's error object, and when to come back."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from polychoir.errors import (
    Aborted,
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    PolychoirError,
    Unavailable,
)

STATUS: Mapping[str, int] = {
    "invalid_value": 400,
    "missing_value": 400,
    "unknown_field": 400,
    "unspeakable_text": 400,
    "unsupported_by_model": 400,
    "voice_not_found": 400,
    "invalid_audio": 400,
    "text_too_long": 400,
    "invalid_api_key": 401,
    "not_allowed": 403,
    "model_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "already_exists": 409,
    "idempotency_conflict": 409,
    "body_too_large": 413,
    "overloaded": 429,
    "rate_limited": 429,
    "quota_exceeded": 429,
    "client_closed": 499,
    "internal_error": 500,
    "loading": 503,
    "draining": 503,
    "worker_lost": 503,
    "deadline_exceeded": 504,
}
"""The one table. A code that is not here is a bug of ours, hence 500."""

FINAL = frozenset(
    {
        "internal_error",
        "deadline_exceeded",
        "already_exists",
        "idempotency_conflict",
        "quota_exceeded",
    }
)
"""Codes for which asking again gives the same: SDKs repeat 409, 429 and every 5xx unless told not to."""

MAX_MESSAGE_CHARS = 1_000
_RETRYABLE = (Overloaded, Unavailable)


class InvalidApiKey(PolychoirError):
    """No key, or one that is not ours."""

    code = "invalid_api_key"


class BodyLate(InvalidRequest):
    """The body stopped on its way, or came too slowly; the connection is of no more use."""


class MethodNotAllowed(InvalidRequest):
    """The path exists under other methods; `allow` lists them as the Allow header does."""

    code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


def status_of(error: PolychoirError) -> int:
    """HTTP status of an error."""
    return STATUS.get(error.code, 500)


def as_error(error: Exception) -> PolychoirError:
    """Our error for anything an app can raise. What we do not know is an InternalError."""
    match error:
        case PolychoirError():
            return error
        case ClientDisconnect():
            return Aborted("the client closed the connection while it was sending")
        case RequestValidationError():
            return _from_validation(error)
        case HTTPException():
            return _from_framework(error)
    wrapped = InternalError(repr(error))
    wrapped.__cause__ = error
    return wrapped


def error_response(error: PolychoirError, request_id: str) -> JSONResponse:
    """OpenAI's error object, with headers that tell a client whether and when to try again."""
    status = status_of(error)
    content = {
        "error": {
            "message": sendable(_message(error, status, request_id)),
            "type": _type(status),
            "param": None if error.param is None else sendable(error.param),
            "code": error.code if error.code in STATUS else InternalError.code,
        }
    }
    return JSONResponse(content, status, _headers(error, status))


def sendable(text: str) -> str:
    """The text with ? for lone surrogates, which JSON can bring in and UTF-8 cannot carry out."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _message(error: PolychoirError, status: int, request_id: str) -> str:
    if status == 500:
        return f"The server failed on this request. Its log has the cause under request id {request_id}."
    return error.message[:MAX_MESSAGE_CHARS]


def _type(status: int) -> str:
    if status in (401, 403):
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def _headers(error: PolychoirError, status: int) -> dict[str, str]:
    headers: dict[str, str] = {}
    if isinstance(error, _RETRYABLE):
        headers |= retry_headers(error.retry_after_s)
    if status == 500 or error.code in FINAL:
        headers["x-should-retry"] = "false"
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = error.allow
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status == 413 or isinstance(error, BodyLate):
        headers["connection"] = "close"  # the rest of the body is still on its way
    return headers


def retry_headers(seconds: float) -> dict[str, str]:
    """Retry-After in whole seconds for everybody, retry-after-ms for the SDKs that read it."""
    return {
        "retry-after": str(max(1, math.ceil(seconds))),
        "retry-after-ms": str(max(1, math.ceil(seconds * 1_000))),
    }


def _from_validation(error: RequestValidationError) -> PolychoirError:
    """A query or path parameter that FastAPI itself checked."""
    first = error.errors()[0]
    param = str(first["loc"][-1]) if first["loc"] else None
    return InvalidRequest(f"{param}: {first['msg']}.", param=param)


def _from_framework(error: HTTPException) -> PolychoirError:
    if error.status_code == 404:
        return NotFound("There is nothing at this address.")
    if error.status_code == 405:
        return MethodNotAllowed(
            "This address has other methods.", allow=(error.headers or {}).get("Allow", "")
        )
    if 400 <= error.status_code < 500:
        return InvalidRequest(str(error.detail))
    return InternalError(str(error.detail))
