"""Packing and unpacking lose nothing and mix nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the runner needs the extra [omnivoice]")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from polychoir.kernels.noise import seed_words, stream_word  # noqa: E402
from polychoir.kernels.tables import Row, Run  # noqa: E402
from polychoir.models.omnivoice.row import OmniVoiceRow  # noqa: E402
from polychoir.runner.packing import pack, split  # noqa: E402
from polychoir.runner.plain_step import make_batch, sample_params  # noqa: E402
from polychoir.runner.slots import Slot, SlotTable  # noqa: E402

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


def seated(company: list[OmniVoiceRow], seed: int) -> tuple[SlotTable, list[Slot]]:
    """Slots whose blocks are in no order, as they are after many rows have come and gone."""
    table = SlotTable(codebooks=8, mask_id=16, limit=16, tokens=1_024, longest=256, device=CPU)
    table._free = np.random.default_rng(seed).permutation(table._free)
    slots = [table.seat(number, row, 0) for number, row in enumerate(company)]
    codes = [np.zeros((8, row.ref_frames), np.int16) for row in company]
    table.upload(list(zip(slots, codes, strict=True)))
    return table, slots


@settings(max_examples=80, deadline=None)
@given(company=st.lists(rows(), min_size=1, max_size=7), seed=st.integers(0, 99))
def test_every_run_comes_back_from_the_packing(company: list[OmniVoiceRow], seed: int) -> None:
    """Cut the packed tokens at the runs' bounds and compare with what each row holds."""
    _, slots = seated(company, seed)
    packing = pack(slots)
    expected = [slot.where.tolist() for slot in slots]
    expected += [slot.canvas.tolist() for slot in slots if slot.row.guidance_scale]
    runs = packing.runs
    found = [packing.source[run[Run.START] : run[Run.START] + run[Run.LENGTH]].tolist() for run in runs]
    assert found == expected
    assert packing.tokens == sum(row.tokens for row in company) == len(packing.source)
    assert packing.position.tolist() == [at for run in expected for at in range(len(run))]
    for run, tokens in zip(runs, expected, strict=True):
        (owner,) = [slot for slot in slots if slot.number == run[Run.SLOT]]
        assert owner.where[run[Run.OFFSET] :].tolist() == tokens
    cells = [token for slot in slots for token in slot.canvas]
    alone = [token for slot in slots if slot.row.guidance_scale for token in slot.canvas]
    assert packing.source[packing.targets].tolist() == cells + alone
    for row, slot in zip(packing.rows, slots, strict=True):
        assert row[Row.SLOT] == slot.number
        assert packing.row_of[row[Row.FIRST]] == slot.number
        assert packing.source[row[Row.COND]] == slot.canvas[0]
        if row[Row.UNCOND] >= 0:
            assert packing.source[row[Row.UNCOND]] == slot.canvas[0]
        assert (row[Row.UNCOND] >= 0) == (slot.row.guidance_scale > 0)


@settings(max_examples=60, deadline=None)
@given(company=st.lists(rows(), min_size=1, max_size=7))
def test_the_sampler_finds_every_row(company: list[OmniVoiceRow]) -> None:
    table, slots = seated(company, 0)
    batch = make_batch(pack(slots), CPU)
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
    step = torch.arange(len(company))
    params = sample_params(table.tables, batch.slots, step, step + 1)
    assert params.guidance.tolist() == [row.guidance_scale for row in company]
    keys = params.keys
    assert list(zip(keys.key_lo.tolist(), keys.key_hi.tolist(), strict=True)) == [
        seed_words(row.seed) for row in company
    ]
    assert keys.stream.tolist() == [stream_word(row.chunk, 0) for row in company]
    assert (keys.step.tolist(), params.reveal.tolist()) == (step.tolist(), (step + 1).tolist())


@settings(max_examples=60, deadline=None)
@given(company=st.lists(rows(), min_size=1, max_size=9), tokens=st.integers(10, 60), most=st.integers(1, 4))
def test_a_step_is_cut_into_parts_that_fit(company: list[OmniVoiceRow], tokens: int, most: int) -> None:
    _, slots = seated(company, 0)
    parts = [slots[part] for part in split(slots, tokens=tokens, rows=most)]
    assert [slot for part in parts for slot in part] == slots
    for part in parts:
        assert len(part) == 1 or sum(slot.row.tokens for slot in part) <= tokens
        assert 1 <= len(part) <= most
    for one, other in itertools.pairwise(parts):  # no part could have taken the row after it
        assert len(one) == most or sum(s.row.tokens for s in [*one, other[0]]) > tokens
