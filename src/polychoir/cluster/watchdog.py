"""Watchdog: ends a worker whose runner owes something and brings nothing back.

A device call that never returns cannot be interrupted from inside a process, so the process has to go; the
supervisor starts another one and sends it the rows again.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable

from polychoir.cluster.exits import HUNG
from polychoir.engine.loop import EngineLoop
from polychoir.types import DeviceKind

DEVICE_STEP_S, CPU_STEP_S = 30.0, 300.0
"""Unless a setting says: a step of hundreds of rows is minutes of a small CPU, and never of a GPU."""


def step_timeout_s(kind: DeviceKind) -> float:
    """How long a step may take on a device of this kind, for the largest there is and more."""
    return CPU_STEP_S if kind == "cpu" else DEVICE_STEP_S


class Watchdog:
    """A thread that looks at an engine loop a few times in `timeout_s`."""

    def __init__(
        self, loop: EngineLoop, timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._clock = clock
        self._seen = (-1, -1)
        self._seen_at = clock()

    def start(self) -> None:
        """Begin to look; call once the model is warm, since loading takes as long as it takes."""
        threading.Thread(target=self._run, name="polychoir-watchdog", daemon=True).start()

    def hangs(self) -> bool:
        """Look once: True if nothing has come back for too long."""
        stats = self._loop.stats
        seen = (
            stats.batches_dispatched - stats.plans_in_flight,
            stats.sequences_finished + stats.sequences_failed,
        )
        now = self._clock()
        if not self._loop.owes or seen != self._seen:
            self._seen, self._seen_at = seen, now
        return now - self._seen_at > self._timeout_s

    def _run(self) -> None:
        while not self.hangs():
            time.sleep(min(self._timeout_s / 4, 1.0))
        print(f"no step has ended for {self._timeout_s:g} s: this worker ends itself", file=sys.stderr)
        faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
        os._exit(HUNG)
