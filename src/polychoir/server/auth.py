"""Who may ask: one bearer key, compared in constant time. Health is always open, lists by setting."""

from __future__ import annotations

import hmac

from starlette.requests import Request

from polychoir.config import Settings
from polychoir.server.errors import InvalidApiKey


class Keys:
    """The server's key, if it has one."""

    def __init__(self, settings: Settings) -> None:
        self._key = None if settings.api_key is None else settings.api_key.encode()
        self._public_lists = settings.public_lists

    def check(self, request: Request) -> None:
        """Raises InvalidApiKey unless the request carries the key, or no key is needed."""
        if self._key is None:
            return
        sent = _sent_key(request)
        if sent is None:
            raise InvalidApiKey("An API key is needed: send it as 'Authorization: Bearer KEY'.")
        if not hmac.compare_digest(sent, self._key):
            raise InvalidApiKey("This API key is not valid here.")

    def check_list(self, request: Request) -> None:
        """The same for lists of models and voices, which may be public."""
        if not self._public_lists:
            self.check(request)


def _sent_key(request: Request) -> bytes | None:
    """Headers arrive as latin-1, so encoding them so gives back the bytes that were sent."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip().encode("latin-1")
    key = request.headers.get("xi-api-key")
    return key.strip().encode("latin-1") if key else None
