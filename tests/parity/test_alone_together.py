"""A row's tokens never depend on its neighbours: who they are, when they come, go, pause or start again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polychoir.models.omnivoice.network import Network
from polychoir.models.omnivoice.row import FRAME_SAMPLES, OmniVoiceRow, Shaping
from polychoir.models.omnivoice.timetable import timetable
from polychoir.types import Chunk, PlannedRow, Samples, StepPlan, VoicePrompt, Work
from tests.parity.driving import codes_of, make_network
from tests.support.driving import Driver, run_together


class SilentCodec:
    """Only tokens are looked at here."""

    def encode(self, items: Sequence[Samples]) -> list[np.ndarray]:
        draws = [np.random.default_rng(len(samples)) for samples in items]
        return [
            draw.integers(0, 1_024, (8, samples.size // FRAME_SAMPLES)).astype(np.int16)
            for draw, samples in zip(draws, items, strict=True)
        ]

    def decode(self, items: Sequence[np.ndarray]) -> list[Samples]:
        return [np.ones(FRAME_SAMPLES * codes.shape[1], np.float32) for codes in items]


@pytest.fixture(scope="module")
def network64(checkpoint_dir: Path) -> Network:
    return make_network(checkpoint_dir, torch.float64)


@pytest.fixture(scope="module")
def network32(checkpoint_dir: Path) -> Network:
    return make_network(checkpoint_dir, torch.float32)


def runner_on(network: Network) -> Driver:
    return Driver(network, SilentCodec())


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    frames = draw(st.integers(1, 24))
    reference = draw(st.integers(0, 12))
    codes = np.random.default_rng(reference).integers(0, 1_024, (8, reference)).astype("<i2")
    encoded = draw(st.booleans())
    row = OmniVoiceRow(
        text_ids=tuple(draw(st.lists(st.integers(0, 151_675), min_size=1, max_size=12))),
        target_frames=frames,
        timetable=timetable(frames, draw(st.integers(1, 12)), draw(st.sampled_from([0.1, 0.5, 1.0]))),
        guidance_scale=draw(st.sampled_from([0.0, 1.0, 2.0, 4.0])),
        position_temperature=draw(st.sampled_from([0.0, 0.5, 5.0])),
        class_temperature=draw(st.sampled_from([0.0, 0.7, 1.5])),
        layer_penalty_factor=draw(st.sampled_from([0.0, 5.0])),
        seed=draw(st.integers(0, 2**64 - 1)),
        chunk=draw(st.integers(0, 3)),
        prompt=VoicePrompt(codes.tobytes(), 8, reference, "") if reference and encoded else None,
        clip=np.ones(reference * FRAME_SAMPLES, "<f4").tobytes() if reference and not encoded else None,
        clip_key=str(reference),
        ref_frames=reference,
        shaping=Shaping(postprocess_output=False),
    )
    return Chunk(0, "", Work(row.tokens, len(row.timetable)), row)


@dataclass
class Actor:
    """A row on its way through a random life."""

    number: int
    chunk: Chunk
    joins: int
    step: int = 0
    epoch: int = 0
    codes: np.ndarray | None = None

    def planned(self) -> PlannedRow:
        return PlannedRow(self.number, self.step, self.chunk, self.epoch)


def live(runner: Driver, actors: list[Actor], fate: np.random.Generator) -> None:
    """Run all actors to their ends; at each step some are late, paused, started again or mixed up."""
    plan_id = 0
    while waiting := [actor for actor in actors if actor.codes is None]:
        plan_id += 1
        for actor in waiting:
            if actor.step and actor.epoch < 2 and fate.random() < 0.04:
                runner.drop(actor.number) if fate.random() < 0.5 else None
                actor.step, actor.epoch = 0, actor.epoch + 1
        on_stage = [actor for actor in waiting if actor.joins <= plan_id and fate.random() < 0.8]
        fate.shuffle(on_stage)  # type: ignore[arg-type]
        rows = tuple(actor.planned() for actor in on_stage)
        by_number = {actor.number: actor for actor in on_stage}
        for output in runner.run(StepPlan(plan_id, rows, 0)).outputs:
            by_number[output.seq_id].codes = codes_of(output)
        for actor in on_stage:
            actor.step += 1


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(company=st.lists(chunks(), min_size=2, max_size=16), luck=st.integers(0, 2**32))
def test_tokens_are_the_same_alone_and_in_any_company(
    network64: Network, company: list[Chunk], luck: int
) -> None:
    fate = np.random.default_rng(luck)
    actors = [Actor(n, chunk, joins=int(fate.integers(0, 8))) for n, chunk in enumerate(company)]
    extra = [Actor(100 + n, chunk, joins=1) for n, chunk in enumerate(company[:3])]
    runner = runner_on(network64)
    rows = tuple(actor.planned() for actor in extra)
    runner.run(StepPlan(0, rows, 0))
    for actor in extra:  # their clients leave after one step
        runner.drop(actor.number)
    live(runner, actors, fate)
    for actor in actors:
        (alone,) = run_together(runner_on(network64), [actor.chunk])
        assert (codes_of(alone) == actor.codes).all()


def test_float32_rarely_differs(network32: Network, record_property: Callable[[str, object], None]) -> None:
    """In float32 a matrix product rounds by its number of rows, so a near-tie may flip: how often is counted.
    A flip changes everything after it in that row, so the rows that differ are what is bounded."""
    draw = np.random.default_rng(0)
    company = [_plain(int(draw.integers(5, 40)), seed) for seed in range(24)]
    together = [codes_of(output) for output in run_together(runner_on(network32), company)]
    alone = [codes_of(run_together(runner_on(network32), [chunk])[0]) for chunk in company]
    differing = sum(int((one != other).sum()) for one, other in zip(together, alone, strict=True))
    cells = sum(codes.size for codes in alone)
    rows = sum(bool((one != other).any()) for one, other in zip(together, alone, strict=True))
    record_property("float32_differing_cells", f"{differing} of {cells}")
    print(f"float32 alone and together: {differing} of {cells} cells differ, in {rows} of 24 rows")
    assert rows <= 2


def _plain(frames: int, seed: int) -> Chunk:
    row = OmniVoiceRow(
        text_ids=(1, 2, 3, seed),
        target_frames=frames,
        timetable=timetable(frames, 16, 0.1),
        guidance_scale=2.0,
        position_temperature=5.0,
        class_temperature=0.0,
        layer_penalty_factor=5.0,
        seed=seed,
        shaping=Shaping(postprocess_output=False),
    )
    return Chunk(0, "", Work(row.tokens, len(row.timetable)), row)


def test_attempt_chunk_and_seed_change_the_tokens(network64: Network) -> None:
    first = _plain(20, 5)
    others = [
        replace(first, payload=replace(first.payload, **change))
        for change in ({"seed": 6}, {"chunk": 1}, {"attempt": 1}, {"seed": 5 + 2**32})
    ]
    one, *rest = (codes_of(output) for output in run_together(runner_on(network64), [first, *others]))
    again = codes_of(run_together(runner_on(network64), [first])[0])
    assert (one == again).all()
    assert all((one != other).any() for other in rest)


def test_a_broken_row_fails_alone(checkpoint_dir: Path) -> None:
    """One token's embedding is not a number: only the row that holds it ends with an error."""
    network = make_network(checkpoint_dir, torch.float64)
    good, bad = _plain(20, 5), _plain(20, 77)
    expected = codes_of(run_together(runner_on(network), [good])[0])
    network.weights.text_embeddings[77] = float("nan")
    healthy, broken = run_together(runner_on(network), [good, bad])
    assert (codes_of(healthy) == expected).all()
    assert broken.samples is None
    assert "not finite" in str(broken.error)


def test_what_cannot_start_fails_alone(network64: Network) -> None:
    good = _plain(20, 5)
    wrong_size = replace(good.payload, prompt=VoicePrompt(b"\0" * 16, 8, 1, ""), ref_frames=2)
    outside = np.full((8, 2), 1_024, "<i2").tobytes()
    out_of_range = replace(good.payload, prompt=VoicePrompt(outside, 8, 2, ""), ref_frames=2)
    odd = [replace(good, payload=payload) for payload in (wrong_size, out_of_range, SimpleNamespace())]
    runner = runner_on(network64)
    rows = tuple(PlannedRow(n, 0, chunk) for n, chunk in enumerate([good, *odd]))
    outputs = runner.run(StepPlan(0, rows, 0)).outputs
    assert {output.seq_id for output in outputs} == {1, 2, 3}
    assert all(output.error is not None for output in outputs)
    assert not runner.run(StepPlan(1, tuple(PlannedRow(n, 1, good) for n in (0, 1)), 0)).outputs
