"""The codec on an NVIDIA GPU: how exact half precision and packing are, how fast, and where the time goes.

    PYTHONPATH=.:src python3 -m tests.gpu.codec_check [encode]

A codec of the true size with random weights. Prints one table and the busiest kernels; JSON goes to
$OUT/codec.json. Every part stands alone: one that fails says so and the others go on. Exit status 1 if a
part failed or an item is off by more than `LARGEST_ERROR` of its level.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polychoir.kernels import plain_codec
from polychoir.models.omnivoice import codec as codec_module
from polychoir.models.omnivoice import packed_decode
from polychoir.models.omnivoice.codec import Codec
from polychoir.models.omnivoice.decoder import Decoder, fold
from polychoir.models.omnivoice.encoder import LAUNCH_FRAMES, SIZES, GraphedEncoder, Launch
from polychoir.models.omnivoice.packed_decode import PackedDecoder
from polychoir.models.omnivoice.postprocess import finish
from polychoir.models.omnivoice.row import OmniVoiceRow, Shaping
from polychoir.runner.booth import Booth, Finished
from polychoir.runner.prompt_cache import PromptCache
from polychoir.types import Chunk, PlannedRow, Samples, StepResult, Work
from tests.support.checkpoint import FULL, _write_codec

FRAME_RATE, FRAME_SAMPLES = 25, 960
LARGEST_ERROR = 0.02
CUDA = torch.device("cuda")
Codes = np.ndarray[Any, np.dtype[np.int16]]
report: dict[str, Any] = {}
failed: list[str] = []


def part(name: str) -> Callable[[Callable[[], Any]], None]:
    """Run it now, print and keep what it returns."""

    def run(function: Callable[[], Any]) -> None:
        started = time.perf_counter()
        try:
            report[name] = function()
        except Exception:
            failed.append(name)
            report[name] = traceback.format_exc()[-2_000:]
        shown = report[name] if isinstance(report[name], str) else json.dumps(report[name])
        print(f"{name:34s} {shown}   ({time.perf_counter() - started:.1f} s)", flush=True)
        torch.cuda.empty_cache()

    return run


def draw(lengths: Sequence[int], seed: int = 0) -> list[Codes]:
    numbers = np.random.default_rng(seed)
    return [numbers.integers(0, 1_024, (8, frames)).astype(np.int16) for frames in lengths]


WORK = {
    "1 x 5 s": [125],
    "8 x 5 s": [125] * 8,
    "32 x 5 s": [125] * 32,
    "16 of 2-15 s": [int(n) for n in np.random.default_rng(1).integers(50, 376, 16)],
}


def noise(seed: int, size: int) -> Samples:
    return np.random.default_rng(seed).normal(0, 0.1, size).astype(np.float32)


def load(folder: Path) -> Codec:
    """The codec; if its encoder cannot be captured, without that, so that the rest is still measured."""
    try:
        started = time.perf_counter()
        codec = Codec(folder, CUDA)
    except RuntimeError:
        failed.append("load")
        report["load"] = traceback.format_exc()[-3_000:]
        print(report["load"], flush=True)
        codec_module.can_pad = lambda model: False  # type: ignore[attr-defined]
        started = time.perf_counter()
        codec = Codec(folder, CUDA)
    report["load_s"] = round(time.perf_counter() - started, 1)
    report["memory_gb"] = round(torch.cuda.memory_reserved() / 2**30, 2)
    return codec


def milliseconds(function: Callable[[], Any], most_s: float = 1.5) -> float:
    """Median of the calls that fit into `most_s`, at least three, after two to warm up."""
    for _ in range(2):
        function()
    torch.cuda.synchronize()
    times: list[float] = []
    while len(times) < 3 or sum(times) < most_s:
        started = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return 1e3 * float(np.median(times))


def speed(decode: Callable[[list[Codes]], Any], names: Sequence[str] = tuple(WORK)) -> dict[str, Any]:
    found = {}
    for name in names:
        items = draw(WORK[name])
        ms = milliseconds(lambda items=items: decode(items))  # type: ignore[misc]
        found[name] = {"ms": round(ms, 2), "audio_s_per_s": round(sum(WORK[name]) / FRAME_RATE / ms * 1e3)}
    return found


def errors(decode: Callable[[list[Codes]], list[Any]], exact: Codec) -> dict[str, float]:
    """Beside float32 one by one: root mean square and worst sample by level of the item, worst of the last
    40 ms, and the same beside the item alone."""
    items = draw((125, 7, 1, 50, 300, 2, 33, 125, 61, 400), seed=3)
    together = decode(items)
    found = {"rms": 0.0, "worst": 0.0, "worst_tail": 0.0, "worst_beside_alone": 0.0}
    for codes, ours in zip(items, together, strict=True):
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # or it would be no float32
            (wave,) = exact._decode_exactly([codes])
        level = float(np.sqrt(np.mean(wave**2)))
        gap = np.abs(ours - wave) / level
        (alone,) = decode([codes])
        found["rms"] = max(found["rms"], float(np.sqrt(np.mean(gap**2))))
        found["worst"] = max(found["worst"], float(gap.max()))
        found["worst_tail"] = max(found["worst_tail"], float(gap[-FRAME_SAMPLES:].max()))
        found["worst_beside_alone"] = max(
            found["worst_beside_alone"], float((np.abs(alone - ours) / level).max())
        )
    return {name: float(f"{value:.2g}") for name, value in found.items()}


def published(model: Any, dtype: torch.dtype, batch: int) -> Callable[[list[Codes]], None]:
    """Transformers' decoder, so many items at a time, samples to the host."""

    def decode(items: list[Codes]) -> None:
        with torch.inference_mode(), torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            for first in range(0, len(items), batch):
                codes = torch.from_numpy(np.stack(items[first : first + batch]).astype(np.int64)).cuda()
                model.decode(codes).audio_values.cpu()

    return decode


