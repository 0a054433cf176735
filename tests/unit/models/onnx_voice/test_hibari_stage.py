"""The embedded voice's device side: the library's own sound, whatever runs beside it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from polychoir.engine.calibration import fit
from polychoir.errors import InternalError
from polychoir.models.onnx_voice.hibari.row import HibariRow
from polychoir.models.onnx_voice.hibari.stage import HibariStage, load_stage
from polychoir.models.onnx_voice.plugin import hibari
from polychoir.runner.threaded import Outbox, ThreadedRunner
from polychoir.types import (
    Chunk,
    ModelOptions,
    PlannedRow,
    SpeechRequest,
    StepPlan,
    StepResult,
    VoiceChoice,
    Work,
)

TEXT = "Hello there. It was raining in London, and the streets were wet. Nobody minded at all!"


@pytest.fixture(scope="module")
def stage() -> HibariStage:
    return load_stage()


@pytest.fixture(scope="module")
def rows() -> list[HibariRow]:
    frontend = hibari.open(None, ModelOptions()).frontend
    prepared = frontend.prepare(SpeechRequest("r", TEXT, seed=7), VoiceChoice("heart", "heart"))
    return [chunk.payload for chunk in prepared.chunks]


def plan_of(number: int, *rows: HibariRow) -> StepPlan:
    planned = tuple(
        PlannedRow(100 * number + at, 0, Chunk(at, "", Work(len(row.ids), 1), row), epoch=number)
        for at, row in enumerate(rows)
    )
    return StepPlan(number, planned, sum(row.chunk.work.tokens for row in planned))


def test_the_first_chunk_is_the_librarys_own_sound(stage: HibariStage, rows: list[HibariRow]) -> None:
    from hibari import Hibari

    library = Hibari()
    noise = np.random.default_rng(np.random.SeedSequence(7, spawn_key=(0,)))
    np.testing.assert_array_equal(stage.sing(rows[0]), library.from_ids(list(rows[0].ids), 1.0, noise))


def test_only_seed_and_chunk_choose_the_noise(stage: HibariStage, rows: list[HibariRow]) -> None:
    first = stage.sing(rows[0])
    np.testing.assert_array_equal(first, stage.sing(rows[0]))
    for other in (replace(rows[0], seed=8), replace(rows[0], chunk=1)):
        changed = stage.sing(other)
        assert changed.shape == first.shape
        assert not np.array_equal(changed, first)


def test_speed_changes_the_length_in_proportion(stage: HibariStage, rows: list[HibariRow]) -> None:
    """Within 15 %: the graph rounds each phoneme to whole frames of 12.5 ms."""
    speeds = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
    lengths = [sum(stage.sing(replace(row, speed=speed)).size for row in rows) for speed in speeds]
    for speed, length in zip(speeds, lengths, strict=True):
        assert lengths[2] / length == pytest.approx(speed, rel=0.15)
    assert lengths == sorted(lengths, reverse=True)


def test_chunks_begin_and_end_in_silence(stage: HibariStage, rows: list[HibariRow]) -> None:
    """So that joined chunks need no seam: each brings its own pause, as in the library's joined output."""
    for row in rows:
        samples = stage.sing(row)
        loudest = np.abs(samples).max()
        assert np.abs(samples[:1_200]).max() < 1e-3 * loudest
        assert np.abs(samples[-1_200:]).max() < 1e-3 * loudest


def test_alone_equals_together(stage: HibariStage, rows: list[HibariRow]) -> None:
    many = [replace(row, seed=seed) for seed in range(4) for row in rows]
    alone = [stage.sing(row) for row in many]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(stage.sing, many))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_row_without_phonemes_fails_alone(stage: HibariStage, rows: list[HibariRow]) -> None:
    result = stage.run(plan_of(3, rows[0], HibariRow((0, 0), 1.0, 7, 1), rows[2]))
    good, bad, also_good = result.outputs
    assert isinstance(bad.error, InternalError) and bad.samples is None
    assert good.error is None and good.samples is not None and good.samples.size
    np.testing.assert_array_equal(also_good.samples, stage.sing(rows[2]))
    assert [(output.seq_id, output.epoch) for output in result.outputs] == [(300, 3), (301, 3), (302, 3)]


@pytest.mark.parametrize("broken", [np.zeros(0, np.float32), np.full(300, np.nan, np.float32)])
def test_empty_or_non_finite_audio_is_an_error(
    stage: HibariStage, rows: list[HibariRow], broken: np.ndarray
) -> None:
    sick = HibariStage(stage._session, lambda *_: broken)
    with pytest.raises(InternalError):
        sick.sing(rows[0])


def test_it_runs_on_the_threads_of_a_runner(stage: HibariStage, rows: list[HibariRow]) -> None:
    """Several plans in flight; each gives one result with its id, whichever ends first."""
    news = threading.Semaphore(0)
    runner = ThreadedRunner(stage, 2, Outbox(news.release))
    plans = [plan_of(number, replace(rows[number % 3], seed=number)) for number in range(12)]
    for plan in plans:
        runner.submit(plan)
    runner.drop(9_999)
    results: dict[int | None, StepResult] = {}
    while len(results) < len(plans):
        assert news.acquire(timeout=30)
        results |= {result.plan_id: result for result in runner.poll()}
    runner.close()
    for plan in plans:
        result = results[plan.plan_id]
        assert result.error is None and result.run_s > 0 and result.padded_tokens == 0
        np.testing.assert_array_equal(result.outputs[0].samples, stage.sing(plan.rows[0].chunk.payload))


def test_what_is_measured_grows_with_the_length(stage: HibariStage) -> None:
    """Three sentences of one row each, timed in far less than the second that a start may take for it."""
    trials = hibari.open(None, ModelOptions()).frontend.trials()
    assert [len(trial.payload.ids) for trial in trials] == [trial.work.tokens for trial in trials]
    runner = ThreadedRunner(stage, 2, Outbox(lambda: None), trials=trials)
    samples = runner.measure().samples
    runner.close()
    assert len(samples) == 3
    assert samples[2].tokens > 4 * samples[0].tokens
    assert samples[0].seconds < samples[1].seconds < samples[2].seconds
    assert fit(samples, lanes=2).per_token_s > 0
