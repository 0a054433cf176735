"""The backbone's kernels on an NVIDIA GPU: right, how long each takes, and what else was tried.

Needs torch, triton and numpy.

    PYTHONPATH=.:src python3 -m tests.gpu.kernel_check [--only check,times,products,attention] [--compile]

Correctness is on fresh random inputs with unwritten memory filled with not-a-number. Then tables of times in
bf16; everything goes to $OUT/kernels.json as well. Exit status 1 if anything disagrees or breaks.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.gpu import product_trials, rotating_attention
from tests.gpu.cases_backbone import cases
from tests.gpu.kernel_case import (
    CACHE_BYTES,
    DTYPES,
    Compute,
    KernelCase,
    compare,
    microseconds,
)

COPY_GB_S, PRODUCT_TFLOP_S = 4_130.0, 772.0
"""Ceilings measured on an H200: device copy, bf16 matrix product."""


def check() -> dict[str, Any]:
    """Every case in three formats against its plain form."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills unwritten memory with not-a-number
    try:
        return {
            f"{case.name} {str(dtype).removeprefix('torch.')} {seed}": attempt(
                lambda c=case, d=dtype, s=seed: report_on(c, d, s)
            )
            for case in cases()
            for dtype in DTYPES
            for seed in range(2)
        }
    finally:
        torch.use_deterministic_algorithms(False)


def report_on(case: KernelCase, dtype: torch.dtype, seed: int) -> dict[str, Any]:
    found = compare(case, dtype, seed, torch.device("cuda"))
    if not found.good:
        print(f"FAIL {case.name} {dtype} {found}", flush=True)
    return asdict(found)


def times(compiled: bool) -> dict[str, Any]:
    return {case.name: attempt(lambda c=case: time_case(c, compiled)) for case in cases()}


def time_case(case: KernelCase, compiled: bool) -> dict[str, Any]:
    generator, device = torch.Generator("cuda").manual_seed(0), torch.device("cuda")
    first = case.make(generator, device, torch.bfloat16)
    size = sum(x.nbytes for x in first)
    turns = min(14, max(2, -(-CACHE_BYTES // size)))
    inputs = [first, *(case.make(generator, device, torch.bfloat16) for _ in range(turns - 1))]
    found: dict[str, Any] = {"us": timed(case.fused, inputs)}
    for name, other in case.others.items():
        found[name] = attempt(lambda o=other: timed(o, inputs))
    if not case.flops:  # plain attention sets up index tensors and cannot be captured
        found["plain"] = timed(case.plain, inputs)
    if compiled and case.compiles:
        # Several sizes of one function: each is to have code of its own, as the fused one does.
        torch._dynamo.reset()
        found["compiled"] = attempt(lambda: timed(torch.compile(case.plain, dynamic=False), inputs))
    gb_s = case.nbytes / found["us"] / 1e3
    found |= {"gb_s": gb_s, "of_copy": gb_s / COPY_GB_S}
    if case.flops:
        found["tflop_s"] = case.flops / found["us"] / 1e6
    rest = "  ".join(f"{k} {v:.1f}" for k, v in found.items() if isinstance(v, float) and k not in SHOWN)
    products = f"{found['tflop_s']:4.0f} TFLOP/s" if case.flops else ""
    print(
        f"{case.name:22}{found['us']:8.2f} us {100 * found['of_copy']:4.0f} % {products}  {rest}", flush=True
    )
    return found


SHOWN = {"us", "gb_s", "of_copy", "tflop_s"}


def timed(compute: Compute, inputs: list[tuple[Tensor, ...]]) -> float:
    return microseconds([lambda x=x: compute(*x) for x in inputs])


def attempt(call: Callable[[], Any]) -> Any:
    """Its result; or the error in words, so that one that breaks does not lose the others' figures."""
    try:
        return call()
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"[:300]


def main() -> int:
    parts = ("check", "times", "products", "attention")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(parts))
    parser.add_argument(
        "--compile", action="store_true", help="time torch.compile of the plain forms as well"
    )
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    run: dict[str, Callable[[], Any]] = {
        "check": check,
        "times": lambda: times(args.compile),
        "products": lambda: product_trials.run(attempt),
        "attention": lambda: rotating_attention.run(attempt),
    }
    report: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    target = Path(os.environ.get("OUT", tempfile.gettempdir())) / "kernels.json"
    for name in args.only.split(","):
        started = time.perf_counter()
        report[name] = attempt(run[name])
        torch.cuda.synchronize()
        print(f"-- {name}: {time.perf_counter() - started:.0f} s", flush=True)
        target.write_text(json.dumps(report, indent=1))
    # Only what the product uses must agree: a trial that a card refuses is no more than a figure less.
    broken = [name for name in run if isinstance(report.get(name), str)]
    checked = report.get("check", {}) if "check" not in broken else {}
    broken += [name for name, found in checked.items() if isinstance(found, str) or not found["good"]]
    print(f"{len(checked)} comparisons; broken: {', '.join(broken) or 'none'} - {target}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