def busiest(function: Callable[[], Any], calls: int = 5) -> list[str]:
    from torch.profiler import ProfilerActivity, profile

    function()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            function()
        torch.cuda.synchronize()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
    whole = sum(event.self_device_time_total for event in events)
    return [f"device {whole / calls / 1e3:.2f} ms a call"] + [
        f"{event.self_device_time_total / whole:6.1%} {event.count // calls:4d} x {event.key[:90]}"
        for event in events[:10]
    ]


def show(title: str, lines: list[str]) -> list[str]:
    print(title, *lines, sep="\n    ", flush=True)
    return lines


def through_booth(codec: Codec, lengths: Sequence[int]) -> dict[str, float]:
    """From rows on the device to shaped audio, all handed over at once."""
    news: queue.Queue[StepResult] = queue.Queue()
    booth = Booth(codec, prompts=PromptCache(1 << 20), emit=news.put, device=CUDA)
    rows = []
    for number, codes in enumerate(draw(lengths)):
        row = OmniVoiceRow((1,), codes.shape[1], (1,), 2.0, 0.0, 0.0, 0.0, 0, shaping=Shaping())
        planned = PlannedRow(number, 0, Chunk(0, "words", Work(1, 1), row))
        there = torch.from_numpy(np.ascontiguousarray(codes.T)).to(CUDA, torch.int32)
        rows.append(Finished(planned, row, there, torch.ones((), dtype=torch.int32, device=CUDA)))

    def once() -> None:
        ready = torch.cuda.Event()
        ready.record()
        booth.finish(rows, ready)
        left = len(rows)
        while left:
            outputs = news.get(timeout=30).outputs
            for output in outputs:
                if output.error is not None:
                    raise output.error
            left -= len(outputs)

    ms = milliseconds(once)
    booth.close()
    return {"ms": round(ms, 2), "audio_s_per_s": round(sum(lengths) / FRAME_RATE / ms * 1e3)}


