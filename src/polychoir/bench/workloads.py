"""What is asked for, and when: seeded, so that a run can be repeated item by item."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any, Literal

from polychoir.errors import SettingError

Kind = Literal["speech", "design", "clone"]

CHARACTERS_PER_S = 15
"""English as it is read aloud."""
DESIGN = "female, young adult, moderate pitch"
REFERENCE_S = 5
REFERENCE_TEXT = "People talk about the weather and the long road that leads back to the quiet harbour."
_WORDS = (
    "The quick brown fox jumps over the lazy dog while the river keeps moving slowly toward the distant sea "
    "and every small boat on the water waits for the morning light before it sails back home to the quiet "
    "harbour where people talk about the weather and the long road. "
)


@dataclass(frozen=True, slots=True)
class Item:
    """One request. steps, guidance: None leaves them to the model."""

    kind: Kind
    seconds: float
    seed: int
    steps: int | None = None
    guidance: float | None = None

    @property
    def text(self) -> str:
        """English of about that many seconds; another piece of it for every seed."""
        length = max(10, int(self.seconds * CHARACTERS_PER_S))
        start = (self.seed * 37) % 100
        return (_WORDS[start:] + _WORDS * (length // len(_WORDS) + 1))[:length].strip() + "."


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a workload: lengths drawn evenly between two ends, in seconds."""

    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Workload:
    """kinds: shares that add up to 1. steps, guidance: one of each is drawn for an item; empty: the model's
    own."""

    name: str
    lengths: tuple[Share, ...]
    kinds: Mapping[Kind, float]
    steps: tuple[int, ...] = ()
    guidance: tuple[float, ...] = ()

    def items(self, count: int, seed: int = 1) -> list[Item]:
        draw = Random(seed)
        return [self._item(draw, number) for number in range(count)]

    def _item(self, draw: Random, number: int) -> Item:
        part = draw.choices(self.lengths, [part.share for part in self.lengths])[0]
        return Item(
            kind=draw.choices(list(self.kinds), list(self.kinds.values()))[0],
            seconds=round(draw.uniform(part.low, part.high), 2),
            seed=number,
            steps=draw.choice(self.steps) if self.steps else None,
            guidance=draw.choice(self.guidance) if self.guidance else None,
        )


def parse_workload(values: Mapping[str, Any]) -> Workload:
    """A workload as a file has it: name, audio_s (shares of lengths), kinds or clone_share, steps, guidance.

    How many and how fast, which a file may say for its readers, is the run's own. Raises KeyError, TypeError
    or ValueError for what is missing or no number.
    """
    lengths = tuple(
        Share(float(part["share"]), *(float(end) for end in part["uniform"])) for part in values["audio_s"]
    )
    clones = float(values.get("clone_share", 0.0))
    kinds = values.get("kinds") or {"speech": 1.0 - clones, "clone": clones}
    unknown = set(kinds) - {"speech", "design", "clone"}
    if unknown:
        raise ValueError(f"kinds {sorted(unknown)} are unknown")
    steps, guidance = values.get("steps"), values.get("guidance")
    return Workload(
        name=str(values["name"]),
        lengths=lengths,
        kinds={kind: float(share) for kind, share in kinds.items()},
        steps=() if steps is None else (int(steps),),
        guidance=() if guidance is None else (float(guidance),),
    )


def _even(name: str, low: float, high: float, kind: Kind = "speech") -> Workload:
    return Workload(name, (Share(1.0, low, high),), {kind: 1.0})


def _packaged(name: str) -> Workload:
    """One of the files beside this one."""
    file = files("polychoir.bench") / "data" / f"{name}.json"
    return parse_workload(json.loads(file.read_text(encoding="utf-8")))


NAMED: Mapping[str, Workload] = {
    load.name: load
    for load in (
        _even("auto1", 1, 1),
        _even("auto5", 5, 5),
        _even("auto10", 10, 10),
        _even("clone5", 5, 5, "clone"),
        _even("mixed", 2, 15),
        _even("mixed-clone", 2, 15, "clone"),
        _even("items3-10", 3, 10),
        Workload("poisson", (Share(1.0, 2, 15),), {"speech": 0.7, "clone": 0.3}, (16, 32), (1.0, 2.0, 3.0)),
        _packaged("older_short"),
        _packaged("older_mixed"),
    )
}
"""The kinds of load that docs/benchmarks.md reports. The older ones: what servers before this were
measured with."""


def find_workload(name: str) -> Workload:
    """A named workload, or one from a JSON file. Raises SettingError."""
    if name in NAMED:
        return NAMED[name]
    path = Path(name)
    if not path.is_file():
        raise SettingError(
            f"no workload is called {name!r}: one of {', '.join(NAMED)}, or a JSON file", param="workload"
        )
    try:
        return parse_workload(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError) as error:
        raise SettingError(f"{path} is no workload: {error!r}", param="workload") from error


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When items are sent. rate: a second, None sends as fast as `concurrency` lets through. poisson: random
    gaps instead of even ones. concurrency: most items in flight, None for any number."""

    rate: float | None = None
    poisson: bool = False
    concurrency: int | None = None

    @property
    def is_closed_loop(self) -> bool:
        """A client sends when one of its own is answered. With a rate items are due at their times, and a
        bound on what is in flight makes them late."""
        return self.concurrency is not None and self.rate is None

    def times(self, items: Sequence[Item], seed: int = 1) -> Iterator[float]:
        """Seconds from the start at which each item is due."""
        draw, now = Random(seed), 0.0
        for _ in items:
            yield now
            if self.rate is not None:
                now += draw.expovariate(self.rate) if self.poisson else 1.0 / self.rate
