"""Expand, score and reveal in plain torch beside the tables read one entry at a time and the reference."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="the kernels need the extra [omnivoice]")

from polychoir.kernels import plain_step  # noqa: E402
from polychoir.kernels.noise import NoiseKeys  # noqa: E402
from polychoir.kernels.reference import SampleLayout, SampleParams, sample_step  # noqa: E402
from polychoir.kernels.tables import BLOCK, Key, Knob, Row, Run  # noqa: E402
from tests.support.step_tables import CODEBOOKS, Situation, TestRow, situation  # noqa: E402

VOCABULARY, MASK = 33, 32


def run(s: Situation) -> None:
    plain_step.expand(s.step, s.slots, s.source, s.position, s.cell_row)
    plain_step.score(s.logits, s.step, s.slots, s.source, s.cell_row, s.token, s.score, MASK)
    plain_step.reveal(s.step, s.slots, s.source, s.token, s.score, MASK)


def test_expand_says_where_every_token_lies() -> None:
    rows = [TestRow(1), TestRow(130, prefix=70), TestRow(65, guidance=0.0), TestRow(7, prefix=64)]
    s = situation(rows, torch.Generator().manual_seed(0))
    plain_step.expand(s.step, s.slots, s.source, s.position, s.cell_row)
    source, position = [], []
    for run_entry in s.step.runs[: 2 * len(rows) - 1].tolist():
        for place in range(run_entry[Run.LENGTH]):
            token = place + run_entry[Run.OFFSET]
            block = int(s.slots.blocks[run_entry[Run.SLOT], token // BLOCK])
            source.append(block * BLOCK + token % BLOCK)
            position.append(place)
    spare = s.source.numel() - s.tokens
    assert s.source.tolist() == source + [-1] * spare
    assert s.position.tolist() == position + [0] * spare
    owners = [index for index, row in enumerate(rows) for _ in range(row.frames)]
    assert s.cell_row.tolist() == owners + [-1] * spare
    first_uncond = int(s.step.rows[1, Row.UNCOND])
    assert s.source[first_uncond] == s.source[int(s.step.rows[1, Row.COND])]


def one_row(s: Situation, index: int) -> torch.Tensor:
    """The canvas [frames, 8] of a row of guided logits after the reference's whole step, alone."""
    row = s.step.rows[index].tolist()
    slot, frames, first = row[Row.SLOT], row[Row.FRAMES], row[Row.FIRST]
    knobs = s.slots.knobs[slot]
    every, none = torch.arange(frames), torch.empty(0, dtype=torch.int64)
    cells = torch.arange(frames * CODEBOOKS)
    layout = SampleLayout(
        row=torch.zeros(frames, dtype=torch.int64),
        frame=every,
        cell_order=cells.view(frames, CODEBOOKS).T.reshape(-1),
        cell_row=torch.zeros_like(cells),
        cell_rank=cells,
        guided=none,
        warm=every if knobs[Knob.POSITION_TEMPERATURE] else none,
        drawn=every if knobs[Knob.CLASS_TEMPERATURE] else none,
    )
    keys = s.slots.keys[slot]
    params = SampleParams(
        *knobs[:, None],
        NoiseKeys(keys[None, Key.LOW], keys[None, Key.HIGH], keys[None, Key.STREAM], torch.tensor([row[1]])),
        s.slots.timetable[slot, row[Row.STEP]].long()[None],
    )
    logits = s.logits[first : first + frames].view(frames, CODEBOOKS, VOCABULARY)
    canvas, sound = sample_step(logits, canvas_of(s, index), layout, params, MASK)
    assert sound.all()
    return canvas


def canvas_of(s: Situation, index: int) -> torch.Tensor:
    row = s.step.rows[index].tolist()
    tokens = torch.arange(row[Row.FRAMES])
    offset = int(s.step.runs[index, Run.LENGTH]) - row[Row.FRAMES]
    blocks = s.slots.blocks[row[Row.SLOT], (tokens + offset) // BLOCK].long()
    return s.slots.arena[blocks * BLOCK + (tokens + offset) % BLOCK]


def test_a_step_of_many_rows_is_the_reference_of_each() -> None:
    rows = [
        TestRow(1, masked=1.0, reveal=3),
        TestRow(20, class_temperature=0.8, prefix=60),
        TestRow(9, position_temperature=0.0, guidance=0.0, layer_penalty=0.0),
        TestRow(70, class_temperature=1.5, position_temperature=0.0, reveal=200),
        TestRow(5, masked=0.0),
        TestRow(6, masked=1.0, reveal=48),
    ]
    s = situation(rows, torch.Generator().manual_seed(1))
    wanted = [one_row(s, index) for index in range(len(rows))]
    before = s.copy()
    run(s)
    for index, canvas in enumerate(wanted):
        assert torch.equal(canvas_of(s, index), canvas)
    changed = (s.slots.arena != before.slots.arena).sum()
    assert changed == sum(
        int((after != canvas_of(before, index)).sum()) for index, after in enumerate(wanted)
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_row_is_left_and_marked_and_its_neighbours_are_not(bad: float) -> None:
    rows = [TestRow(6, masked=1.0), TestRow(6, masked=1.0), TestRow(6, masked=1.0)]
    s = situation(rows, torch.Generator().manual_seed(2))
    wanted = [one_row(s, index) for index in (0, 2)]
    before = canvas_of(s, 1)
    s.logits[8, 40] = bad
    run(s)
    assert torch.equal(canvas_of(s, 1), before)
    assert [int(s.slots.sound[slot]) for slot in s.step.rows[:3, Row.SLOT]] == [1, 0, 1]
    for index, canvas in zip((0, 2), wanted, strict=True):
        assert torch.equal(canvas_of(s, index), canvas)


def test_logits_of_revealed_cells_may_be_anything() -> None:
    s = situation([TestRow(6, masked=0.0)], torch.Generator().manual_seed(3))
    s.logits.fill_(math.nan)
    before = canvas_of(s, 0)
    run(s)
    assert torch.equal(canvas_of(s, 0), before)
    assert s.slots.sound.all()
    assert (s.score[: s.positions] == -math.inf).all()
