"""Expand, score and reveal in plain torch on the step's tables: the truth the fused ones are compared with.

The rule itself is `kernels/reference.py`; here its layout and parameters are made from the tables. The
counts in the header are read on the host, so nothing here may be captured in a graph.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polychoir.kernels.noise import NoiseKeys
from polychoir.kernels.reference import (
    KEEP_RATIO,
    SampleLayout,
    SampleParams,
    cell_scores,
    choose_cells,
    predict,
)
from polychoir.kernels.tables import BLOCK, Header, Key, Knob, Row, Run, SlotTables, StepTables


def expand(step: StepTables, slots: SlotTables, source: Tensor, position: Tensor, cell_row: Tensor) -> None:
    """Write where each packed token lies and whose each position is.

    source: int32 [N], arena row of each token, -1 past the last. position: int32 [N], its place within its
    run, 0 past the last. cell_row: int32 [P], the row of each position, -1 past the last.
    """
    runs = step.runs[: _count(step, Header.RUNS)].long()
    run = torch.repeat_interleave(runs[:, Run.LENGTH])
    place = torch.arange(run.numel(), device=run.device) - runs[run, Run.START]
    token = place + runs[run, Run.OFFSET]
    blocks = slots.blocks[runs[run, Run.SLOT], token // BLOCK]
    _fill(source, blocks * BLOCK + token % BLOCK, -1)
    _fill(position, place, 0)
    _fill(cell_row, torch.repeat_interleave(_rows(step)[:, Row.FRAMES]), -1)


def score(
    logits: Tensor,
    step: StepTables,
    slots: SlotTables,
    source: Tensor,
    cell_row: Tensor,
    token: Tensor,
    score: Tensor,
    mask_id: int,
) -> None:
    """Predict every masked cell of the step.

    logits: [P, 8V], guided already. Written: token int32 [P, 8], the entry a masked cell would take; score
    float32 [P, 8], -inf where revealed; slots.sound, 0 for a row with a confidence that is not finite.
    Entries past the last position are left.
    """
    layout, canvas = _layout(step, slots), _canvas(step, slots, source)
    count, codebooks = canvas.shape
    if not count:
        return
    log_probs = torch.log_softmax(logits[:count].float().view(count, codebooks, -1), dim=-1)
    log_probs[..., mask_id] = -math.inf
    params = _params(step, slots)
    if layout.drawn.numel():
        # The reference leaves it to topk which of two equal entries at the border is kept; here the lower is.
        log_probs.index_copy_(0, layout.drawn, _most_probable(log_probs[layout.drawn]))
    tokens, confidence = predict(log_probs, layout, params)
    masked = canvas == mask_id
    broken = (masked & ~torch.isfinite(confidence)).any(dim=-1)
    slots.sound[_rows(step)[layout.row[broken], Row.SLOT]] = 0
    live = cell_scores(confidence, layout, params).clamp_min(torch.finfo(torch.float32).min)
    token[:count] = tokens.to(token.dtype)
    score[:count] = live.masked_fill(~masked, -math.inf)


def reveal(
    step: StepTables, slots: SlotTables, source: Tensor, token: Tensor, score: Tensor, mask_id: int
) -> None:
    """Write the tokens of this step's cells into the arena; rows that are not sound and cells that have
    their code already are left.

    source: [N] from `expand`; token, score: [P, 8] from `score`.
    """
    layout, rows = _layout(step, slots), _rows(step)
    count = layout.row.numel()
    scores = score[:count]
    slot = rows[:, Row.SLOT]
    reveal = slots.timetable[slot, rows[:, Row.STEP]].clamp_min(0) * slots.sound[slot]
    chosen = choose_cells(scores, scores > -math.inf, layout, reveal.long())
    chosen &= _canvas(step, slots, source) == mask_id
    position, codebook = chosen.nonzero(as_tuple=True)
    places = source[rows[layout.row, Row.COND] + layout.frame].long()
    slots.arena[places[position], codebook] = token[position, codebook].to(slots.arena.dtype)


def _count(step: StepTables, which: Header) -> int:
    return int(step.header[which])


def _rows(step: StepTables) -> Tensor:
    return step.rows[: _count(step, Header.ROWS)].long()


def _fill(table: Tensor, values: Tensor, rest: int) -> None:
    table[: values.numel()] = values.to(table.dtype)
    table[values.numel() :] = rest


def _canvas(step: StepTables, slots: SlotTables, source: Tensor) -> Tensor:
    """The tokens of every target position: [positions, 8]."""
    rows = _rows(step)
    row = torch.repeat_interleave(rows[:, Row.FRAMES])
    frame = torch.arange(row.numel(), device=row.device) - rows[row, Row.FIRST]
    return slots.arena[source[rows[row, Row.COND] + frame].long()]


def _layout(step: StepTables, slots: SlotTables) -> SampleLayout:
    rows, codebooks = _rows(step), slots.arena.shape[1]
    frames, first = rows[:, Row.FRAMES], rows[:, Row.FIRST]
    row = torch.repeat_interleave(frames)
    frame = torch.arange(row.numel(), device=row.device) - first[row]
    rank = torch.arange(codebooks, device=row.device) * frames[row, None] + frame[:, None]
    cell_order = (first[row, None] * codebooks + rank).reshape(-1).argsort()
    cell_row = row.repeat_interleave(codebooks)
    knobs = slots.knobs[rows[row, Row.SLOT]]
    return SampleLayout(
        row=row,
        frame=frame,
        cell_order=cell_order,
        cell_row=cell_row,
        cell_rank=torch.arange(cell_row.numel(), device=row.device) - (first * codebooks)[cell_row],
        guided=row.new_empty(0),
        warm=(knobs[:, Knob.POSITION_TEMPERATURE] > 0).nonzero().squeeze(1),
        drawn=(knobs[:, Knob.CLASS_TEMPERATURE] > 0).nonzero().squeeze(1),
    )


def _params(step: StepTables, slots: SlotTables) -> SampleParams:
    rows = _rows(step)
    slot = rows[:, Row.SLOT]
    knobs, keys = slots.knobs[slot], slots.keys[slot]
    return SampleParams(
        guidance=knobs[:, Knob.GUIDANCE],
        position_temperature=knobs[:, Knob.POSITION_TEMPERATURE],
        class_temperature=knobs[:, Knob.CLASS_TEMPERATURE],
        layer_penalty=knobs[:, Knob.LAYER_PENALTY],
        keys=NoiseKeys(keys[:, Key.LOW], keys[:, Key.HIGH], keys[:, Key.STREAM], rows[:, Row.STEP]),
        reveal=slots.timetable[slot, rows[:, Row.STEP]].long(),
    )


def _most_probable(log_probs: Tensor) -> Tensor:
    """All but the share of entries that class temperature chooses from are -inf; of equals the lower stay."""
    count = math.ceil(KEEP_RATIO * log_probs.shape[-1])
    kept = log_probs.argsort(dim=-1, descending=True, stable=True)[..., :count]
    return torch.full_like(log_probs, -math.inf).scatter(-1, kept, log_probs.gather(-1, kept))
