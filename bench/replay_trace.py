"""A seeded trace of the online mix through the real engine, to hold the simulator's predictions against.

    PYTHONPATH=.:src:SITE python3 bench/replay_trace.py [--loads 0.3,0.6,0.9] [--seconds 25]

Listeners arrive at random; requests are cut into a first chunk of 1.5 s and pieces of 5 s; 30 % are clones.
Load is offered work over the pace at the knee of the curve measured at this start. Prints a table and saves
$OUT/replay.json: the curve, and of each request its arrival, its chunks' work, and when they came.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from polychoir.bench.engine import Bench, prepare, running, warm_up
from polychoir.bench.workloads import NAMED, Item
from polychoir.engine.cost import StepCost
from polychoir.engine.engine import LocalEngine
from polychoir.errors import Overloaded
from polychoir.types import Chunk, ModelOptions, Terms
from tests.support.checkpoint import FULL, build

FIRST_S, CHUNK_S, TARGET_S = 1.5, 5.0, 0.3


def request(draw: random.Random, engine: LocalEngine, seed: int) -> list[Chunk]:
    """Its chunks, with the work that the model's own text side gives them."""
    low, high = draw.choices(((1.5, 4), (4, 12), (12, 60)), (0.5, 0.35, 0.15))[0]
    left, kind = draw.uniform(low, high), "clone" if draw.random() < 0.3 else "speech"
    pieces: list[float] = []
    while left > 0.5 or not pieces:
        pieces.append(min(left, CHUNK_S if pieces else FIRST_S))
        left -= pieces[-1]
    return [
        replace(
            prepare(engine.model, Item(kind, round(piece, 2), seed * 100 + index)).chunks[0],  # type: ignore[arg-type]
            index=index,
            estimated_s=piece,
        )
        for index, piece in enumerate(pieces)
    ]


async def speak(engine: LocalEngine, chunks: list[Chunk], at: float, started: float) -> dict[str, Any]:
    await asyncio.sleep(max(0.0, started + at - time.perf_counter()))
    asked = time.perf_counter()
    record: dict[str, Any] = {
        "at": round(asked - started, 6),
        "chunks": [(c.work.tokens, c.work.steps, c.work.squares, round(c.estimated_s, 3)) for c in chunks],
    }
    try:
        stream = await engine.submit(chunks, Terms("interactive"))
    except Overloaded as refusal:
        return record | {"refused": refusal.retry_after_s}
    ends = {}
    async with stream:
        async for audio in stream:
            ends[audio.index] = round(time.perf_counter() - asked, 5)
    return record | {"ends": [ends[index] for index in range(len(chunks))]}


def good(record: dict[str, Any]) -> bool:
    """Heard within the target, and never silent after that."""
    if "ends" not in record or record["ends"][0] > TARGET_S:
        return False
    heard = record["ends"][0]
    for (*_, seconds), end in zip(record["chunks"], record["ends"], strict=True):
        if end > heard + 1e-9:
            return False
        heard += seconds
    return True


async def replay(engine: LocalEngine, cost: StepCost, load: float, seconds: float) -> dict[str, Any]:
    draw = random.Random(round(load * 100))
    sample = [request(draw, engine, number) for number in range(200)]
    work = statistics.mean(
        sum(cost.weight(c.work) * (c.work.steps or 0) for c in chunks) for chunks in sample
    )
    rate, at, arrivals = load * cost.pace(cost.knee) / work, 0.0, []
    while (at := at + draw.expovariate(rate)) < seconds:
        arrivals.append((at, request(draw, engine, len(arrivals))))
    started = time.perf_counter()
    records = await asyncio.gather(*(speak(engine, chunks, at, started) for at, chunks in arrivals))
    firsts = sorted(record["ends"][0] for record in records if "ends" in record)
    figures = {
        "load": load,
        "requests": len(records),
        "ttfa_p50_ms": round(1e3 * firsts[len(firsts) // 2], 1),
        "ttfa_p95_ms": round(1e3 * firsts[int(0.95 * len(firsts))], 1),
        "ttfa_p99_ms": round(1e3 * firsts[int(0.99 * len(firsts))], 1),
        "goodput": round(sum(map(good, records)) / len(records), 4),
        "refused": round(sum("refused" in record for record in records) / len(records), 4),
    }
    print(figures, flush=True)
    return figures | {"records": records}


async def all_of_it(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    options = ModelOptions(name="omnivoice", device="cuda", dtype="bfloat16", max_num_seqs=256)
    async with running(Bench(str(folder), options, limits={"max_num_seqs": 256})) as engine:
        await warm_up(engine, NAMED["mixed"], 1)
        core = engine._loop._core
        assert core is not None
        measured = core.scheduler.cost
        print(measured, "knee", measured.knee, flush=True)
        runs = [await replay(engine, measured, float(load), args.seconds) for load in args.loads.split(",")]
        return {"curve": asdict(measured), "refined": asdict(core.scheduler.cost), "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loads", default="0.3,0.6,0.9")
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp())
    if not (folder / "config.json").exists():
        build(folder, FULL, device="cuda")
    found = asyncio.run(all_of_it(folder, args))
    out = Path(os.environ.get("OUT", "."))
    (out / "replay.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
