"""Which steps are timed at start-up, and on which rows: sizes doubling up to the largest, within seconds.

Each size comes in two shapes, many short rows and few long ones: they have the same tokens, and what
attention costs is the difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from polychoir.models.omnivoice.row import OmniVoiceRow
from polychoir.models.omnivoice.timetable import timetable
from polychoir.types import StepSample

TRIAL_FRAMES = 50
"""Of the decode that is timed: two seconds, about the first piece of a long text."""
SHORT, LONG = 160, 2_000
"""Tokens of the rows of the two shapes, about: two seconds of speech, and forty."""
_SMALLEST = 32
_TEXT = 40
_LEAST_SIZES = 2
_BLOCKS = 3
_MOST_STEPS = 8
_SHARES, _LONG_SHARES = 100, 20
"""A block of steps takes one part in so many of the budget, about; a step of more than a larger part is timed
once."""


class TimeSteps(Protocol):
    """Seconds of a step of these rows: the mean of their first `steps` steps."""

    def __call__(self, rows: Sequence[OmniVoiceRow], steps: int, /) -> float: ...


@dataclass(frozen=True, slots=True)
class Sweep:
    """tokens, rows: of the largest step. longest: tokens of the longest conditional run.

    budget_s: no size is begun that would pass it, but two sizes are always measured.
    """

    tokens: int
    rows: int
    longest: int
    budget_s: float

    def run(
        self, time_steps: TimeSteps, clock: Callable[[], float] = time.perf_counter
    ) -> tuple[StepSample, ...]:
        """Time every size that fits into the budget. A single size only if no larger step is allowed."""
        begun = clock()
        samples: list[StepSample] = []
        expected = 0.0  # seconds for one shape of the next size
        for number, size in enumerate(self.sizes()):
            shapes = self.shapes(size)
            if number == 0:
                time_steps(shapes[0], 1)  # first use of everything
            if number >= _LEAST_SIZES and clock() - begun + expected * len(shapes) > self.budget_s:
                break
            started = clock()
            for rows in shapes:
                seconds = self._seconds(rows, time_steps)
                samples.append(
                    StepSample(sum(row.tokens for row in rows), sum(row.squares for row in rows), seconds)
                )
            expected = 2 * (clock() - started) / len(shapes)
        return tuple(samples)

    def sizes(self) -> Iterator[int]:
        """Tokens of the steps: doubling, and the largest."""
        size, largest = _SMALLEST, min(self.tokens, self.rows * self._longest_row)
        while size < largest:
            yield size
            size *= 2
        yield max(largest, _SMALLEST)

    def shapes(self, tokens: int) -> list[list[OmniVoiceRow]]:
        """Rows that make a step of exactly so many tokens: many short ones, and few long if those differ."""
        fewest = -(-tokens // min(LONG, self._longest_row))
        counts = {min(max(tokens // SHORT, 1), self.rows), min(fewest, self.rows)}
        return [_rows(tokens, count) for count in sorted(counts, reverse=True)]

    @property
    def _longest_row(self) -> int:
        """Tokens of both runs, nearly."""
        return 2 * (self.longest - _TEXT)

    def _seconds(self, rows: Sequence[OmniVoiceRow], time_steps: TimeSteps) -> float:
        """The middle of a few blocks; a single step where that takes long."""
        first = time_steps(rows, 1)
        if first > self.budget_s / _LONG_SHARES:
            return first
        steps = min(max(int(self.budget_s / _SHARES / first), 1), _MOST_STEPS)
        return median(time_steps(rows, steps) for _ in range(_BLOCKS))


def _rows(tokens: int, count: int) -> list[OmniVoiceRow]:
    """So many rows of nearly equal size that have exactly so many tokens together."""
    return [_row(tokens // count + (number < tokens % count)) for number in range(count)]


def _row(tokens: int) -> OmniVoiceRow:
    """A guided row of exactly so many tokens, with the published settings."""
    text = min(_TEXT, tokens // 4)
    text += (tokens - text) % 2
    frames = (tokens - text) // 2
    return OmniVoiceRow(
        text_ids=(1,) * text,
        target_frames=frames,
        timetable=timetable(frames, 32, 0.1),
        guidance_scale=2.0,
        position_temperature=5.0,
        class_temperature=0.0,
        layer_penalty_factor=5.0,
        seed=0,
    )