CLIPS = {
    "1 x 5 s": [125],
    "4 x 5 s": [125] * 4,
    "8 x 5 s": [125] * 8,
    "8 x 3 s": [75] * 8,
    "4 of 3-10 s": [61, 101, 176, 250],
    "8 of 1-15 s": [13, 26, 61, 101, 125, 200, 300, 375],
}


def clips_of(lengths: Sequence[int]) -> list[Samples]:
    return [noise(place, FRAME_SAMPLES * frames) for place, frames in enumerate(lengths)]


def one_by_one(encode: Callable[[list[Samples]], Any], clips: list[Samples]) -> list[Codes]:
    """`encode` gives what can be indexed by place."""
    return [encode([samples])[0] for samples in clips]


def differing(ours: Any, theirs: Sequence[Codes]) -> str:
    gaps = sum(int((ours[place] != codes).sum()) for place, codes in enumerate(theirs))
    return f"{gaps} of {sum(codes.size for codes in theirs)}"


def encoded(encode: Callable[[list[Samples]], Any], exact: Codec, name: str) -> dict[str, Any]:
    """Time of clips together and one by one, and codes that company and that padding changed."""
    clips = clips_of(CLIPS[name])
    together = encode(clips)
    return {
        "ms": round(milliseconds(lambda: encode(clips), 0.4), 2),
        "one by one, ms": round(milliseconds(lambda: one_by_one(encode, clips), 0.4), 2),
        "beside alone": differing(together, one_by_one(encode, clips)),
        "beside unpadded": differing(together, one_by_one(exact._encode_exactly, clips)),
    }


def launch_times(graphed: GraphedEncoder) -> dict[str, Any]:
    """Milliseconds of a launch of each room and size, and what one costs beside its frames."""
    found: dict[tuple[int, int], float] = {}
    for room, sizes in SIZES.items():
        for size in sizes:
            launch = Launch(tuple(range(room)), room, size)
            clips = clips_of([size] * room)
            found[room, size] = milliseconds(
                lambda launch=launch, clips=clips: graphed._launch(launch, clips),  # type: ignore[misc]
                0.2,
            )
    slope, base = np.polyfit([room * size for room, size in found], list(found.values()), 1)
    table = {f"{room} x {size}": round(ms, 2) for (room, size), ms in found.items()}
    return {**table, "of a launch": round(float(base), 2), "of 100 frames": round(100 * float(slope), 3),
            "LAUNCH_FRAMES": round(float(base / slope)), "now": LAUNCH_FRAMES}  # fmt: skip


def clips_through_booth(codec: Codec, lengths: Sequence[int]) -> dict[str, float]:
    """From clips asked for all at once to the last one's codes; none is known."""
    news: queue.Queue[StepResult] = queue.Queue()
    booth = Booth(codec, prompts=PromptCache(0), emit=news.put, device=CUDA)
    rows = [
        OmniVoiceRow((1,), 1, (8,), 2.0, 0.0, 0.0, 0.0, 0, clip=samples.tobytes(), clip_key=str(place))
        for place, samples in enumerate(clips_of(lengths))
    ]
    firsts: list[float] = []

    def once() -> None:
        started = time.perf_counter()
        for seq_id, row in enumerate(rows):
            booth.encode(seq_id, row)
        left = len(rows)
        while left:
            result = news.get(timeout=30)
            for output in result.outputs:
                if output.error is not None:
                    raise output.error
            if left == len(rows):
                firsts.append(time.perf_counter() - started)
            left -= len(result.prepared)

    ms = milliseconds(once, 0.4)
    booth.close()
    return {"ms": round(ms, 2), "first, ms": round(1e3 * float(np.median(firsts)), 2)}


