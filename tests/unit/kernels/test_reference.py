"""The vectorised sampler beside the same rule written for one row, cell by cell."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the sampler needs the extra [omnivoice]")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from polychoir.kernels.reference import choose_cells, sample_step  # noqa: E402
from polychoir.models.omnivoice.row import OmniVoiceRow  # noqa: E402
from polychoir.runner.packing import pack  # noqa: E402
from polychoir.runner.plain_step import PlainBatch, make_batch, sample_params  # noqa: E402
from polychoir.runner.slots import SlotTable  # noqa: E402
from tests.support.philox import uniform as noise  # noqa: E402

VOCABULARY, MASK, CODEBOOKS = 33, 32, 8


@dataclass(frozen=True)
class Situation:
    """A row in the middle of its life: logits [frames, 8, V] and canvas [frames, 8]."""

    row: OmniVoiceRow
    step: int
    count: int
    cond: torch.Tensor
    uncond: torch.Tensor
    canvas: torch.Tensor


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    frames = draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    cond, uncond = (3 * torch.randn(frames, CODEBOOKS, VOCABULARY, generator=generator) for _ in range(2))
    canvas = torch.randint(0, MASK, (frames, CODEBOOKS), generator=generator)
    canvas[torch.rand(canvas.shape, generator=generator) < 0.6] = MASK
    row = OmniVoiceRow(
        text_ids=(1,) * draw(st.integers(1, 4)),
        target_frames=frames,
        timetable=(CODEBOOKS * frames,),
        guidance_scale=draw(st.sampled_from([0.0, 1.0, 2.5])),
        position_temperature=draw(st.sampled_from([0.0, 5.0])),
        class_temperature=draw(st.sampled_from([0.0, 0.7])),
        layer_penalty_factor=draw(st.sampled_from([0.0, 5.0])),
        seed=draw(st.integers(0, 2**64 - 1)),
        chunk=draw(st.integers(0, 5)),
        attempt=draw(st.integers(0, 2)),
    )
    masked = int((canvas == MASK).sum())
    return Situation(row, draw(st.integers(0, 40)), draw(st.integers(0, masked)), cond, uncond, canvas)


def seated(rows: list[OmniVoiceRow]) -> tuple[SlotTable, PlainBatch]:
    table = SlotTable(
        codebooks=CODEBOOKS, mask_id=MASK, limit=8, tokens=1_024, longest=1_024, device=torch.device("cpu")
    )
    slots = [table.seat(number, row, 0) for number, row in enumerate(rows)]
    table.upload([(slot, None) for slot in slots])
    return table, make_batch(pack(slots), torch.device("cpu"))


def together(rows: list[Situation]) -> tuple[list[torch.Tensor], list[bool]]:
    """New canvases and soundness from one vectorised step over all rows."""
    table, batch = seated([s.row for s in rows])
    logits = [s.cond for s in rows] + [s.uncond for s in rows if s.row.guidance_scale]
    clock = torch.tensor([[s.step, s.count] for s in rows])
    canvas, sound = sample_step(
        torch.cat(logits),
        torch.cat([s.canvas for s in rows]),
        batch.layout,
        sample_params(table.tables, batch.slots, *clock.unbind(1)),
        MASK,
    )
    return list(canvas.split([s.row.target_frames for s in rows])), sound.tolist()


def drawn(s: Situation, entries: int | None) -> np.ndarray:
    shape = (CODEBOOKS, s.row.target_frames, entries)
    return noise(s.row.seed, s.step, shape, s.row.chunk, s.row.attempt)


def one_row(s: Situation) -> torch.Tensor:
    """The rule as the model's description states it, for one row; flat cells are codebook-major."""
    row = s.row
    cond = torch.log_softmax(s.cond, -1)
    if row.guidance_scale:
        cond = torch.log_softmax(cond + row.guidance_scale * (cond - torch.log_softmax(s.uncond, -1)), -1)
    cond[..., MASK] = -math.inf
    confidence, tokens = cond.max(-1)
    if row.class_temperature:
        kept = cond >= cond.topk(math.ceil(VOCABULARY / 10), -1).values[..., -1:]
        u = torch.from_numpy(drawn(s, VOCABULARY)).transpose(0, 1)
        gumbel = -torch.log(-torch.log(u + 1e-10) + 1e-10)
        tokens = (cond / row.class_temperature + gumbel).masked_fill(~kept, -math.inf).argmax(-1)
    scores = confidence - torch.arange(CODEBOOKS) * row.layer_penalty_factor
    if row.position_temperature:
        u = torch.from_numpy(drawn(s, None)).T
        scores = scores / row.position_temperature - torch.log(-torch.log(u + 1e-10) + 1e-10)
    canvas = s.canvas.clone()
    masked = [(c, f) for c in range(CODEBOOKS) for f in range(row.target_frames) if canvas[f, c] == MASK]
    masked.sort(key=lambda cell: -float(scores[cell[1], cell[0]]))  # stable: ties keep the flat order
    for codebook, frame in masked[: s.count]:
        canvas[frame, codebook] = tokens[frame, codebook]
    return canvas


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(situations(), min_size=1, max_size=6))
def test_all_rows_at_once_equal_each_row_by_the_rule(rows: list[Situation]) -> None:
    canvases, sound = together(rows)
    assert all(sound)
    for situation, canvas in zip(rows, canvases, strict=True):
        assert (canvas == one_row(situation)).all()
        assert int((canvas != situation.canvas).sum()) == situation.count


