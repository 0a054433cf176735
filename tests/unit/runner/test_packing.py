"""Packing and unpacking lose nothing and mix nothing."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the runner needs the extra [omnivoice]")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from polychoir.kernels.noise import seed_words, stream_word  # noqa: E402
from polychoir.models.omnivoice.row import OmniVoiceRow  # noqa: E402
from polychoir.runner.packing import Seat, pack  # noqa: E402

CPU = torch.device("cpu")


@st.composite
def rows(draw: st.DrawFn) -> OmniVoiceRow:
    return OmniVoiceRow(
        text_ids=tuple(draw(st.lists(st.integers(0, 999), min_size=1, max_size=6))),
        target_frames=draw(st.integers(1, 7)),
        timetable=(1,),
        guidance_scale=draw(st.sampled_from([0.0, 2.0])),
        position_temperature=draw(st.sampled_from([0.0, 5.0])),
        class_temperature=draw(st.sampled_from([0.0, 0.7])),
        layer_penalty_factor=5.0,
        seed=draw(st.integers(0, 2**64 - 1)),
        chunk=draw(st.integers(0, 9)),
        ref_frames=draw(st.integers(0, 5)),
    )


def seated(company: list[OmniVoiceRow], seed: int) -> list[Seat]:
    """Seats on arena frames in no order, as they are after many rows have come and gone."""
    total = sum(row.ref_frames + row.target_frames for row in company)
    free = np.random.default_rng(seed).permutation(2 * total)
    seats = []
    for row in company:
        reference, canvas, free = np.split(free, [row.ref_frames, row.ref_frames + row.target_frames])
        seats.append(Seat(row, reference, canvas))
    return seats


@settings(max_examples=80, deadline=None)
@given(company=st.lists(rows(), min_size=1, max_size=7), seed=st.integers(0, 99))
def test_every_run_comes_back_from_the_packed_batch(company: list[OmniVoiceRow], seed: int) -> None:
    """Write each token's meaning into one line of tokens, cut it at the bounds, and read the runs."""
    seats = seated(company, seed)
    batch = pack(seats, CPU)
    line = torch.full((sum(row.tokens for row in company),), -1)
    line[batch.tokens.text_index] = batch.tokens.text_ids
    line[batch.tokens.audio_index] = 10_000 + batch.audio
    runs = [run.tolist() for run in line.tensor_split(batch.tokens.runs.bounds[1:-1].long())]
    expected = [
        [*seat.row.text_ids, *(10_000 + seat.reference), *(10_000 + seat.canvas)] for seat in seats
    ] + [[*(10_000 + seat.canvas)] for seat in seats if seat.row.guidance_scale]
    assert runs == expected
    assert batch.tokens.positions.tolist() == [at for run in expected for at in range(len(run))]
    assert batch.tokens.runs.longest == max(map(len, expected))
    wanted = [10_000 + frame for seat in seats for frame in seat.canvas]
    alone = [10_000 + frame for seat in seats if seat.row.guidance_scale for frame in seat.canvas]
    assert line[batch.tokens.targets].tolist() == wanted + alone
    assert batch.canvas.tolist() == [frame - 10_000 for frame in wanted]


@settings(max_examples=60, deadline=None)
@given(company=st.lists(rows(), min_size=1, max_size=7))
def test_the_sampler_finds_every_row(company: list[OmniVoiceRow]) -> None:
    batch = pack(seated(company, 0), CPU)
    layout, count = batch.layout, sum(row.target_frames for row in company)
    assert layout.row.tolist() == [n for n, row in enumerate(company) for _ in range(row.target_frames)]
    assert layout.frame.tolist() == [f for row in company for f in range(row.target_frames)]
    cells = [
        (start + frame) * 8 + codebook
        for row, start in zip(company, np.cumsum([0, *(r.target_frames for r in company)]), strict=False)
        for codebook in range(8)
        for frame in range(row.target_frames)
    ]
    assert layout.cell_order.tolist() == cells
    assert sorted(cells) == list(range(8 * count))
    assert layout.cell_rank.tolist() == [i for row in company for i in range(8 * row.target_frames)]
    for chosen, wanted in (
        (layout.guided, [row.guidance_scale > 0 for row in company]),
        (layout.warm, [row.position_temperature > 0 for row in company]),
        (layout.drawn, [row.class_temperature > 0 for row in company]),
    ):
        assert chosen.tolist() == [p for p, n in enumerate(layout.row.tolist()) if wanted[n]]
    assert batch.settings.guidance.tolist() == [row.guidance_scale for row in company]
    assert list(zip(batch.settings.key_lo.tolist(), batch.settings.key_hi.tolist(), strict=True)) == [
        seed_words(row.seed) for row in company
    ]
    assert batch.settings.stream.tolist() == [stream_word(row.chunk, 0) for row in company]