def encoding(codec: Codec) -> None:
    for name in CLIPS:

        @part(f"encode, {name}")
        def _(name: str = name) -> Any:
            return encoded(codec.encode, codec, name)

    @part("encode 5 s without graph, ms")
    def _() -> Any:
        return round(milliseconds(lambda: codec._encode_exactly(clips_of([125])), 0.4), 2)

    @part("encode, launches, ms")
    def _() -> Any:
        assert codec._padded is not None
        return launch_times(codec._padded)

    @part("clips through the booth")
    def _() -> Any:
        bursts = {**CLIPS, "32 x 5 s": [125] * 32}
        return {name: clips_through_booth(codec, lengths) for name, lengths in bursts.items()}

    @part("encode in float32 without TF32")
    def _() -> Any:
        """Whether the codes that company changes are TF32's doing, and what it would cost to be rid of it."""
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            graphed = GraphedEncoder(codec._model, CUDA, 0.9)
            return {name: encoded(graphed.encode, codec, name) for name in ("8 x 5 s", "8 of 1-15 s")}

    for name in ("1 x 5 s", "8 x 5 s"):
        clips = clips_of(CLIPS[name])
        found = busiest(lambda clips=clips: codec.encode(clips))  # type: ignore[misc]
        show(f"busiest, encode {name}", report.setdefault(f"busiest_encode {name}", found))


def decoding(codec: Codec) -> None:
    packed = codec._packed
    assert packed is not None

    @part("exactness, packed fused")
    def _() -> Any:
        found = errors(packed.decode, codec)
        if found["rms"] > LARGEST_ERROR:
            failed.append("exactness, packed fused")
        return found

    @part("speed, packed fused graphs")
    def _() -> Any:
        return speed(packed.decode)

    show(
        "busiest, packed fused, 16 x 5 s",
        report.setdefault("busiest_packed", busiest(lambda: packed.decode(draw([125] * 16)))),
    )
    show(
        "busiest, packed fused, 1 x 5 s",
        report.setdefault("busiest_single", busiest(lambda: packed.decode(draw([125])))),
    )

    @part("through the booth")
    def _() -> Any:
        return {name: through_booth(codec, lengths) for name, lengths in WORK.items()}

    @part("shaping alone, 5 s, ms")
    def _() -> Any:
        wave = packed.decode(draw([125]))[0]
        return round(milliseconds(lambda: finish(wave, Shaping()), 0.3), 3)


def other_ways_of_decoding(codec: Codec) -> None:
    @part("exactness, packed plain fp16")
    def _() -> Any:
        plain = PackedDecoder(Decoder(fold(codec._model, torch.float16), plain_codec), (128, 512, 2_048))
        report["speed, packed plain graphs"] = speed(plain.decode, ("1 x 5 s", "8 x 5 s", "32 x 5 s"))
        print("speed, packed plain graphs", report["speed, packed plain graphs"], flush=True)
        return errors(plain.decode, codec)

    @part("exactness, packed plain fp32")
    def _() -> Any:
        with_float = Decoder(fold(codec._model, torch.float32), plain_codec)
        return errors(PackedDecoder(with_float, (32,)).decode, codec)

    @part("exactness, packed fused bf16")
    def _() -> Any:
        ops = packed_decode.choose_ops(CUDA)
        return errors(PackedDecoder(Decoder(fold(codec._model, torch.bfloat16), ops), (2_048,)).decode, codec)

    for dtype, batch in ((torch.float32, 1), (torch.float16, 1), (torch.float16, 8), (torch.float16, 32)):

        @part(f"speed, published {str(dtype)[6:]} x {batch}")
        def _(dtype: torch.dtype = dtype, batch: int = batch) -> Any:
            names = {1: ("1 x 5 s", "8 x 5 s"), 8: ("8 x 5 s",), 32: ("32 x 5 s",)}[batch]
            return speed(published(codec._model, dtype, batch), names)


def main() -> int:
    torch.set_grad_enabled(False)
    report["device"], report["torch"] = torch.cuda.get_device_name(), torch.__version__
    folder = Path(tempfile.mkdtemp())
    _write_codec(folder, FULL, "cuda")
    codec = load(folder)
    print(report, flush=True)
    if sys.argv[1:] != ["encode"]:
        decoding(codec)
        other_ways_of_decoding(codec)
    encoding(codec)
    if "OUT" in os.environ:
        (Path(os.environ["OUT"]) / "codec.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
