"""What carries out one step of resident rows: the seam between the runner and the ways to compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from polychoir.runner.slots import Slot
from polychoir.types import GraphUse


@dataclass(frozen=True, slots=True)
class Ran:
    """How a step was run. padded_tokens: computed for nothing, to fill a bucket."""

    padded_tokens: int = 0
    graph: GraphUse | None = None


class StepExecutor(Protocol):
    """Forward and reveal, for all rows at once. On a GPU nothing here waits for the device."""

    def run(self, slots: Sequence[Slot], steps: Sequence[int]) -> Ran:
        """Step `steps[i]` of `slots[i]`; at least one row. Changes their canvases on the device."""
        ...

    def close(self) -> None:
        """Give back what was kept between steps."""
        ...
