"""Drives a model's engine in this process, without HTTP: what the engine alone can do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from polychoir.bench.report import Outcome, summarise
from polychoir.bench.workloads import DESIGN, REFERENCE_S, REFERENCE_TEXT, Arrivals, Item, Workload
from polychoir.engine.calibrate import Calibration
from polychoir.engine.core import EngineStats
from polychoir.engine.engine import LocalEngine
from polychoir.engine.plan import limits_for
from polychoir.errors import PolychoirError
from polychoir.models.base import Model
from polychoir.models.registry import open_model
from polychoir.types import ModelOptions, Prepared, SamplingParams, SpeechRequest, VoiceChoice, VoicePrompt

_FRAME_RATE, _CODEBOOKS, _ENTRIES = 25, 8, 1_024


@dataclass(frozen=True, slots=True)
class Bench:
    """A model and how its engine is to run. limits: what `limits_for` takes, by name."""

    model: str
    options: ModelOptions
    batch: bool = True
    limits: Mapping[str, Any] = field(default_factory=dict)


def run(
    bench: Bench,
    workload: Workload,
    arrivals: Arrivals,
    *,
    count: int,
    seed: int = 1,
    load: float | None = None,
) -> tuple[dict[str, Any], list[Outcome]]:
    """Load the model, warm it with a few items, run the load; what `drive` gives of it.

    load: items come at random at this share of the capacity, which is measured first with all at once.
    """

    async def all_of_it() -> tuple[dict[str, Any], list[Outcome]]:
        async with running(bench) as engine:
            await warm_up(engine, workload, seed)
            items = workload.items(count, seed)
            if load is None:
                return await drive(engine, items, arrivals, seed)
            capacity = (await measure(engine, items, Arrivals(), seed))["completed_per_s"]
            found, outcomes = await drive(engine, items, Arrivals(load * capacity, poisson=True), seed)
            return {**found, "capacity_per_s": capacity}, outcomes

    return asyncio.run(all_of_it())


def sweep(bench: Bench, workload: Workload, sizes: Sequence[int], *, seed: int = 1) -> list[dict[str, Any]]:
    """wall(n) of n items sent at once, for each n: what batching buys. Best of three."""

    async def all_of_it() -> list[dict[str, Any]]:
        async with running(bench) as engine:
            await warm_up(engine, workload, seed)
            found = []
            for size in sizes:
                items = workload.items(size, seed)
                tries = [await measure(engine, items, Arrivals(), seed) for _ in range(3)]
                found.append({"n": size, **min(tries, key=lambda figures: figures["wall_s"])})
            return found

    return asyncio.run(all_of_it())


async def measure(
    engine: LocalEngine, items: Sequence[Item], arrivals: Arrivals, seed: int = 1
) -> dict[str, Any]:
    """The figures of `drive` alone."""
    return (await drive(engine, items, arrivals, seed))[0]


async def drive(
    engine: LocalEngine, items: Sequence[Item], arrivals: Arrivals, seed: int = 1
) -> tuple[dict[str, Any], list[Outcome]]:
    """Run these items on a warm engine; the figures of `summarise` with `engine`, and each item's outcome.

    Texts are prepared before the clock starts.
    """
    items = [_as_known(item, engine.model.info.fields) for item in items]
    prepared = [prepare(engine.model, item) for item in items]
    gate = _Gate(arrivals)
    before, started = engine.stats(), time.perf_counter()
    outcomes = await asyncio.gather(
        *(
            _one(engine, item, ready, due, started, gate)
            for item, ready, due in zip(items, prepared, arrivals.times(items, seed), strict=True)
        )
    )
    wall = time.perf_counter() - started
    figures = {**summarise(outcomes, wall), "engine": _engine_figures(before, engine.stats(), wall)}
    return figures, outcomes


def _as_known(item: Item, fields: Collection[str]) -> Item:
    """A clone by a model that cannot clone is speech, and is counted as that."""
    needed = {"speech": None, "design": "instructions", "clone": "ref_audio"}[item.kind]
    return item if needed is None or needed in fields else replace(item, kind="speech")


def prepare(model: Model, item: Item) -> Prepared:
    """The item as the model's own text side makes it; fields that the model does not know are left out."""
    known = model.info.fields
    request = SpeechRequest(
        request_id=f"bench-{item.seed}",
        text=item.text,
        seed=item.seed,
        voice=model.info.voices[0] if model.info.voices else "auto",
        language="en" if "language" in known else None,
        instructions=DESIGN if item.kind == "design" and "instructions" in known else None,
        duration=item.seconds if "duration" in known else None,
        sampling=SamplingParams(
            num_step=item.steps if "num_step" in known else None,
            guidance_scale=item.guidance if "guidance_scale" in known else None,
        ),
    )
    preset = model.info.voices[0] if model.info.voices else None
    prompt = _prompt() if item.kind == "clone" and "ref_audio" in known else None
    return model.frontend.prepare(request, VoiceChoice("bench", preset=preset, prompt=prompt))


