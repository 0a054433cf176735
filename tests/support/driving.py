"""Drives the device side step by step, as the engine would, and waits for what the booth makes of it.

Imports nothing of the server: also used where only torch, transformers and numpy are installed.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from polychoir.models.omnivoice.network import Network
from polychoir.runner.booth import Booth
from polychoir.runner.model_runner import ModelRunner
from polychoir.runner.plain_step import PlainStep
from polychoir.runner.prompt_cache import PromptCache
from polychoir.runner.slots import SlotTable
from polychoir.runner.step import StepExecutor
from polychoir.types import Chunk, PlannedRow, SequenceOutput, StepPlan, StepResult

LATEST_S = 120.0
"""Nothing the booth does in a test takes longer."""


def make_slots(network: Network, limit: int, tokens: int = 1 << 16) -> SlotTable:
    config = network.config
    return SlotTable(
        codebooks=config.codebooks,
        mask_id=config.mask_id,
        limit=limit,
        tokens=tokens,
        longest=min(tokens, config.context),
        device=network.device,
    )


class Driver:
    """A stage with a booth, one plan at a time: `run` returns when everything that ended in it is there."""

    def __init__(
        self,
        network: Network,
        codec: Any,
        *,
        limit: int = 256,
        slots: SlotTable | None = None,
        step: StepExecutor | None = None,
    ) -> None:
        self._news: queue.Queue[StepResult] = queue.Queue()
        self.slots = make_slots(network, limit) if slots is None else slots
        self.booth = Booth(codec, prompts=PromptCache(1 << 20), emit=self._news.put, device=network.device)
        self._finish = self.booth.finish
        self.booth.finish = self._count  # type: ignore[method-assign]
        self._due = 0
        self._prepared: set[int] = set()
        self.stage = ModelRunner(
            step or PlainStep(network, self.slots),
            self.slots,
            self.booth,
            device=network.device,
            mask_id=network.config.mask_id,
        )

    def run(self, plan: StepPlan) -> StepResult:
        """The stage's own result, with the outputs of every row that had its last step."""
        failed = [output for row in plan.rows if row.step == 0 for output in self._prepare(row)]
        kept = tuple(row for row in plan.rows if row.seq_id not in {output.seq_id for output in failed})
        result = self.stage.run(replace(plan, rows=kept))
        return replace(result, outputs=(*failed, *result.outputs, *self._collect()))

    def drop(self, seq_id: int) -> None:
        self._prepared.discard(seq_id)
        self.stage.drop(seq_id)

    def close(self) -> None:
        self.stage.close()

    def _prepare(self, row: PlannedRow) -> list[SequenceOutput]:
        if row.seq_id in self._prepared or self.stage.prepare(row.seq_id, row.chunk):
            return []
        result = self._news.get(timeout=LATEST_S)
        self._prepared.update(result.prepared)
        return [replace(output, epoch=row.epoch) for output in result.outputs]

    def _count(self, rows: Sequence[Any], ready: Any) -> None:
        self._due += len(rows)
        self._finish(rows, ready)

    def _collect(self) -> list[SequenceOutput]:
        outputs: list[SequenceOutput] = []
        while self._due:
            result = self._news.get(timeout=LATEST_S)
            outputs += result.outputs
            self._due -= len(result.outputs)
        for output in outputs:
            self._prepared.discard(output.seq_id)
        return outputs


def run_together(driver: Driver, chunks: Sequence[Chunk]) -> list[SequenceOutput]:
    """All chunks from their first step on, side by side; each leaves when it is done."""
    outputs: dict[int, SequenceOutput] = {}
    for step in range(max(len(chunk.payload.timetable) for chunk in chunks)):
        rows = tuple(
            PlannedRow(number, step, chunk)
            for number, chunk in enumerate(chunks)
            if step < len(chunk.payload.timetable)
        )
        tokens = sum(row.chunk.work.tokens for row in rows)
        for output in driver.run(StepPlan(step, rows, tokens)).outputs:
            outputs[output.seq_id] = output
    return [outputs[number] for number in range(len(chunks))]
