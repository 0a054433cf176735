"""A runner that executes each plan on a thread of its own pool.

For CPU voices (several plans at once, each releasing the interpreter lock inside its graph) and for
simple step loops (one thread, plans strictly in order). It knows nothing of tensors or models.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from statistics import median
from typing import Protocol

from polychoir.runner.cpu import cpu_device
from polychoir.types import Chunk, Device, Measured, PlannedRow, StepPlan, StepResult, StepSample

_log = logging.getLogger(__name__)

TRIAL_ROUNDS = 3
TRIAL_S = 0.4
"""No round is begun after so long: a slow machine is measured once or twice, a quick one in less."""


class Stage(Protocol):
    """What a model must do on the runner's threads. With several threads, `run` is called concurrently."""

    def run(self, plan: StepPlan) -> StepResult:
        """Execute one step for all rows of the plan.

        A row that fails for a reason of its own gets a SequenceOutput with that error. Anything raised
        means that the plan failed and the culprit is unknown: the engine then runs its rows alone,
        from step 0.
        """
        ...

    def drop(self, seq_id: int) -> None:
        """Forget a row that left before its end. Unknown ids are fine."""
        ...

    def close(self) -> None: ...


class Outbox:
    """News on its way to the engine's thread, from whatever thread has any."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._news: deque[StepResult] = deque()  # append and popleft are atomic

    def put(self, result: StepResult) -> None:
        self._news.append(result)
        self._wake()

    def take(self) -> list[StepResult]:
        """Everything since the last call, oldest first."""
        results = []
        while self._news:
            results.append(self._news.popleft())
        return results


class ThreadedRunner:
    """Implements `polychoir.models.base.Runner` over a Stage. At most `threads` plans execute at once.

    device: None is this machine's processor. trials: chunks of several sizes to time a first step of; none:
    the stage is not measured.
    """

    def __init__(
        self,
        stage: Stage,
        threads: int,
        outbox: Outbox,
        *,
        device: Device | None = None,
        trials: Sequence[Chunk] = (),
    ) -> None:
        self.step_tokens: int | None = None
        self.device = device or cpu_device(f"{threads} threads")
        self._threads = threads
        self._trials = trials
        self._stage = stage
        self._outbox = outbox
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="polychoir-step")

    def measure(self) -> Measured:
        """The middle of each trial's times, with all threads at it: so they run when it matters."""
        jobs = [self._pool.submit(self._try_all) for _ in range(self._threads)]
        by_thread = [job.result() for job in jobs]
        if not all(by_thread):
            return Measured()
        samples = []
        for trial, *times in zip(self._trials, *by_thread, strict=True):
            seconds = median(chain.from_iterable(times))
            samples.append(StepSample(trial.work.tokens, trial.work.squares, seconds))
        return Measured(tuple(samples))

    def prepare(self, seq_id: int, chunk: Chunk) -> bool:
        return True

    def submit(self, plan: StepPlan) -> None:
        self._pool.submit(self._run, plan)

    def poll(self) -> list[StepResult]:
        return self._outbox.take()

    def drop(self, seq_id: int) -> None:
        # Queued behind the plans already submitted, so with one thread nothing in flight uses the slot.
        self._pool.submit(self._stage.drop, seq_id)

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        self._stage.close()

    def _try_all(self) -> list[list[float]]:
        """Seconds of each trial, in rounds. Nothing if the stage cannot do them."""
        times: list[list[float]] = [[] for _ in self._trials]
        begun = time.perf_counter()
        for _ in range(TRIAL_ROUNDS):
            for trial, seconds in zip(self._trials, times, strict=True):
                plan = StepPlan(-1, (PlannedRow(-1, 0, trial),), trial.work.tokens)
                started = time.perf_counter()
                result = self._stage.run(plan)
                seconds.append(time.perf_counter() - started)
                for output in result.outputs:
                    if output.error is not None:
                        _log.warning("a trial of %d tokens failed: %s", plan.tokens, output.error)
                        return []
            if time.perf_counter() - begun > TRIAL_S:
                break
        return times

    def _run(self, plan: StepPlan) -> None:
        started = time.perf_counter()
        try:
            result = self._stage.run(plan)
        except Exception as error:  # reported, not swallowed: the scheduler finds the row at fault
            result = StepResult(plan.plan_id, error=error)
        self._outbox.put(replace(result, run_s=time.perf_counter() - started))