def _prompt() -> VoicePrompt:
    """A stored voice of 5 s: codes drawn at random cost what real ones cost."""
    frames = REFERENCE_S * _FRAME_RATE
    codes = np.random.default_rng(0).integers(0, _ENTRIES, (_CODEBOOKS, frames)).astype("<i2")
    return VoicePrompt(codes.tobytes(), _CODEBOOKS, frames, REFERENCE_TEXT, rms=0.1)


async def _one(
    engine: LocalEngine, item: Item, prepared: Prepared, due: float, started: float, gate: _Gate
) -> Outcome:
    await asyncio.sleep(max(0.0, started + due - time.perf_counter()))
    async with gate:
        if gate.closed:  # a client of a closed loop sends when its turn comes: nothing is due before
            due = time.perf_counter() - started
        try:
            first, audio = await _speak(engine, prepared, started)
        except PolychoirError as error:
            return Outcome(item, due, time.perf_counter() - started, error=error.code)
    return Outcome(item, due, time.perf_counter() - started, audio, first_audio=first)


async def _speak(engine: LocalEngine, prepared: Prepared, started: float) -> tuple[float | None, float]:
    """When the first chunk was there, and how many seconds of audio all of them are."""
    first: float | None = None
    seconds = 0.0
    chunks, more = prepared.chunks, prepared.rest
    while chunks:
        async with await engine.submit(chunks) as stream:
            async for audio in stream:
                first = time.perf_counter() - started if first is None else first
                seconds += len(audio.samples) / audio.sample_rate
                last = audio
        chunks, more = (more(last), None) if more is not None else ((), None)
    return first, seconds


class _Gate(asyncio.Semaphore):
    """Lets so many through at once; None: anybody at any time."""

    def __init__(self, arrivals: Arrivals) -> None:
        super().__init__(arrivals.concurrency or 1_000_000)
        self.closed = arrivals.is_closed_loop


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[LocalEngine]:
    model = open_model(bench.model, bench.options)
    limits = limits_for(model.info, batch=bench.batch, **bench.limits)
    engine = LocalEngine(model, limits, calibration=Calibration())
    engine.start()
    await engine.wait_ready()
    try:
        yield engine
    finally:
        await engine.aclose(30)


async def warm_up(engine: LocalEngine, workload: Workload, seed: int) -> None:
    """A handful of other items: first calls of libraries are not what a run is about."""
    await measure(engine, workload.items(4, seed + 1), Arrivals())


def _engine_figures(before: EngineStats, after: EngineStats, wall: float) -> dict[str, Any]:
    """What the engine did in between. padding: share of the tokens computed that were for nothing.

    busy: share of the wall with a plan in flight.
    """
    plans = after.batches_dispatched - before.batches_dispatched
    tokens = after.tokens_total - before.tokens_total
    padded = after.padded_tokens_total - before.padded_tokens_total
    finished = after.sequences_finished - before.sequences_finished
    return {
        "steps": plans,
        "rows_per_step": round((after.rows_dispatched - before.rows_dispatched) / max(plans, 1), 2),
        "tokens_per_step": round(tokens / max(plans, 1), 1),
        "rows_per_request": round((after.steps_total - before.steps_total) / max(finished, 1), 2),
        "padding": round(padded / max(tokens + padded, 1), 4),
        "busy": round((after.busy_s - before.busy_s) / wall, 4),
        "tokens_per_s": round(tokens / wall),
        "graph_steps": {
            use: after.graph_steps[use] - before.graph_steps.get(use, 0) for use in after.graph_steps
        },
    }
