"""A model for workers that go wrong: the fake model, and a text that starts with ! is a thing to do.

Installed for a worker process by `environment`, as a distribution of its own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from polychoir.errors import DeviceLost, ModelLoadError
from polychoir.models.base import Model, Runner
from polychoir.models.fake import FakeModel, FakePlugin
from polychoir.types import ModelOptions, StepPlan, StepResult

NAME = "misbehaving"


def environment(folder: Path) -> dict[str, str]:
    """Environment of a worker that knows the plug-in."""
    metadata = folder / "misbehaving-1.0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: misbehaving\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[polychoir.models]\n{NAME} = support.misbehaving:plugin\n")
    places = (str(folder), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(filter(None, places))}


class Misbehaving(FakeModel):
    """`on_load`: fail, die, or nothing; with `once` (a file) only if that is not there yet."""

    def __init__(self, model: FakeModel, on_load: str, once: str) -> None:
        super().__init__(model.info, model.settings)
        self._on_load = on_load
        self._once = Path(once) if once else None
        self._lost = False

    def load(self, wake: Callable[[], None]) -> Runner:
        if self._on_load == "fail":
            raise ModelLoadError("there is no such checkpoint", param="model")
        if self._on_load == "die":
            os._exit(7)
        if self._on_load == "fail_again" and self._before():
            raise ModelLoadError("memory is still held")
        return super().load(wake)

    def run(self, plan: StepPlan) -> StepResult:
        for row in plan.rows:
            self._obey(row.chunk.text)
        if self._lost:
            raise DeviceLost("a sticky error")
        return super().run(plan)

    def _obey(self, text: str) -> None:
        if text.startswith("!print"):
            print("x" * 100_000, flush=True)
        if text.startswith("!hang") and not self._before():
            time.sleep(3_600)
        if text.startswith("!lose") and not self._before():
            self._lost = True
        if text.startswith("!die"):
            os._exit(7)
        if text.startswith("!hold") and not self._before():
            sys.setswitchinterval(3_600)
            while True:
                pass

    def _before(self) -> bool:
        """Whether this has been asked before, by any process."""
        if self._once is None:
            return False
        try:
            self._once.touch(exist_ok=False)
        except FileExistsError:
            return True
        return False


class Plugin(FakePlugin):
    def open(self, reference: str | None, options: ModelOptions) -> Model:
        extra: dict[str, Any] = dict(options.extra)
        on_load, once = extra.pop("on_load", ""), extra.pop("once", "")
        model = super().open(reference, replace(options, extra=extra))
        assert isinstance(model, FakeModel)
        return Misbehaving(model, on_load, once)


plugin = Plugin()
