"""A runner that executes each plan on a thread of its own pool.

For CPU voices (several plans at once, each releasing the interpreter lock inside its graph) and for
simple step loops (one thread, plans strictly in order). It knows nothing of tensors or models.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from polychoir.types import Chunk, StepPlan, StepResult


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
    """Implements `polychoir.models.base.Runner` over a Stage. At most `threads` plans execute at once."""

    def __init__(self, stage: Stage, threads: int, outbox: Outbox) -> None:
        self.step_tokens: int | None = None
        self._stage = stage
        self._outbox = outbox
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="polychoir-step")

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

    def _run(self, plan: StepPlan) -> None:
        started = time.perf_counter()
        try:
            result = self._stage.run(plan)
        except Exception as error:  # reported, not swallowed: the scheduler finds the row at fault
            result = StepResult(plan.plan_id, error=error)
        self._outbox.put(replace(result, run_s=time.perf_counter() - started))
