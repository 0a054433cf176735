"""Expand, score and reveal on an NVIDIA GPU: right, and how long each takes.

Needs torch, triton and numpy.

    PYTHONPATH=.:src python3 -m tests.gpu.sampler_check [--only check,times,heads]

Prints whether the fused kernels agree with plain torch, then tables of times; everything goes to
$OUT/sampler.json as well. Exit status 1 if anything disagrees. About a minute.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from polychoir.kernels import plain_step
from polychoir.kernels.fused.expand import expand
from polychoir.kernels.fused.reveal import reveal
from polychoir.kernels.fused.score import Launch, score
from polychoir.kernels.tables import Row
from tests.gpu.heads_epilogue import heads_and_score, scratch
from tests.support.step_tables import Situation, TestRow, situation

VOCABULARY, MASK, HIDDEN = 1_025, 1_024, 1_024
COPY_GB_S = 4_130.0
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

ROWS: dict[str, list[TestRow]] = {
    "1 x 125": [TestRow(125, prefix=24, masked=1.0, reveal=30)],
    "8 x 125": [TestRow(125, prefix=24, masked=1.0, reveal=30)] * 8,
    "32 x 125": [TestRow(125, prefix=24, masked=1.0, reveal=30)] * 32,
    "16 of 50-375": [
        TestRow(50 + 325 * index // 15, prefix=30, masked=1.0, reveal=40 + index) for index in range(16)
    ],
    "1 x 3000": [TestRow(3_000, prefix=100, masked=1.0, reveal=700)],
}
MIXED = [
    TestRow(1, masked=1.0, reveal=3),
    TestRow(125, class_temperature=0.8, prefix=60, reveal=100),
    TestRow(90, position_temperature=0.0, guidance=0.0, layer_penalty=0.0),
    TestRow(300, class_temperature=50.0, position_temperature=0.3, reveal=500),
    TestRow(5, masked=0.0),
    TestRow(600, masked=1.0, reveal=4_800),
    TestRow(1_700, masked=0.8, reveal=1_000),
    TestRow(7, reveal=0),
]


def run_fused(s: Situation) -> None:
    expand(s.step, s.slots, s.source, s.position, s.cell_row)
    score(s.logits, s.step, s.slots, s.source, s.cell_row, s.token, s.score, MASK)
    reveal(s.step, s.slots, s.source, s.token, s.score, MASK)


def run_plain(s: Situation) -> None:
    plain_step.expand(s.step, s.slots, s.source, s.position, s.cell_row)
    plain_step.score(s.logits, s.step, s.slots, s.source, s.cell_row, s.token, s.score, MASK)
    plain_step.reveal(s.step, s.slots, s.source, s.token, s.score, MASK)


def compare(s: Situation) -> dict[str, Any]:
    """What differs between fused and plain. Scores and tokens may differ where rounding decides."""
    left, right = s.copy(), s.copy()
    run_fused(left)
    run_plain(right)
    here = slice(0, s.positions)
    sound = right.slots.sound[s.step.rows[right.cell_row[here].long(), Row.SLOT].long()] != 0
    live = (right.score[here] > -math.inf) & sound[:, None]
    exact = (
        torch.equal(left.source, right.source)
        and torch.equal(left.position, right.position)
        and torch.equal(left.cell_row, right.cell_row)
        and torch.equal(left.slots.sound, right.slots.sound)
        and torch.equal((left.score[here] > -math.inf) & sound[:, None], live)
        and torch.equal(left.token[s.positions :], s.token[s.positions :])
        and bool(left.score[s.positions :].isnan().all())
    )
    # Selection itself is exact: from the same scores and tokens the same arena.
    again = s.copy()
    for name in ("source", "token", "score"):
        getattr(again, name).copy_(getattr(right, name))
    again.slots.sound.copy_(right.slots.sound)
    reveal(again.step, again.slots, again.source, again.token, again.score, MASK)
    return {
        "exact_parts": exact,
        "reveal_exact": torch.equal(again.slots.arena, right.slots.arena),
        "score_error": float((left.score[here][live] - right.score[here][live]).abs().max()),
        "tokens_differing": int((left.token[here][live] != right.token[here][live]).sum()),
        "arena_differing": int((left.slots.arena != right.slots.arena).sum()),
        "cells": int(live.sum()),
    }


def good(found: dict[str, Any]) -> bool:
    few = max(1, found["cells"] // 1_000)
    return bool(
        found["exact_parts"]
        and found["reveal_exact"]
        and found["score_error"] < 1e-4
        and found["tokens_differing"] <= few
        and found["arena_differing"] <= 2 * few
    )


def check() -> dict[str, Any]:
    results: dict[str, Any] = {}
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        for seed in range(3):
            s = situation(
                MIXED,
                torch.Generator().manual_seed(seed),
                vocabulary=VOCABULARY,
                dtype=dtype,
                spare=300,
                capacity=256,
                device="cuda",
            )
            results[f"mixed {name} {seed}"] = compare(s)
        s.logits[200:203] = math.nan
        results[f"broken rows {name}"] = compare(s)
        s.logits.fill_(0.25)
        results[f"ties {name}"] = compare(s)
    for name, found in results.items():
        found["good"] = good(found)
        print(
            f"{'ok  ' if found['good'] else 'FAIL'} {name:24} score error {found['score_error']:.1e}; "
            f"of {found['cells']}: {found['tokens_differing']} tokens, {found['arena_differing']} codes off"
        )
    return results


def microseconds(call: Callable[[], None], repeats: int = 40) -> float:
    """Median time of a call inside a CUDA graph of `repeats` of them."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            call()
    times = []
    for _ in range(7):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1_000 / repeats)
    return statistics.median(times)


