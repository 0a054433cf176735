"""Encoded reference clips, least recently used out first; bounded by bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Codes = NDArray[np.int16]


class PromptCache:
    """Codes by the hash of the clip they came from."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held = 0
        self._entries: OrderedDict[str, Codes] = OrderedDict()

    @property
    def held_bytes(self) -> int:
        return self._held

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def get(self, key: str, encode: Callable[[], Codes]) -> Codes:
        """The codes under `key`, made by `encode` if they are not there."""
        if key in self._entries:
            self._entries.move_to_end(key)
            return self._entries[key]
        codes = encode()
        self._entries[key] = codes
        self._held += codes.nbytes
        while self._held > self._limit and self._entries:
            self._held -= self._entries.popitem(last=False)[1].nbytes
        return codes
