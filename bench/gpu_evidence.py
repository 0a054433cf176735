"""The figures of docs/benchmarks.md: OmniVoice of the true size on one GPU, through the real engine.

    PYTHONPATH=.:src:SITE python3 bench/gpu_evidence.py [--only goals,package,...] [--seconds 10]

Random weights in the published layout (timing does not depend on weights). Beside it, in the same run, the
published package's own `generate` in float16. Needs the package and what it reads with on the path, and
polychoir installed or its wheel on the path, so that its models are found. Saves $OUT/evidence.json after
every section and prints one line of JSON last.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from polychoir.bench.engine import Bench, measure, prepare, running, sweep, warm_up
from polychoir.bench.report import table
from polychoir.bench.workloads import NAMED, Arrivals, Item, Workload
from polychoir.types import ModelOptions
from tests.support.checkpoint import FULL, build

ROOFLINE = {"auto5": 474.0, "auto10": 468.0, "clone5": 306.0}
"""Tokens alone, bf16, at the ceilings measured on an H200."""
REPORT: dict[str, Any] = {}


def bench_of(folder: Path, args: argparse.Namespace, **extra: Any) -> Bench:
    options = ModelOptions(
        name="omnivoice", device="cuda", dtype=args.dtype, max_num_seqs=256,
        extra={"runner_mode": args.mode, "max_num_batched_tokens": args.tokens},
    )  # fmt: skip
    return Bench(
        str(folder), options, limits={"max_num_batched_tokens": args.tokens, "max_num_seqs": 256}, **extra
    )


def goals(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Throughput of each kind of load, the latency of one request, and latency at 70 % of capacity."""

    async def all_of_it() -> dict[str, Any]:
        found: dict[str, Any] = {}
        started = time.perf_counter()
        async with running(bench_of(folder, args)) as engine:
            found["ready_s"] = round(time.perf_counter() - started, 2)
            await warm_up(engine, NAMED["mixed"], 1)
            for name, count in (
                ("auto5", 400), ("auto10", 200), ("clone5", 300), ("mixed", 250), ("items3-10", 320),
                ("auto1", 800),
            ):  # fmt: skip
                load = NAMED[name]
                # Continuous arrivals: as many in flight as a server lets in, one comes when one goes.
                arrivals = Arrivals(concurrency=96) if name in ("items3-10", "mixed") else Arrivals()
                found[name] = await measure(engine, load.items(count), arrivals)
                if name in ROOFLINE:
                    found[name]["roofline"] = round(found[name]["asked_s_per_s"] / ROOFLINE[name], 3)
                print(f"{name}\n{table(found[name])}", flush=True)
            for name in ("auto5", "clone5", "auto10"):
                found[f"one {name}"] = await measure(engine, NAMED[name].items(12), Arrivals(concurrency=1))
                print(f"one {name}: {found[f'one {name}']['latency_s']['all']}", flush=True)
            found["one auto5 split"] = await split(engine)
            print("one auto5:", found["one auto5 split"])
            rate = 0.7 * found["auto5"]["completed_per_s"]
            load = NAMED["auto5"].items(int(rate * args.seconds))
            found["auto5 at 70 %"] = await measure(engine, load, Arrivals(rate=rate, poisson=True))
            print(f"auto5 at 70 % ({rate:.1f}/s)\n{table(found['auto5 at 70 %'])}", flush=True)
            rate = 0.7 * found["mixed"]["completed_per_s"]
            load = NAMED["poisson"].items(int(rate * args.seconds))
            found["poisson"] = await measure(engine, load, Arrivals(rate=rate, poisson=True))
            print(f"poisson, all kinds mixed ({rate:.1f}/s)\n{table(found['poisson'])}", flush=True)
            found["poisson saturated"] = await measure(
                engine, NAMED["poisson"].items(300), Arrivals(concurrency=96)
            )
            print(f"poisson kinds, saturated\n{table(found['poisson saturated'])}", flush=True)
        return found

    return asyncio.run(all_of_it())


async def split(engine: Any) -> dict[str, float]:
    """Where the seconds of one request go, median of 9, alone in the house."""
    seen: dict[str, list[float]] = {"queue_s": [], "run_s": [], "decode_s": [], "all_s": []}
    for item in NAMED["auto5"].items(9):
        prepared = prepare(engine.model, item)
        started = time.perf_counter()
        async with await engine.submit(prepared.chunks) as stream:
            async for audio in stream:
                for name in ("queue_s", "run_s", "decode_s"):
                    seen[name].append(getattr(audio, name))
        seen["all_s"].append(time.perf_counter() - started)
    return {name: round(statistics.median(values), 5) for name, values in seen.items()}