@settings(max_examples=20, deadline=None)
@given(rows=st.lists(situations(), min_size=2, max_size=4), where=st.sampled_from(["cond", "uncond"]))
def test_a_row_that_is_not_finite_is_left_as_it_was(rows: list[Situation], where: str) -> None:
    first = rows[0]
    if first.row.guidance_scale == 0:
        where = "cond"
    getattr(first, where)[0, 0, 3] = math.nan
    canvases, sound = together(rows)
    assert sound == [False] + [True] * (len(rows) - 1)
    assert (canvases[0] == first.canvas).all()
    for situation, canvas in zip(rows[1:], canvases[1:], strict=True):
        assert (canvas == one_row(situation)).all()


def test_ties_go_to_the_lower_flat_cell() -> None:
    """Two rows of equal scores everywhere: codebook 0 of every frame comes first, frame by frame."""
    row = OmniVoiceRow((1,), 3, (24,), 0.0, 0.0, 0.0, 0.0, seed=0)
    layout = seated([row, row])[1].layout
    scores, masked = torch.zeros(6, CODEBOOKS), torch.ones(6, CODEBOOKS, dtype=torch.bool)
    chosen = choose_cells(scores, masked, layout, torch.tensor([4, 1]))
    expected = torch.zeros_like(masked)
    expected[:3, 0] = True
    expected[0, 1] = True
    expected[3, 0] = True
    assert (chosen == expected).all()


def test_scores_that_overflow_still_come_before_revealed_cells() -> None:
    """A tiny temperature divides live scores to -inf: every masked cell must be revealed all the same."""
    from polychoir.kernels.reference import SampleLayout

    cells = torch.arange(8)
    nothing = torch.empty(0, dtype=torch.int64)
    layout = SampleLayout(
        row=torch.zeros(1, dtype=torch.int64),
        frame=torch.zeros(1, dtype=torch.int64),
        cell_order=cells,
        cell_row=torch.zeros(8, dtype=torch.int64),
        cell_rank=cells,
        guided=nothing,
        warm=nothing,
        drawn=nothing,
    )
    masked = torch.tensor([[False, False, False, True, True, True, True, True]])
    chosen = choose_cells(torch.full((1, 8), float("-inf")), masked, layout, torch.tensor([5]))
    assert chosen.tolist() == masked.tolist()
