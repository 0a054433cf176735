"""The whole server under the loads of docs/benchmarks.md: HTTP, worker process, device.

    PYTHONPATH=.:src:SITE python3 bench/server_evidence.py [--folder CHECKPOINT] [-- FLAGS OF SERVE]
    PYTHONPATH=.:src python3 bench/server_evidence.py --small --requests 12 --rate 20     # on any CPU

Starts `polychoir serve` on random weights of the published size (timing does not depend on weights) or on
the checkpoint in --folder, sends it each load by `polychoir bench serve`, which runs in a process of its own,
and stops it. Eight requests of every kind go before and are not counted. Saves $OUT/server.json after every
load, the server's own words in $OUT/server.log, and prints one table and one line of JSON last; status 1 if a
load could not be run or a request failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

READY_S, LOAD_S, STOP_S = 150.0, 120.0, 30.0
OUT = Path(os.environ.get("OUT", tempfile.gettempdir()))
POLYCHOIR = (sys.executable, "-m", "polychoir")


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent. rate: a second, None: all at once. peer: what the server before this made of it, on the
    same kind of card (docs/benchmarks.md)."""

    name: str
    workload: str
    requests: int
    rate: float | None
    peer: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        pace = () if self.rate is None else ("--rate", str(self.rate))
        return ("--workload", self.workload, "--requests", str(self.requests), *pace)


WARM_UP = (
    Load("warm-up", "older_mixed", 4, None),
    Load("warm-up, designs", "older_short", 2, None),
    Load("warm-up, clones", "clone5", 2, None),
)
LOADS = (
    Load("older_short", "older_short", 1_000, 100, "27.9/s, mean 13.7 s, p99 25.7 s"),
    Load("older_mixed", "older_mixed", 1_000, 100),
    Load("auto 5 s", "auto5", 200, 100, "14.8/s, mean 6.4 s, p99 11.5 s"),
    Load("mixed 2-15 s", "mixed", 200, 100, "5.8/s, mean 17.9 s, p99 32.5 s"),
    Load("clone 5 s", "clone5", 200, 20),
    Load("32 short at once", "older_short", 32, None, "17/s, mean 1.43 s"),
)
COUNTERS = (
    "steps", "batches_dispatched", "tokens", "padded_tokens", "graph_hits", "graph_misses", "graph_skipped",
    "prompt_cache_hits", "prompt_cache_misses",
)  # fmt: skip


def build(folder: Path, *, small: bool, device: str) -> Path:
    """Random weights, drawn in a process of its own: this one holds no memory of a device."""
    size = [] if small else ["--full"]
    command = [sys.executable, "-m", "tests.support.checkpoint", str(folder), *size, "--device", device]
    subprocess.run(command, check=True, timeout=READY_S)
    return folder


@contextmanager
def serving(checkpoint: Path, device: str, flags: Sequence[str]) -> Iterator[str]:
    """A server from its start to its drained end; gives its base URL once it is ready."""
    with tempfile.TemporaryDirectory() as data, (OUT / "server.log").open("wb") as log:
        command = [
            *POLYCHOIR, "serve", f"omnivoice={checkpoint}", "--device", device, "--port", "0",
            "--data-dir", data, *flags,
        ]  # fmt: skip
        said = OUT / "server.out"
        with said.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=log) as process:
            try:
                yield _address(process, said)
            finally:
                _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _address(process: subprocess.Popen[bytes], said: Path) -> str:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        for line in said.read_text(encoding="utf-8").splitlines():
            if "ready at" in line:
                return line.rpartition(" ")[2]
        time.sleep(0.05)
    words = (OUT / "server.log").read_text(encoding="utf-8", errors="replace")[-2_000:]
    raise SystemExit(f"the server did not become ready in {READY_S:.0f} s:\n{words}")