def batching(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """What batching buys: wall(n) of n requests at once, and the same load with and without it."""
    load = NAMED["auto5"]
    found: dict[str, Any] = {"sweep": sweep(bench_of(folder, args), load, (1, 2, 4, 8, 16, 32, 64))}
    alone = found["sweep"][0]["wall_s"]
    for figures in found["sweep"]:
        print(f"wall({figures['n']}) / wall(1) = {figures['wall_s'] / alone:.2f}", flush=True)

    async def without() -> dict[str, Any]:
        async with running(bench_of(folder, args, batch=False)) as engine:
            await warm_up(engine, load, 1)
            return await measure(engine, NAMED["mixed"].items(24), Arrivals())

    found["no batch, mixed"] = asyncio.run(without())
    print(f"--no-batch, mixed\n{table(found['no batch, mixed'])}")
    return found


def memory(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Resident memory of the process and the device's, after each tenth of many requests."""
    import psutil

    async def all_of_it() -> dict[str, Any]:
        found: dict[str, Any] = {}
        async with running(bench_of(folder, args)) as engine:
            await warm_up(engine, NAMED["mixed"], 1)
            mixed = Workload("mixed", NAMED["mixed"].lengths, {"speech": 0.8, "clone": 0.2})
            short = Workload("short", NAMED["auto1"].lengths, {"speech": 1.0}, (4,))
            for name, load, count in (
                ("2,000 mixed, 32 steps", mixed, 2_000),
                ("10,000 short, 4 steps", short, 10_000),
            ):
                items = load.items(count)
                seen = []
                for tenth in range(10):
                    part: list[Item] = items[tenth * count // 10 : (tenth + 1) * count // 10]
                    figures = await measure(engine, part, Arrivals(concurrency=128))
                    gc.collect()
                    seen.append({
                        "rss_mb": round(psutil.Process().memory_info().rss / 2**20, 1),
                        "device_mb": round(torch.cuda.memory_allocated() / 2**20, 1),
                        "reserved_mb": round(torch.cuda.memory_reserved() / 2**20, 1),
                        "completed": figures["completed"], "audio_s_per_s": figures["audio_s_per_s"],
                    })  # fmt: skip
                found[name] = seen
                print(name, *seen, sep="\n  ", flush=True)
        return found

    return asyncio.run(all_of_it())


def package(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The published package's own generate, float16, at its best batches."""
    from tests.parity import oracle

    model, found = oracle.load(folder, torch.float16, "cuda"), {}
    for name, seconds, batch in (
        ("auto5", 5.0, 1),
        ("auto5", 5.0, 32),
        ("auto10", 10.0, 16),
        ("mixed", 0.0, 16),
    ):
        items = (
            NAMED["mixed"].items(batch) if not seconds else [Item("speech", seconds, n) for n in range(batch)]
        )
        walls = []
        for steps in (3, 32, 32):
            torch.cuda.synchronize()
            started = time.perf_counter()
            model.generate(
                text=[item.text for item in items], duration=[item.seconds for item in items],
                language="en", num_step=steps, guidance_scale=2.0,
            )  # fmt: skip
            torch.cuda.synchronize()
            walls.append(time.perf_counter() - started)
        wall, audio = min(walls[1:]), sum(item.seconds for item in items)
        found[f"{name} x {batch}"] = {"wall_s": round(wall, 4), "audio_s_per_s": round(audio / wall, 2)}
        print(f"package {name} x {batch}: {wall:.3f} s, {audio / wall:.1f} audio-s/s", flush=True)
    return found


SECTIONS: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
    "goals": goals, "package": package, "batching": batching, "memory": memory,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "gpu_evidence")
    parser.add_argument("--mode", default="hybrid")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, default=8_192)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_grad_enabled(False)
    folder = build(args.folder / "full", FULL, device="cuda")
    torch.cuda.empty_cache()
    REPORT.update(device=torch.cuda.get_device_name(), torch=torch.__version__, arguments=vars(args))
    out = Path(os.environ.get("OUT", tempfile.gettempdir())) / "evidence.json"
    for name in args.only.split(","):
        started = time.perf_counter()
        try:
            REPORT[name] = SECTIONS[name](folder, args)
        except Exception:
            traceback.print_exc(limit=6)
            REPORT[name] = {"failed": traceback.format_exc(limit=2)[-500:]}
        gc.collect()
        torch.cuda.empty_cache()
        print(f"[{name} {time.perf_counter() - started:.0f} s]", flush=True)
        out.write_text(json.dumps(REPORT, indent=1, default=str))
    print(json.dumps(REPORT, default=str))


if __name__ == "__main__":
    main()
