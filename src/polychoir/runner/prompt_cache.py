"""Encoded reference clips, least recently used out first; bounded by bytes."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Codes = NDArray[np.int16]
    Encode = Callable[[Sequence[bytes]], Sequence[Codes]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fetched:
    """Codes or the error of each clip, by its key; `encoded` of them were not in the cache."""

    codes: dict[str, Codes]
    errors: dict[str, Exception]
    encoded: int


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

    def fetch(self, clips: Mapping[str, bytes], encode: Encode) -> Fetched:
        """The codes of these clips. Those that are not there are encoded together; if that fails, each alone,
        and fails alone."""
        known = {key: self._entries[key] for key in clips if key in self._entries}
        for key in known:
            self._entries.move_to_end(key)
        made, errors = _encoded({key: clips[key] for key in clips if key not in known}, encode)
        self._keep(made)
        return Fetched(known | made, errors, len(made))

    def _keep(self, made: Mapping[str, Codes]) -> None:
        for key, codes in made.items():
            self._entries[key] = codes
            self._held += codes.nbytes
        while self._held > self._limit and self._entries:
            self._held -= self._entries.popitem(last=False)[1].nbytes


def _encoded(clips: Mapping[str, bytes], encode: Encode) -> tuple[dict[str, Codes], dict[str, Exception]]:
    if not clips:
        return {}, {}
    try:
        return dict(zip(clips, encode(list(clips.values())), strict=True)), {}
    except Exception as error:
        if len(clips) == 1:
            return {}, dict.fromkeys(clips, error)
        _log.warning("encoding %d clips together failed, trying each alone: %s", len(clips), error)
    made: dict[str, Codes] = {}
    errors: dict[str, Exception] = {}
    for key, clip in clips.items():
        one, failed = _encoded({key: clip}, encode)
        made |= one
        errors |= failed
    return made, errors
