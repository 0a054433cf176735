"""A model's cost curve on one device, and the form in which it is kept.

What is read back may be somebody else's or damaged: every field is checked, and nothing is guessed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any, Literal

from polychoir.engine.cost import StepCost
from polychoir.types import StepSample

FORMAT = 1
MOST_SAMPLES = 256

Origin = Literal["measured", "kept", "default"]
"""Measured now; measured at an earlier start and kept; not measured, a default for the class of device."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a curve is true of. Another value of any of these may mean another curve.

    model: where its weights are from, and fingerprint: what is in them (`ModelInfo`). device: `Device.name`.
    version: of this package.
    """

    model: str
    fingerprint: str
    device: str
    version: str

    @property
    def key(self) -> str:
        """Name of its file: 20 hexadecimal digits."""
        said = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:20]


@dataclass(frozen=True, slots=True)
class Curve:
    """A cost curve and where it comes from.

    measured_at: Unix seconds. step_tokens: the largest step that the runner asked for, if it did.
    """

    cost: StepCost
    origin: Origin
    identity: Identity
    measured_at: float = 0.0
    step_tokens: int | None = None
    samples: tuple[StepSample, ...] = ()


_TERMS = ("host_s", "per_token_s", "per_square_s", "floor_s", "decode_s")
_NAMES = tuple(field.name for field in fields(Identity))


def to_json(curve: Curve) -> bytes:
    """The file of a measured curve. Lanes are not in it: they follow from the settings of the day."""
    record = {
        "format": FORMAT,
        "identity": asdict(curve.identity),
        "measured_at": curve.measured_at,
        "step_tokens": curve.step_tokens,
        "cost": {name: getattr(curve.cost, name) for name in _TERMS},
        "samples": [asdict(sample) for sample in curve.samples],
    }
    return (json.dumps(record, indent=1) + "\n").encode("ascii")


def from_json(data: bytes) -> Curve:
    """The curve that was kept, on one lane. Raises ValueError that says what is wrong."""
    try:
        record = json.loads(data)
        if record["format"] != FORMAT:
            raise ValueError(f"its format is {record['format']!r}, not {FORMAT}")
        return Curve(
            cost=_cost(record["cost"]),
            origin="kept",
            identity=Identity(
                **{field.name: str(record["identity"][field.name]) for field in fields(Identity)}
            ),
            measured_at=_number(record, "measured_at"),
            step_tokens=None if record["step_tokens"] is None else int(_number(record, "step_tokens")),
            samples=tuple(_sample(sample) for sample in record["samples"][:MOST_SAMPLES]),
        )
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"it is no calibration: {error!r}") from error


def _cost(record: dict[str, Any]) -> StepCost:
    host, token, square, floor, decode = (_number(record, name) for name in _TERMS)
    if token == 0:
        raise ValueError("per_token_s is 0")
    return StepCost(host, token, square, floor, decode)


def _sample(record: dict[str, Any]) -> StepSample:
    return StepSample(
        int(_number(record, "tokens")), int(_number(record, "squares")), _number(record, "seconds")
    )


def _number(record: dict[str, Any], name: str) -> float:
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise ValueError(f"{name} is {value!r}")
    return float(value)
