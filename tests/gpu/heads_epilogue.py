"""An experiment: heads and sampler in one, so that logits never reach memory.

A program takes a tile of positions and one codebook (or a share of its vocabulary), multiplies tile after
tile of the heads and keeps, per position, the highest logit, where it was, and the sum of exponentials. A
second launch puts the shares together and scores the cells. Positions past the header's count cost nothing.
Class temperature needs all logits at once and is left out.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polychoir.kernels.fused.score import find, wish_of
from polychoir.kernels.tables import Header, SlotTables, StepTables

_POSITIONS = tl.constexpr(int(Header.POSITIONS))
_PARTS = tl.constexpr(4)


def heads_and_score(
    guided: Tensor,
    heads: Tensor,
    step: StepTables,
    slots: SlotTables,
    source: Tensor,
    cell_row: Tensor,
    token: Tensor,
    score: Tensor,
    partial: Tensor,
    tile: tuple[int, int, int],
    warps: int,
    stages: int,
) -> None:
    """As `fused.score`, from guided hidden states [P, H] and heads [8V, H].

    partial: float32 [P, 8, shares, 4], scratch. tile: positions, entries, hidden columns looked at together;
    shares * entries must divide V - 1, hidden columns H.
    """
    positions, codebooks = token.shape
    shares, mask_id = partial.shape[2], heads.shape[0] // codebooks - 1
    _multiply[(triton.cdiv(positions, tile[0]), codebooks, shares)](
        guided,
        heads,
        step.header,
        partial,
        positions,
        HIDDEN=guided.shape[1],
        CODEBOOKS=codebooks,
        MASK=mask_id,
        SHARES=shares,
        TILE_P=tile[0],
        TILE_V=tile[1],
        TILE_H=tile[2],
        num_warps=warps,
        num_stages=stages,
    )
    _finish[(min(positions * codebooks, 4_096),)](
        partial,
        step.header,
        step.rows,
        slots.arena,
        slots.knobs,
        slots.keys,
        slots.sound,
        source,
        cell_row,
        token,
        score,
        CODEBOOKS=codebooks,
        MASK=mask_id,
        SHARES=shares,
        num_warps=1,
    )


@triton.jit
def _logits(left, heads, entry, inside, HIDDEN: tl.constexpr, TILE_P: tl.constexpr, TILE_H: tl.constexpr):
    """left: pointers [TILE_P, TILE_H] to hidden states; entry: [entries] rows of the heads."""
    column = tl.arange(0, TILE_H)
    total = tl.zeros([TILE_P, entry.shape[0]], tl.float32)
    right = heads + entry[None, :] * HIDDEN + column[:, None]
    for start in range(0, HIDDEN, TILE_H):
        h = tl.load(left + start)
        w = tl.load(right + start, mask=inside[None, :], other=0.0)
        total = tl.dot(h, w, total, input_precision="ieee")
    return total


@triton.jit
def _multiply(
    guided,
    heads,
    header,
    partial,
    capacity,
    HIDDEN: tl.constexpr,
    CODEBOOKS: tl.constexpr,
    MASK: tl.constexpr,
    SHARES: tl.constexpr,
    TILE_P: tl.constexpr,
    TILE_V: tl.constexpr,
    TILE_H: tl.constexpr,
):
    if tl.program_id(0) * TILE_P >= tl.load(header + _POSITIONS):
        return
    codebook, share = tl.program_id(1), tl.program_id(2)
    position = tl.program_id(0) * TILE_P + tl.arange(0, TILE_P)
    read = tl.minimum(position, capacity - 1)
    left = guided + read[:, None] * HIDDEN + tl.arange(0, TILE_H)[None, :]
    own = heads + codebook * (MASK + 1) * HIDDEN
    best = tl.full([TILE_P], -float("inf"), tl.float32)
    total = tl.zeros([TILE_P], tl.float32)
    choice = tl.zeros([TILE_P], tl.int32)
    column = tl.arange(0, TILE_V)
    width: tl.constexpr = MASK // SHARES
    for start in range(share * width, (share + 1) * width, TILE_V):
        logits = _logits(left, own, start + column, column < TILE_V, HIDDEN, TILE_P, TILE_H)
        high = tl.max(logits, 1)
        where = tl.min(tl.where(logits == high[:, None], start + column[None, :], MASK), 1)
        choice = tl.where(high > best, where, choice)
        top = tl.maximum(best, high)
        total = total * tl.exp(best - top) + tl.sum(tl.exp(logits - top[:, None]), 1)
        best = top
    if share == SHARES - 1:
        # The mask entry alone: the narrowest tile that can be multiplied.
        few = tl.arange(0, 16)
        logits = _logits(left, own, MASK + few, few < 1, HIDDEN, TILE_P, TILE_H)
        total += tl.sum(tl.where(few[None, :] < 1, tl.exp(logits - best[:, None]), 0.0), 1)
    out = partial + ((position * CODEBOOKS + codebook) * SHARES + share) * _PARTS
    there = position < capacity
    tl.store(out, best, mask=there)
    tl.store(out + 1, total, mask=there)
    tl.store(out + 2, choice.to(tl.float32, bitcast=True), mask=there)


@triton.jit
def _finish(
    partial,
    header,
    rows,
    arena,
    knobs,
    keys,
    sound,
    source,
    cell_row,
    token,
    score,
    CODEBOOKS: tl.constexpr,
    MASK: tl.constexpr,
    SHARES: tl.constexpr,
):
    cells = tl.load(header + _POSITIONS) * CODEBOOKS
    for cell in range(tl.program_id(0), cells, tl.num_programs(0)):
        row, slot, frame, now = find(cell, rows, arena, source, cell_row, CODEBOOKS)
        wish = -float("inf")
        if now == MASK:
            share = tl.arange(0, SHARES)
            own = partial + (cell * SHARES + share) * _PARTS
            best = tl.load(own)
            top = tl.max(best, 0)
            total = tl.sum(tl.load(own + 1) * tl.exp(best - top), 0)
            choice = tl.load(own + 2).to(tl.int32, bitcast=True)
            tl.store(token + cell, tl.min(tl.where(best == top, choice, MASK), 0))
            wish = -tl.log(total)
            if (tl.abs(wish) < float("inf")) == 0:
                tl.store(sound + slot, 0)
            wish = wish_of(wish, row, slot, frame, cell % CODEBOOKS, knobs, keys)
        tl.store(score + cell, wish)


def scratch(positions: int, codebooks: int, shares: int, device: torch.device | str) -> Tensor:
    """What `heads_and_score` wants as `partial`."""
    return torch.empty(positions, codebooks, shares, 4, device=device)
