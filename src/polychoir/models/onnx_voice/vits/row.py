"""What one chunk hands from the text side to the graph."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VitsRow:
    """Plain values only. length_scale: pace, larger is slower; speaker: None for a voice of one."""

    ids: tuple[int, ...]
    length_scale: float
    speaker: int | None = None
