"""The guided sampler in plain torch: the truth that every faster kernel is compared with.

Order and float32 precision of the scoring are those of the published package `omnivoice` 0.2.1, so that
near-ties fall the same way (checked cell by cell in tests/parity). All rows of a step are done at once;
each row has its own guidance, temperatures, penalty, seed and step.

Ties: of equal scores the lower flat cell index, codebook * frames + frame, is revealed first; of equal
log-probabilities the lower vocabulary entry is taken. Both depend on the row alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from polychoir.kernels.noise import CLASS, POSITION, NoiseKeys, uniform

KEEP_RATIO = 0.1
"""Share of the vocabulary that class temperature chooses from."""
_EPSILON = 1e-10


@dataclass(frozen=True, slots=True)
class SampleLayout:
    """Where the rows of a step lie among its P target positions and 8P cells; fixed while nobody joins.

    row: int64 [P], the row each position belongs to. frame: int64 [P], its frame within the row.
    cell_order: int64 [8P], indices into flat [P, 8] cells such that rows follow each other and within a
        row the order is codebook-major. cell_row, cell_rank: int64 [8P], in that order, the row and the
        index within the row.
    guided, warm, drawn: int64 positions whose row has guidance, a position temperature, a class
        temperature. guided is also the order of the unconditional logits.
    """

    row: Tensor
    frame: Tensor
    cell_order: Tensor
    cell_row: Tensor
    cell_rank: Tensor
    guided: Tensor
    warm: Tensor
    drawn: Tensor


@dataclass(frozen=True, slots=True)
class SampleParams:
    """One entry per row: float32 [R] settings, int64 [R] noise keys and number of cells to reveal."""

    guidance: Tensor
    position_temperature: Tensor
    class_temperature: Tensor
    layer_penalty: Tensor
    keys: NoiseKeys
    reveal: Tensor


def guided_log_probs(cond: Tensor, uncond: Tensor, guidance: Tensor, guided: Tensor, mask_id: int) -> Tensor:
    """Log-probabilities of every cell, the mask entry excluded.

    cond: [P, C, V] logits; uncond: [G, C, V] logits of the positions `guided` [G]; guidance: [G] float32.
    Returns float32 [P, C, V].
    """
    log_probs = torch.log_softmax(cond.float(), dim=-1)
    if guided.numel():
        whole = guided.numel() == cond.shape[0]
        with_text = log_probs if whole else log_probs[guided]
        without = torch.log_softmax(uncond.float(), dim=-1)
        pushed = with_text + guidance[:, None, None] * (with_text - without)
        sharpened = torch.log_softmax(pushed, dim=-1)
        log_probs = sharpened if whole else log_probs.index_copy(0, guided, sharpened)
    log_probs[..., mask_id] = -math.inf
    return log_probs


def predict(log_probs: Tensor, layout: SampleLayout, params: SampleParams) -> tuple[Tensor, Tensor]:
    """The token each cell would take and how sure it is: int64 and float32, both [P, C]."""
    confidence, tokens = log_probs.max(dim=-1)
    if layout.drawn.numel():
        drawn = layout.drawn
        tokens = tokens.index_copy(0, drawn, _draw(log_probs[drawn], drawn, layout, params))
    return tokens, confidence


def _draw(log_probs: Tensor, positions: Tensor, layout: SampleLayout, params: SampleParams) -> Tensor:
    """Sample from the most probable tenth of the vocabulary by Gumbel noise; noise only for what is kept."""
    rows = layout.row[positions]
    kept, entries = log_probs.topk(math.ceil(KEEP_RATIO * log_probs.shape[-1]), dim=-1)
    codebook = torch.arange(log_probs.shape[1], device=log_probs.device)[None, :, None]
    keys = params.keys.take(rows[:, None, None])
    u = uniform(keys, CLASS, layout.frame[positions][:, None, None], codebook, entries)
    scores = kept / params.class_temperature[rows][:, None, None] + _gumbel(u)
    best = scores.max(dim=-1, keepdim=True).values
    return entries.masked_fill(scores != best, log_probs.shape[-1]).min(dim=-1).values


def cell_scores(confidence: Tensor, layout: SampleLayout, params: SampleParams) -> Tensor:
    """How much each cell wants to be revealed now: float32 [P, C]. Revealed cells are not excluded yet."""
    codebook = torch.arange(confidence.shape[1], device=confidence.device)
    scores = confidence - codebook.float() * params.layer_penalty[layout.row][:, None]
    if layout.warm.numel():
        warm = layout.warm
        rows = layout.row[warm]
        keys = params.keys.take(rows[:, None])
        u = uniform(keys, POSITION, layout.frame[warm][:, None], codebook[None, :])
        scaled = scores[warm] / params.position_temperature[rows][:, None]
        scores = scores.index_copy(0, warm, scaled + _gumbel(u))
    return scores


def _gumbel(u: Tensor) -> Tensor:
    return -torch.log(-torch.log(u + _EPSILON) + _EPSILON)


def choose_cells(scores: Tensor, masked: Tensor, layout: SampleLayout, count: Tensor) -> Tensor:
    """Which cells are revealed now: bool [P, C], the `count` best masked ones of each row.

    scores: float32 [P, C]; masked: bool [P, C]; count: int64 [R]. Two stable sorts rank all rows at once
    without padding: by score, then by row.
    """
    # A live score may have overflowed to -inf; it must still come before every cell that is revealed already.
    live = scores.clamp_min(torch.finfo(scores.dtype).min)
    flat = live.masked_fill(~masked, -math.inf).reshape(-1)[layout.cell_order]
    by_score = torch.argsort(flat, descending=True, stable=True)
    by_row = by_score[torch.argsort(layout.cell_row[by_score], stable=True)]
    # cell_row is sorted, so place i of the sorted cells lies in row cell_row[i] and has rank cell_rank[i].
    chosen = torch.empty_like(by_row, dtype=torch.bool)
    chosen[by_row] = layout.cell_rank < count[layout.cell_row]
    taken = torch.empty_like(chosen)
    taken[layout.cell_order] = chosen
    return taken.view_as(masked) & masked


def finite_rows(confidence: Tensor, layout: SampleLayout, rows: int) -> Tensor:
    """bool [rows]: False for a row with any confidence that is not a number. No row sees another's."""
    broken = (~torch.isfinite(confidence)).any(dim=-1).to(torch.int32)
    total = torch.zeros(rows, dtype=torch.int32, device=confidence.device)
    return total.index_add_(0, layout.row, broken) == 0


def sample_step(
    logits: Tensor, canvas: Tensor, layout: SampleLayout, params: SampleParams, mask_id: int
) -> tuple[Tensor, Tensor]:
    """One step of unmasking for all rows.

    logits: [P + G, C, V], the conditional ones first, then the unconditional ones of `layout.guided`.
    canvas: integers [P, C]. Returns the new canvas, in which a row with a non-finite score is left as it
    was, and bool [R] saying which rows are sound.
    """
    cond, uncond = logits[: canvas.shape[0]], logits[canvas.shape[0] :]
    guidance = params.guidance[layout.row[layout.guided]]
    log_probs = guided_log_probs(cond, uncond, guidance, layout.guided, mask_id)
    tokens, confidence = predict(log_probs, layout, params)
    sound = finite_rows(confidence, layout, params.reveal.numel())
    scores = cell_scores(confidence, layout, params)
    count = torch.where(sound, params.reveal, 0)
    chosen = choose_cells(scores, canvas == mask_id, layout, count)
    return torch.where(chosen, tokens.to(canvas.dtype), canvas), sound