def counters(url: str) -> dict[str, float]:
    """The engine's counters as /metrics has them."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(found[f'polychoir_{name}_total{{model="omnivoice"}}']) for name in COUNTERS}


def run(url: str, load: Load) -> dict[str, Any]:
    """The figures of `polychoir bench serve`, and of the engine meanwhile; or why there are none."""
    before, file = counters(url), OUT / "load.json"
    file.unlink(missing_ok=True)
    command = [*POLYCHOIR, "bench", "serve", url, *load.flags, "--json", str(file)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_S, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {LOAD_S:.0f} s"}
    if not file.is_file():
        return {"failed": done.stderr[-500:]}
    figures: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return {**figures, "engine": engine_figures(before, counters(url))}


def engine_figures(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any]:
    """padding: share of the tokens computed that were for nothing. A worker that has nothing left to do says
    so at once, so that nothing of a load is missing when its client has ended."""
    new = {name: after[name] - before[name] for name in COUNTERS}
    steps = max(new["batches_dispatched"], 1.0)
    return {
        "steps": int(new["batches_dispatched"]),
        "rows_per_step": round(new["steps"] / steps, 2),
        "tokens_per_step": round(new["tokens"] / steps, 1),
        "padding": round(new["padded_tokens"] / max(new["tokens"] + new["padded_tokens"], 1.0), 4),
        "graphs": {use: int(new[f"graph_{use}"]) for use in ("hits", "misses", "skipped")},
        "clips_known": int(new["prompt_cache_hits"]),
        "clips_encoded": int(new["prompt_cache_misses"]),
    }


def table(loads: Sequence[Load], found: Mapping[str, Mapping[str, Any]]) -> str:
    return "\n".join([
        "| load | done | wall s | req/s | audio-s/s | mean | p50 | p99 s | clone p99 | peer |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(f"| {load.name} | {_cells(found[load.name])} | {load.peer} |" for load in loads),
    ])  # fmt: skip


def _cells(figures: Mapping[str, Any]) -> str:
    if "failed" in figures:
        return str(figures["failed"])
    latency = figures["latency_s"]
    cells = [f"{figures['completed']}/{figures['requests']}", f"{figures['wall_s']:.2f}"]
    cells += [f"{figures[name]:.1f}" for name in ("completed_per_s", "audio_s_per_s")]
    cells += [f"{latency['all'][key]:.3f}" for key in ("mean", "p50", "p99")]
    return " | ".join([*cells, f"{latency['clone']['p99']:.3f}" if "clone" in latency else ""])


def scaled(load: Load, requests: int | None, rate: float | None) -> Load:
    """The load in another size, which no peer was measured with."""
    if requests is None and rate is None:
        return load
    pace = rate if rate is not None and load.rate is not None else load.rate
    return replace(load, requests=requests or load.requests, rate=pace, peer="")


def device_name() -> str:
    if (tool := shutil.which("nvidia-smi")) is None:
        return f"{os.cpu_count()} cores, {platform.machine()}"
    query = [tool, "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="a checkpoint; unset: random weights are drawn")
    parser.add_argument("--small", action="store_true", help="the tests' small checkpoint, on the CPU")
    parser.add_argument("--device", help="cuda, or cpu with --small")
    parser.add_argument("--requests", type=int, help="of every load, instead of its own number")
    parser.add_argument("--rate", type=float, help="of every load that has one")
    parser.add_argument("flags", nargs="*", help="more for `polychoir serve`, after --")
    args = parser.parse_args()
    device = args.device or ("cpu" if args.small else "cuda")
    loads = [scaled(load, args.requests, args.rate) for load in LOADS]
    found: dict[str, dict[str, Any]] = {}
    report: dict[str, Any] = {
        "date": date.today().isoformat(), "device": device_name(), "serve": [device, *args.flags],
        "loads": found,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or build(Path(scratch) / "omnivoice", small=args.small, device=device)
        started = time.monotonic()
        with serving(folder, device, args.flags) as url:
            report["ready_s"] = round(time.monotonic() - started, 2)
            for load in WARM_UP:
                run(url, load)
            for load in loads:
                found[load.name] = run(url, load)
                (OUT / "server.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    print(table(loads, found))
    print(json.dumps(report))
    if not all("failed" not in one and one["completed"] == one["requests"] for one in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
