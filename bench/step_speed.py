"""How long one step takes on a GPU, and where the time goes: full-size random weights, no engine around it.

    PYTHONPATH=.:src python3 bench/step_speed.py [--modes eager graph triton hybrid] [--rows 1 4 8 16 32 64]

Rows are those of auto-voice requests of 5 s (149 conditional, 125 unconditional tokens) or, with --clone,
of 5 s with a reference of 5 s (291 and 125). Prints for each mode the time of a step, the seconds of audio it
makes in a second when a request has 32 steps (tokens alone, no decoding), the share of the measured
roofline, and the device time by kind of kernel. Needs torch, and triton for two of the modes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from polychoir.models.omnivoice.config import OmniVoiceConfig, parse_config
from polychoir.models.omnivoice.network import Layer, Weights
from polychoir.models.omnivoice.row import OmniVoiceRow
from polychoir.models.omnivoice.timetable import timetable
from polychoir.runner.modes import make_step, resolve_mode
from polychoir.runner.slots import Slot, SlotTable
from polychoir.types import VoicePrompt

LLM = {
    "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151_676,
}  # fmt: skip
STEPS, SECONDS, FRAME_RATE, TEXT = 32, 5.0, 25, 24
ROOFLINE = {False: 474.0, True: 306.0}
"""Audio-s/s of 5 s requests at the ceilings measured on an H200, tokens alone: auto, clone (bf16)."""
KINDS = (
    ("attention", ("flash", "fmha", "attend", "attention", "sdpa")),
    ("matrix products", ("gemm", "nvjet", "cutlass", "cublas", "splitk", "matmul", "linear", "sm90_xmma")),
    ("sampler", ("score", "reveal", "combine", "expand", "sort", "topk", "softmax", "philox")),
    ("copies", ("memcpy", "memset")),
)


def random_weights(config: OmniVoiceConfig, dtype: torch.dtype, device: torch.device) -> Weights:
    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=dtype) * 0.02

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, device=device, dtype=dtype)

    hidden, wide = config.hidden, config.intermediate
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    layers = tuple(
        Layer(ones(hidden), draw(queries + 2 * keys, hidden), ones(config.head_dim), ones(config.head_dim),
              draw(hidden, queries), ones(hidden), draw(2 * wide, hidden), draw(hidden, wide))
        for _ in range(config.layers)
    )  # fmt: skip
    audio = config.codebooks * config.audio_vocabulary
    return Weights(
        draw(config.text_vocabulary, hidden), draw(audio, hidden), draw(audio, hidden), ones(hidden), layers
    )


def make_row(seed: int, clone: bool) -> OmniVoiceRow:
    frames = int(SECONDS * FRAME_RATE)
    reference = VoicePrompt(b"\1\0" * 8 * frames, 8, frames, "") if clone else None
    return OmniVoiceRow(
        text_ids=tuple(range(100, 100 + TEXT + 17 * clone)),
        target_frames=frames,
        timetable=timetable(frames, STEPS, 0.1),
        guidance_scale=2.0,
        position_temperature=5.0,
        class_temperature=0.0,
        layer_penalty_factor=5.0,
        seed=seed,
        prompt=reference,
        ref_frames=frames if clone else 0,
    )


def time_steps(step: Any, slots: list[Slot], repeats: int) -> tuple[float, float]:
    """Median device seconds of a step, and seconds the host needs to queue one."""
    taken, host = [], []
    for number in range(-3, repeats):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started = time.perf_counter()
        before.record()
        for index in range(4):
            step.run(slots, [(4 * number + index) % STEPS] * len(slots))
        after.record()
        queued = time.perf_counter() - started
        after.synchronize()
        if number >= 0:
            taken.append(before.elapsed_time(after) / 4e3)
            host.append(queued / 4)
    return statistics.median(taken), statistics.median(host)


def split_of_a_step(step: Any, slots: list[Slot]) -> dict[str, float]:
    """Device milliseconds of one step by kind of kernel, and between kernels."""
    from torch.profiler import ProfilerActivity, profile

    runs = 5
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        for number in range(runs):
            step.run(slots, [number] * len(slots))
        torch.cuda.synchronize()
    kernels = [event for event in seen.events() if str(event.device_type).endswith("CUDA")]
    found: dict[str, float] = defaultdict(float)
    for event in kernels:
        name = event.name.lower()
        kind = next((kind for kind, words in KINDS if any(word in name for word in words)), "pointwise")
        found[kind] += event.time_range.elapsed_us() / 1e3 / runs
    span = max(e.time_range.end for e in kernels) - min(e.time_range.start for e in kernels)
    found["gaps"] = span / 1e3 / runs - sum(found.values())
    found["kernels"] = len(kernels) / runs
    return dict(found)


def most_expensive(step: Any, slots: list[Slot], count: int) -> list[tuple[str, float, float]]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step.run(slots, [0] * len(slots))
        torch.cuda.synchronize()
    averages = sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)[:count]
    return [(e.key[:90], e.self_device_time_total / 1e3, float(e.count)) for e in averages]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modes", nargs="*", default=["eager", "graph", "triton", "hybrid"])
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 4, 8, 16, 32, 64])
    parser.add_argument("--clone", action="store_true")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--profile", nargs="*", type=int, default=[1, 8, 32], help="rows whose time is split")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    device = torch.device("cuda")
    config = parse_config({"model_type": "omnivoice", "llm_config": LLM}, "here")
    weights = random_weights(config, getattr(torch, args.dtype), device)
    largest = max(8_192, max(args.rows) * make_row(0, args.clone).tokens)
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "dtype": args.dtype,
        "clone": args.clone, "steps": [],
    }  # fmt: skip
    for mode in args.modes:
        slots = SlotTable(
            codebooks=8, mask_id=config.mask_id, limit=256, tokens=1 << 18, longest=8_192, device=device
        )
        started = time.perf_counter()
        step = make_step(
            resolve_mode(mode, device), config, weights, slots,
            max_rows=256, largest=largest, utilization=0.9,
        )  # fmt: skip
        torch.cuda.synchronize()
        print(f"{mode}: warm after {time.perf_counter() - started:.1f} s", flush=True)
        for count in args.rows:
            seated = [slots.seat(n, make_row(n, args.clone), 0) for n in range(count)]
            codes = torch.zeros(8, 125, dtype=torch.int16).numpy() if args.clone else None
            slots.upload([(slot, codes) for slot in seated])
            seconds, host = time_steps(step, seated, 12)
            audio = count * SECONDS / STEPS / seconds
            found = {
                "mode": mode, "rows": count, "tokens": sum(s.row.tokens for s in seated),
                "step_ms": round(seconds * 1e3, 3), "host_ms": round(host * 1e3, 3),
                "audio_s_per_s": round(audio, 1), "roofline": round(audio / ROOFLINE[args.clone], 3),
            }  # fmt: skip
            if count in args.profile:
                found["split_ms"] = {k: round(v, 3) for k, v in split_of_a_step(step, seated).items()}
            report["steps"].append(found)
            print("  " + json.dumps(found), flush=True)
            if count == max(args.profile):
                for name, ms, calls in most_expensive(step, seated, 14):
                    print(f"      {ms:8.3f} ms x{calls:5.0f} {name}")
            for n in range(count):
                slots.drop(n)
        step.close()
        torch.cuda.empty_cache()
    out = Path(os.environ.get("OUT", tempfile.gettempdir()))
    (out / f"step_speed{'_clone' if args.clone else ''}.json").write_text(json.dumps(report, indent=1))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