def eager_milliseconds(call: Callable[[], None]) -> float:
    times = []
    for _ in range(5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def in_bucket(rows: Sequence[TestRow]) -> Situation:
    """Tables with as many positions as tokens, as a bucket has them; bf16 logits."""
    tokens = sum(2 * row.frames + row.prefix for row in rows)
    spare = tokens - sum(row.frames for row in rows)
    return situation(
        rows,
        torch.Generator().manual_seed(0),
        vocabulary=VOCABULARY,
        dtype=torch.bfloat16,
        spare=spare,
        capacity=256,
        device="cuda",
    )


def times() -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, rows in ROWS.items():
        s = in_bucket(rows)
        run_fused(s.copy())
        expand(s.step, s.slots, s.source, s.position, s.cell_row)
        found: dict[str, Any] = {"positions": s.positions}
        found["expand"] = microseconds(lambda s=s: expand(s.step, s.slots, s.source, s.position, s.cell_row))
        for launch in (
            Launch(2_048, 1),
            Launch(4_096, 1),
            Launch(16_384, 1),
            Launch(2_048, 2),
            Launch(2_048, 4),
        ):
            found[f"score {launch.programs}/{launch.warps}"] = microseconds(
                lambda s=s, launch=launch: score(
                    s.logits, s.step, s.slots, s.source, s.cell_row, s.token, s.score, MASK, launch
                )
            )
        warm = in_bucket([replace(row, class_temperature=1.0) for row in rows])
        expand(warm.step, warm.slots, warm.source, warm.position, warm.cell_row)
        found["score with class temperature"] = microseconds(
            lambda s=warm: score(s.logits, s.step, s.slots, s.source, s.cell_row, s.token, s.score, MASK)
        )
        for tile, warps in ((1_024, 4), (1_024, 8), (2_048, 8), (4_096, 8), (4_096, 16)):
            found[f"reveal {tile}/{warps}"] = microseconds(
                lambda s=s, tile=tile, warps=warps: reveal(
                    s.step, s.slots, s.source, s.token, s.score, MASK, tile=tile, warps=warps
                )
            )
        found["plain, eager"] = 1_000 * eager_milliseconds(lambda s=s: run_plain(s.copy()))
        results[name] = found
        nbytes = s.positions * 8 * VOCABULARY * 2
        print(f"\n{name}: {s.positions} positions, {nbytes / 1e6:.1f} MB of logits")
        for what, value in found.items():
            if what == "positions":
                continue
            share = nbytes / value / 1e3
            roof = f"{share:8.0f} GB/s {100 * share / COPY_GB_S:4.0f} %" if what.startswith("score") else ""
            print(f"  {what:30} {value:9.2f} us {roof}")
    return results


TILES = (
    ((64, 64, 128), 4, 4, 8),
    ((64, 128, 64), 4, 4, 8),
    ((64, 128, 64), 4, 4, 2),
    ((128, 128, 64), 8, 3, 2),
    ((128, 128, 64), 8, 3, 1),
    ((128, 128, 64), 8, 4, 1),
    ((128, 256, 64), 8, 3, 1),
)
"""Tile, warps, stages, shares of the vocabulary."""


def heads() -> dict[str, Any]:
    results: dict[str, Any] = {}
    weight = torch.randn(8 * VOCABULARY, HIDDEN, device="cuda").mul_(0.03).bfloat16()
    for name in ("1 x 125", "8 x 125", "32 x 125"):
        s = in_bucket(ROWS[name])
        expand(s.step, s.slots, s.source, s.position, s.cell_row)
        states = torch.randn(s.logits.shape[0], HIDDEN, device="cuda").bfloat16()
        count = s.positions

        def apart(s: Situation = s, states: torch.Tensor = states) -> None:
            logits = torch.nn.functional.linear(states, weight)
            score(logits, s.step, s.slots, s.source, s.cell_row, s.token, s.score, MASK)

        def linear(states: torch.Tensor = states[:count]) -> None:
            torch.nn.functional.linear(states, weight)

        found = {
            "linear, real positions": microseconds(linear, 10),
            "linear + score, bucket": microseconds(apart, 10),
        }
        wanted = s.copy()
        score(
            torch.nn.functional.linear(states.float(), weight.float()),
            s.step,
            s.slots,
            s.source,
            s.cell_row,
            wanted.token,
            wanted.score,
            MASK,
        )
        for tile, warps, stages, shares in TILES:
            label = f"in one {'x'.join(map(str, tile))} w{warps} s{stages} shares {shares}"
            partial = scratch(states.shape[0], 8, shares, "cuda")

            def together(
                s: Situation = s,
                states: torch.Tensor = states,
                partial: torch.Tensor = partial,
                tile: tuple[int, int, int] = tile,
                warps: int = warps,
                stages: int = stages,
            ) -> None:
                heads_and_score(
                    states,
                    weight,
                    s.step,
                    s.slots,
                    s.source,
                    s.cell_row,
                    s.token,
                    s.score,
                    partial,
                    tile,
                    warps,
                    stages,
                )

            try:
                found[label] = microseconds(together, 10)
                error = (s.score[:count] - wanted.score[:count]).abs().max()
                found[f"{label}: score error"] = float(error)
            except Exception:  # one configuration that a card refuses must not lose the others' figures
                traceback.print_exc()
        results[name] = found
        print(f"\nheads, {name}: {count} positions in a bucket of {states.shape[0]}")
        for what, value in found.items():
            print(f"  {what:52} {value:10.3g}" if "error" in what else f"  {what:52} {value:10.2f} us")
    return results


PARTS: dict[str, Callable[[], dict[str, Any]]] = {"check": check, "times": times, "heads": heads}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS))
    wanted = parser.parse_args().only.split(",")
    torch.backends.cuda.matmul.allow_tf32 = False
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    failed = False
    for name in wanted:
        try:
            results[name] = PARTS[name]()
        except Exception:  # a part that breaks is reported; the others still run
            traceback.print_exc()
            failed = True
    out = Path(os.environ.get("OUT", ".")) / "sampler.json"
    out.write_text(json.dumps(results, indent=1))
    failed |= not all(found["good"] for found in results.get("check", {}).values())
    print("FAILED" if failed else "all agree", "-", out)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
