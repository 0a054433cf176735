"""What every route of one app shares, and how a route gets at it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from starlette.requests import Request

from polychoir.config import Settings
from polychoir.errors import SettingError
from polychoir.pipeline import Speaker
from polychoir.server.auth import Keys
from polychoir.server.door import Door
from polychoir.server.errors import sendable
from polychoir.server.metrics import Metrics

ENCODING_THREADS = 4
"""What waits for one of them is bounded by the door: a place is held until the answer is encoded."""


@dataclass(frozen=True, slots=True)
class House:
    """The speakers of a server and what stands between them and the street."""

    speakers: Mapping[str, Speaker]
    settings: Settings
    keys: Keys
    door: Door
    metrics: Metrics
    encoding: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(ENCODING_THREADS, thread_name_prefix="polychoir-encode")
    )


def build_house(speakers: Mapping[str, Speaker], settings: Settings) -> House:
    """One house for one app. Raises SettingError for a served name that no answer could carry."""
    for name in speakers:
        if sendable(name) != name:
            raise SettingError(f"the model name {name!r} is not text", param="model")
    return House(speakers, settings, Keys(settings), Door(speakers), Metrics(speakers))


def house_of(request: Request) -> House:
    """The house of the app that serves this request."""
    house: House = request.app.state.house
    return house
