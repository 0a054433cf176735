"""The step loop on a network of a few numbers: lives, faults, restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the runner needs the extra [omnivoice]")

from polychoir.errors import InternalError  # noqa: E402
from polychoir.models.omnivoice.config import parse_config  # noqa: E402
from polychoir.models.omnivoice.network import Layer, Network, Weights  # noqa: E402
from polychoir.models.omnivoice.row import FRAME_SAMPLES, OmniVoiceRow, Shaping  # noqa: E402
from polychoir.models.omnivoice.timetable import timetable  # noqa: E402
from polychoir.types import Chunk, PlannedRow, Samples, SequenceOutput, StepPlan, Work  # noqa: E402
from support.driving import Driver  # noqa: E402

LLM = {
    "model_type": "qwen3", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 16, "vocab_size": 50,
}  # fmt: skip
CONFIG = parse_config(
    {"model_type": "omnivoice", "llm_config": LLM, "audio_vocab_size": 17, "audio_mask_id": 16}, "here"
)


class ToyCodec:
    """Frames become their first code; the codes in `poison` cannot be decoded."""

    def __init__(self) -> None:
        self.encoded = 0
        self.poison = b""

    def encode(self, items: Sequence[Samples]) -> list[np.ndarray]:
        self.encoded += len(items)
        if any(samples[0] < 0 for samples in items):
            raise ValueError("this clip cannot be encoded")
        return [np.ones((8, samples.size // FRAME_SAMPLES), np.int16) for samples in items]

    def decode(self, items: Sequence[np.ndarray]) -> list[Samples]:
        if any(codes.tobytes() == self.poison for codes in items):
            raise RuntimeError("cannot decode that")
        return [np.repeat(codes[0] + 1.0, FRAME_SAMPLES).astype(np.float32) for codes in items]


def make_network() -> Network:
    draw = torch.Generator().manual_seed(0)

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    layer = Layer(
        norm_in=weight(8), qkv=weight(16, 8), q_norm=weight(4), k_norm=weight(4), out=weight(8, 8),
        norm_mid=weight(8), gate_up=weight(32, 8), down=weight(8, 16),
    )  # fmt: skip
    return Network(CONFIG, Weights(weight(50, 8), weight(136, 8), weight(136, 8), weight(8), (layer,)))


@pytest.fixture
def codec() -> ToyCodec:
    return ToyCodec()


@pytest.fixture
def runner(codec: ToyCodec) -> Driver:
    return Driver(make_network(), codec, limit=4)


def chunk(seed: int = 1, frames: int = 4, steps: int = 3, **changes: object) -> Chunk:
    row = OmniVoiceRow(
        text_ids=(1, 2),
        target_frames=frames,
        timetable=timetable(frames, steps, 0.5),
        guidance_scale=2.0,
        position_temperature=5.0,
        class_temperature=0.7,
        layer_penalty_factor=5.0,
        seed=seed,
        shaping=Shaping(postprocess_output=False, lead_s=0.0, trail_s=0.0, fade_s=0.0),
    )
    row = replace(row, **changes)
    return Chunk(0, "words", Work(row.tokens, len(row.timetable)), row)


def clip(value: float, key: str) -> dict[str, object]:
    return {
        "clip": np.full(2 * FRAME_SAMPLES, value, "<f4").tobytes(),
        "clip_key": key,
        "ref_frames": 2,
    }


def step(runner: Driver, number: int, *rows: PlannedRow) -> tuple[SequenceOutput, ...]:
    result = runner.run(StepPlan(number, rows, 0))
    assert result.plan_id == number
    assert result.error is None
    return result.outputs


def sing(runner: Driver, one: Chunk, seq_id: int = 1, epoch: int = 0) -> SequenceOutput:
    steps = len(one.payload.timetable)
    for number in range(steps - 1):
        assert not step(runner, number, PlannedRow(seq_id, number, one, epoch))
    (output,) = step(runner, steps - 1, PlannedRow(seq_id, steps - 1, one, epoch))
    assert output.seq_id == seq_id
    assert output.epoch == epoch
    return output


def test_a_row_ends_once_with_its_codes_and_samples(runner: Driver) -> None:
    output = sing(runner, chunk())
    assert output.error is None
    assert output.codes is not None
    codes = np.frombuffer(output.codes.codes, "<i2").reshape(8, 4)
    assert ((codes >= 0) & (codes < 16)).all()
    assert output.codes.text == "words"
    assert output.samples is not None
    assert output.samples.size == 4 * FRAME_SAMPLES
    assert output.decode_s > 0


def test_a_restart_gives_the_same_and_old_plans_touch_nothing(runner: Driver) -> None:
    expected = sing(runner, chunk())
    one = chunk()
    step(runner, 0, PlannedRow(7, 0, one))
    step(runner, 1, PlannedRow(7, 0, one, epoch=1))
    step(runner, 2, PlannedRow(7, 1, one, epoch=1))
    assert not step(runner, 3, PlannedRow(7, 2, one, epoch=0))  # was under way when the row started again
    (output,) = step(runner, 4, PlannedRow(7, 2, one, epoch=1))
    assert output.codes == expected.codes


def test_a_row_that_left_is_passed_over(runner: Driver) -> None:
    step(runner, 0, PlannedRow(1, 0, chunk()))
    runner.drop(1)
    runner.drop(99)
    assert not step(runner, 1, PlannedRow(1, 1, chunk()))


def test_slots_come_back_after_every_kind_of_end(runner: Driver) -> None:
    for seq_id in range(10):
        sing(runner, chunk(seed=seq_id), seq_id)
        step(runner, 0, PlannedRow(100 + seq_id, 0, chunk()))
        runner.drop(100 + seq_id)
        (failed,) = step(runner, 0, PlannedRow(200 + seq_id, 0, chunk(**clip(-1.0, "bad"))))
        assert isinstance(failed.error, ValueError)
    fifth = [PlannedRow(seq_id, 0, chunk()) for seq_id in range(5)]
    (refused,) = step(runner, 1, *fifth)
    assert isinstance(refused.error, InternalError)
    assert refused.seq_id == 4


def test_a_clip_is_encoded_once(runner: Driver, codec: ToyCodec) -> None:
    same, other = clip(0.5, "one"), clip(0.5, "two")
    outputs = [sing(runner, chunk(**reference), n) for n, reference in enumerate((same, same, other))]
    assert codec.encoded == 2
    assert outputs[0].codes == outputs[1].codes == outputs[2].codes


def test_a_clip_of_another_length_than_promised_is_an_error(runner: Driver) -> None:
    (output,) = step(runner, 0, PlannedRow(1, 0, chunk(**{**clip(0.5, "one"), "ref_frames": 3})))
    assert "gave 2 frames, the row expects 3" in str(output.error)


def test_a_clip_without_its_key_is_never_taken_for_another(runner: Driver, codec: ToyCodec) -> None:
    for number, value in enumerate((0.2, 0.8)):
        (output,) = step(runner, number, PlannedRow(number, 0, chunk(**clip(value, "") | {"clip_key": None})))
        assert isinstance(output.error, InternalError)
    assert codec.encoded == 0


def test_decoding_fails_only_for_the_row_at_fault(runner: Driver, codec: ToyCodec) -> None:
    alone = [sing(runner, chunk(seed=seed, steps=1), seed) for seed in (1, 2, 3)]
    codes = [output.codes.codes for output in alone if output.codes is not None]
    assert len(set(codes)) == 3
    codec.poison = codes[1]
    rows = [PlannedRow(seed, 0, chunk(seed=seed, steps=1)) for seed in (1, 2, 3)]
    outputs = {output.seq_id: output for output in step(runner, 0, *rows)}
    assert isinstance(outputs[2].error, RuntimeError)
    for seed in (1, 3):
        assert outputs[seed].codes == alone[seed - 1].codes


def test_after_a_step_that_raised_rows_start_again_and_no_slot_is_lost(
    runner: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sing(runner, chunk(), 1)

    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    for seq_id in range(10, 20):
        step(runner, 0, PlannedRow(seq_id, 0, chunk()))
        with monkeypatch.context() as patch:
            patch.setattr(Network, "hidden", broken)
            with pytest.raises(RuntimeError, match="out of memory"):
                step(runner, 1, PlannedRow(seq_id, 1, chunk()))
        assert not step(runner, 2, PlannedRow(seq_id, 2, chunk()))  # was under way already
    assert sing(runner, chunk(), 19, epoch=1).codes == expected.codes


def test_the_order_of_a_plan_does_not_matter(runner: Driver) -> None:
    rows = [PlannedRow(seed, 0, chunk(seed=seed, steps=1)) for seed in (1, 2, 3)]
    there = {output.seq_id: output.codes for output in step(runner, 0, *rows)}
    back = {output.seq_id: output.codes for output in step(runner, 0, *reversed(rows))}
    assert there == back
