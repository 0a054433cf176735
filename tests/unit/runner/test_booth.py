"""The booth beside a codec of a few lines: what it takes together, whom an error hits, what it forgets."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the runner needs the extra [omnivoice]")

from polychoir.errors import InternalError  # noqa: E402
from polychoir.models.omnivoice.row import FRAME_SAMPLES, OmniVoiceRow, Shaping  # noqa: E402
from polychoir.runner.booth import MOST_CLIP_FRAMES, MOST_CLIPS, MOST_FRAMES, Booth, Finished  # noqa: E402
from polychoir.runner.prompt_cache import PromptCache  # noqa: E402
from polychoir.types import Chunk, PlannedRow, Samples, SequenceOutput, StepResult, Work  # noqa: E402

LATEST_S = 10.0
RAW = Shaping(postprocess_output=False, ref_rms=0.1, lead_s=0.0, trail_s=0.0, fade_s=0.0)


class SlowCodec:
    """Frames become their first code, once the gate is open; code 13 cannot be decoded, nor a clip below 0
    be encoded."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.at_work = threading.Event()
        self.log: list[str] = []

    def encode(self, items: Sequence[Samples]) -> list[np.ndarray]:
        self._enter("encode " + " ".join(f"{samples[0]:g}" for samples in items))
        if any(samples[0] < 0 for samples in items):
            raise ValueError("this clip cannot be encoded")
        return [np.full((8, samples.size // FRAME_SAMPLES), int(samples[0]), np.int16) for samples in items]

    def decode(self, items: Sequence[np.ndarray]) -> list[Samples]:
        self._enter("decode " + " ".join(str(codes[0, 0]) for codes in items))
        if any((codes == 13).any() for codes in items):
            raise RuntimeError("an unlucky code")
        return [np.repeat(codes[0], FRAME_SAMPLES).astype(np.float32) for codes in items]

    def _enter(self, what: str) -> None:
        self.at_work.set()
        assert self.gate.wait(LATEST_S)
        self.log.append(what)


@pytest.fixture
def codec() -> SlowCodec:
    return SlowCodec()


@pytest.fixture
def news() -> queue.Queue[StepResult]:
    return queue.Queue()


@pytest.fixture
def booth(codec: SlowCodec, news: queue.Queue[StepResult]) -> Iterator[Booth]:
    booth = Booth(codec, prompts=PromptCache(1 << 20), emit=news.put, device=torch.device("cpu"))
    yield booth
    codec.gate.set()
    booth.close()


def row(frames: int = 3, clip: float | None = None, clip_frames: int = 2) -> OmniVoiceRow:
    return OmniVoiceRow(
        text_ids=(1,),
        target_frames=frames,
        timetable=(8 * frames,),
        guidance_scale=2.0,
        position_temperature=0.0,
        class_temperature=0.0,
        layer_penalty_factor=0.0,
        seed=0,
        clip=None if clip is None else np.full(clip_frames * FRAME_SAMPLES, clip, "<f4").tobytes(),
        clip_key=None if clip is None else f"hash of {clip}",
        shaping=RAW,
    )


def finished(seq_id: int, code: int, *, frames: int = 3, sound: int = 1, epoch: int = 0) -> Finished:
    codes = torch.full((frames, 8), code, dtype=torch.int32)
    made = row(frames)
    planned = PlannedRow(seq_id, 0, Chunk(0, "words", Work(1, 1), made), epoch)
    return Finished(planned, made, codes, torch.tensor(sound, dtype=torch.int32))


def outputs(news: queue.Queue[StepResult], count: int) -> dict[int, SequenceOutput]:
    found: dict[int, SequenceOutput] = {}
    while len(found) < count:
        result = news.get(timeout=LATEST_S)
        assert result.plan_id is None
        found |= {output.seq_id: output for output in result.outputs}
    return found


def test_a_finished_row_comes_out_with_its_samples_and_codes(booth, codec, news) -> None:
    codec.gate.set()
    booth.finish([finished(5, 7, epoch=2)])
    output = outputs(news, 1)[5]
    assert output.error is None
    assert output.epoch == 2
    assert output.decode_s > 0
    assert output.samples.tolist() == [7.0] * 3 * FRAME_SAMPLES
    assert output.codes.text == "words"
    assert output.codes.rms == 0.1
    assert (output.codes.codebooks, output.codes.frames) == (8, 3)
    assert (np.frombuffer(output.codes.codes, "<i2") == 7).all()


def test_codes_are_told_codebook_by_codebook(booth, codec, news) -> None:
    codec.gate.set()
    one = finished(1, 0)
    codes = torch.arange(20, 44, dtype=torch.int32).view(3, 8)
    booth.finish([Finished(one.planned, one.row, codes, one.sound)])
    told = np.frombuffer(outputs(news, 1)[1].codes.codes, "<i2").reshape(8, 3)
    assert told.tolist() == codes.T.tolist()


def test_what_waits_is_decoded_together(booth, codec, news) -> None:
    booth.finish([finished(1, 1)])
    assert codec.at_work.wait(LATEST_S)
    booth.finish([finished(2, 2), finished(3, 3)])
    booth.finish([finished(4, 4)])
    codec.gate.set()
    assert set(outputs(news, 4)) == {1, 2, 3, 4}
    assert codec.log == ["decode 1", "decode 2 3 4"]


def test_a_group_is_bounded_but_any_single_row_gets_in(booth, codec, news) -> None:
    booth.finish([finished(1, 1)])
    assert codec.at_work.wait(LATEST_S)
    booth.finish([finished(2, 2, frames=MOST_FRAMES + 1), finished(3, 3), finished(4, 4)])
    codec.gate.set()
    outputs(news, 4)
    assert codec.log == ["decode 1", "decode 2", "decode 3 4"]


def test_only_the_row_at_fault_fails(booth, codec, news) -> None:
    codec.gate.set()
    booth.finish([finished(1, 1), finished(2, 13, epoch=4), finished(3, 3)])
    found = outputs(news, 3)
    assert isinstance(found[2].error, RuntimeError)
    assert found[2].epoch == 4
    assert [found[n].error for n in (1, 3)] == [None, None]


@pytest.mark.parametrize("fault", [{"sound": 0}, {"code": 1_024}, {"code": -1}])
def test_a_row_that_is_not_whole_never_reaches_the_codec(booth, codec, news, fault: dict[str, int]) -> None:
    codec.gate.set()
    booth.finish([finished(1, **{"code": 1, "epoch": 3, **fault}), finished(2, 2)])
    found = outputs(news, 2)
    assert isinstance(found[1].error, InternalError)
    assert found[1].epoch == 3
    assert found[2].error is None
    assert codec.log == ["decode 2"]


def test_a_clip_is_announced_and_its_codes_are_given_once(booth, codec, news) -> None:
    codec.gate.set()
    assert booth.take(8) is None
    booth.encode(8, row(clip=5.0))
    assert news.get(timeout=LATEST_S) == StepResult(None, prepared=(8,), encoded=1)
    assert booth.take(8).tolist() == [[5, 5]] * 8
    assert booth.take(8) is None


def keep_busy(booth: Booth, codec: SlowCodec) -> None:
    """Clip 1 of sequence 1 is being encoded: what comes next has to wait."""
    booth.encode(1, row(clip=1.0))
    assert codec.at_work.wait(LATEST_S)


def heard(news: queue.Queue[StepResult], prepared: int) -> list[StepResult]:
    """What the booth tells until so many sequences are prepared."""
    found: list[StepResult] = []
    while sum(len(result.prepared) for result in found) < prepared:
        found.append(news.get(timeout=LATEST_S))
    return found


def test_clips_that_wait_are_encoded_together(booth, codec, news) -> None:
    keep_busy(booth, codec)
    for seq_id in (2, 3, 4):
        booth.encode(seq_id, row(clip=float(seq_id), clip_frames=seq_id))
    codec.gate.set()
    assert heard(news, 4)[1:] == [StepResult(None, prepared=(2, 3, 4), encoded=3)]
    assert codec.log == ["encode 1", "encode 2 3 4"]
    assert [booth.take(seq_id).tolist() for seq_id in (3, 4)] == [[[3] * 3] * 8, [[4] * 4] * 8]


def test_a_group_of_clips_is_bounded_but_any_single_clip_gets_in(booth, codec, news) -> None:
    keep_busy(booth, codec)
    for seq_id, frames in ((2, MOST_CLIP_FRAMES + 1), (3, MOST_CLIP_FRAMES - 2), (4, 2), (5, 1)):
        booth.encode(seq_id, row(clip=float(seq_id), clip_frames=frames))
    for seq_id in range(6, 6 + MOST_CLIPS):
        booth.encode(seq_id, row(clip=float(seq_id)))
    codec.gate.set()
    heard(news, 5 + MOST_CLIPS)
    last = 5 + MOST_CLIPS
    full = " ".join(str(seq_id) for seq_id in range(5, last))
    assert codec.log == ["encode 1", "encode 2", "encode 3 4", f"encode {full}", f"encode {last}"]


def test_a_clip_that_cannot_be_encoded_ends_its_row_alone(booth, codec, news) -> None:
    keep_busy(booth, codec)
    for seq_id, clip in ((2, 2.0), (3, -1.0), (4, 4.0)):
        booth.encode(seq_id, row(clip=clip))
    codec.gate.set()
    result = heard(news, 3)[1]
    assert (result.prepared, result.encoded) == ((2, 4), 2)
    assert [(output.seq_id, type(output.error)) for output in result.outputs] == [(3, ValueError)]
    assert codec.log == ["encode 1", "encode 2 -1 4", "encode 2", "encode -1", "encode 4"]
    assert [booth.take(seq_id) is None for seq_id in (2, 3, 4)] == [False, True, False]


@pytest.mark.parametrize("fault", [{"clip": b"odd"}, {"clip_key": None}])
def test_a_broken_clip_harms_no_other(booth, codec, news, fault: dict[str, object]) -> None:
    keep_busy(booth, codec)
    booth.encode(2, replace(row(clip=2.0), **fault))
    booth.encode(3, row(clip=3.0))
    codec.gate.set()
    result = heard(news, 2)[1]
    assert (result.prepared, result.encoded) == ((3,), 1)
    assert [output.seq_id for output in result.outputs] == [2]
    assert booth.take(2) is None
    assert "encode 2" not in codec.log


def test_the_same_clip_is_encoded_once(booth, codec, news) -> None:
    """Asked for again while it waits, while it is at work and when it is known; also if it cannot be."""
    keep_busy(booth, codec)
    for seq_id, clip in enumerate((1.0, 5.0, -1.0, 5.0, -1.0), start=2):
        booth.encode(seq_id, row(clip=clip))
    codec.gate.set()
    result = heard(news, 4)[1]
    assert (result.prepared, result.encoded) == ((2, 3, 5), 1)
    assert sorted(output.seq_id for output in result.outputs) == [4, 6]
    booth.encode(7, row(clip=5.0))
    assert heard(news, 1) == [StepResult(None, prepared=(7,), encoded=0)]
    assert codec.log == ["encode 1", "encode 5 -1", "encode 5", "encode -1"]
    assert all(booth.take(seq_id) is not None for seq_id in (1, 2, 3, 5, 7))


def test_known_and_repeated_clips_take_no_room_in_a_group(booth, codec, news) -> None:
    keep_busy(booth, codec)
    for seq_id, clip in ((2, 2.0), (3, 1.0), (4, 2.0), (5, 1.0), (6, 6.0)):
        booth.encode(seq_id, row(clip=clip, clip_frames=MOST_CLIP_FRAMES // 2))
    codec.gate.set()
    assert heard(news, 6)[1].prepared == (2, 3, 4, 5, 6)
    assert codec.log == ["encode 1", "encode 2 6"]


def test_a_clip_nobody_wants_any_more_is_not_encoded_and_not_kept(booth, codec, news) -> None:
    keep_busy(booth, codec)
    for seq_id in (2, 3, 4):
        booth.encode(seq_id, row(clip=float(seq_id)))
    booth.drop(1)
    booth.drop(3)
    booth.drop(99)
    codec.gate.set()
    assert heard(news, 3)[-1].prepared == (2, 4)
    assert codec.log == ["encode 1", "encode 2 4"]
    assert [booth.take(seq_id) is None for seq_id in (1, 2, 3, 4)] == [True, False, True, False]


def test_rows_and_clips_take_turns(booth, codec, news) -> None:
    keep_busy(booth, codec)
    for seq_id in (2, 3):
        booth.encode(seq_id, row(clip=float(seq_id), clip_frames=MOST_CLIP_FRAMES))
    booth.finish([finished(4, 4, frames=MOST_FRAMES), finished(5, 5)])
    codec.gate.set()
    outputs(news, 2)
    booth.close()
    assert codec.log == ["encode 1", "decode 4", "encode 2", "decode 5", "encode 3"]


def test_close_ends_after_what_is_at_hand(codec, news) -> None:
    booth = Booth(codec, prompts=PromptCache(1 << 20), emit=news.put, device=torch.device("cpu"))
    booth.finish([finished(1, 1)])
    assert codec.at_work.wait(LATEST_S)
    booth.finish([finished(2, 2)])
    closing = threading.Thread(target=booth.close)
    closing.start()
    while not booth._closing:  # the thread must be told before the codec goes on
        pass
    codec.gate.set()
    closing.join(LATEST_S)
    assert not closing.is_alive()
    assert set(outputs(news, 1)) == {1}
    assert news.empty()
