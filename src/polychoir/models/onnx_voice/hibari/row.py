"""What one chunk hands from the text side to the graph."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HibariRow:
    """Plain values only. `ids` has the pads at both ends; `seed` and `chunk` feed the noise."""

    ids: tuple[int, ...]
    speed: float
    seed: int
    chunk: int
