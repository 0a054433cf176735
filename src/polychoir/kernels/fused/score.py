"""What each masked cell would take and how much it wants it: one pass over the logits.

The logits are read as they are, bf16, fp16 or fp32; nothing of their size is written. Guidance is in them
already (`combine`), so the log-probability of entry v is w_v - logsumexp(w), the mask entry in the sum.
Class temperature has a second launch of its own, which ends at once where no row asks for it: its noise
needs four times the registers, and the cells in flight on the way of every step would be a quarter.
"""

# Arguments of a kernel have no Python types: Triton settles them when it compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from polychoir.kernels import tables
from polychoir.kernels.fused.philox import CLASS, POSITION, cell_uniform, entry_uniform, gumbel, log
from polychoir.kernels.reference import KEEP_RATIO
from polychoir.kernels.tables import SlotTables, StepTables

_POSITIONS = tl.constexpr(int(tables.Header.POSITIONS))
_ROWS = tl.constexpr(int(tables.Header.ROWS))
_ROW_WIDTH = tl.constexpr(tables.ROW_WIDTH)
_SLOT = tl.constexpr(int(tables.Row.SLOT))
_STEP = tl.constexpr(int(tables.Row.STEP))
_COND = tl.constexpr(int(tables.Row.COND))
_FIRST = tl.constexpr(int(tables.Row.FIRST))
_KNOBS = tl.constexpr(len(tables.Knob))
_POSITION_TEMPERATURE = tl.constexpr(int(tables.Knob.POSITION_TEMPERATURE))
_CLASS_TEMPERATURE = tl.constexpr(int(tables.Knob.CLASS_TEMPERATURE))
_LAYER_PENALTY = tl.constexpr(int(tables.Knob.LAYER_PENALTY))
_KEYS = tl.constexpr(len(tables.Key))
_LOWEST = tl.constexpr(torch.finfo(torch.float32).min)


@dataclass(frozen=True, slots=True)
class Launch:
    """How the cells are spread: at most `programs` of `warps` warps, each taking one cell at a time."""

    programs: int
    warps: int


SCORE = Launch(4_096, 1)
DRAW = Launch(1_024, 4)


def score(
    logits: Tensor,
    step: StepTables,
    slots: SlotTables,
    source: Tensor,
    cell_row: Tensor,
    token: Tensor,
    score: Tensor,
    mask_id: int,
    launch: Launch = SCORE,
) -> None:
    """Predict every masked cell of the step; the rule is that of `kernels/plain_step.py`.

    logits: [P, 8V] of any float dtype, rows contiguous. source: [N] and cell_row: [P] from `expand`.
    Written: token int32 [P, 8], the entry a masked cell would take; score float32 [P, 8], -inf where
    revealed, whose logits are not read and whose token is left; slots.sound, 0 for a row with a confidence
    that is not finite. Entries past the last position are left. Raises ValueError unless the mask is the
    vocabulary's last entry.
    """
    positions, codebooks = token.shape
    vocabulary = logits.shape[1] // codebooks
    if mask_id != vocabulary - 1:
        raise ValueError(f"the mask must be the last of {vocabulary} entries, not entry {mask_id}")
    cells, tile = positions * codebooks, max(4, triton.next_power_of_2(mask_id))
    common = (
        logits,
        step.header,
        step.rows,
        slots.arena,
        slots.knobs,
        slots.keys,
        slots.sound,
        source,
        cell_row,
        token,
    )
    _score[(min(cells, launch.programs),)](
        *common, score, logits.stride(0), CODEBOOKS=codebooks, MASK=mask_id, TILE=tile, num_warps=launch.warps
    )
    _draw[(min(cells, DRAW.programs),)](
        *common,
        logits.stride(0),
        CODEBOOKS=codebooks,
        MASK=mask_id,
        TILE=tile,
        KEEP=math.ceil(KEEP_RATIO * vocabulary),
        ROWS=triton.next_power_of_2(step.rows.shape[0]),
        num_warps=DRAW.warps,
    )


@triton.jit
def find(cell, rows, arena, source, cell_row, CODEBOOKS: tl.constexpr):
    """The row of a cell (a pointer), its slot, the cell's frame within the row, and the token it has."""
    position = cell // CODEBOOKS
    row = rows + tl.load(cell_row + position) * _ROW_WIDTH
    frame = position - tl.load(row + _FIRST)
    place = tl.load(source + tl.load(row + _COND) + frame)
    return row, tl.load(row + _SLOT), frame, tl.load(arena + place * CODEBOOKS + cell % CODEBOOKS)


@triton.jit
def _read(logits, cell, logits_stride, CODEBOOKS: tl.constexpr, MASK: tl.constexpr, TILE: tl.constexpr):
    """A cell's logits without the mask entry, [TILE] float32, -inf past the end; their highest with the
    mask entry counted, and the logarithm of the sum of all relative to that. Anything not a number is in
    the sum."""
    base = logits + tl.cast(cell // CODEBOOKS, tl.int64) * logits_stride + (cell % CODEBOOKS) * (MASK + 1)
    entry = tl.arange(0, TILE)
    w = tl.load(base + entry, mask=entry < MASK, other=-float("inf")).to(tl.float32)
    unchosen = tl.load(base + MASK).to(tl.float32)
    top = tl.maximum(tl.max(w, 0), unchosen)
    return w, top, log(tl.sum(tl.exp(w - top), 0) + tl.exp(unchosen - top))


@triton.jit
def wish_of(confidence, row, slot, frame, codebook, knobs, keys):
    """The score of a masked cell: its confidence after penalty, position temperature and noise."""
    settings = knobs + slot * _KNOBS
    wish = confidence - tl.cast(codebook, tl.float32) * tl.load(settings + _LAYER_PENALTY)
    temperature = tl.load(settings + _POSITION_TEMPERATURE)
    if temperature > 0:
        u = cell_uniform(keys + slot * _KEYS, POSITION, tl.load(row + _STEP), frame, codebook)
        wish = tl.div_rn(wish, temperature) + gumbel(u)
    # A live score may have overflowed; it must still come before what is revealed already.
    return tl.maximum(wish, _LOWEST)


@triton.jit
def _score(
    logits,
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
    logits_stride,
    CODEBOOKS: tl.constexpr,
    MASK: tl.constexpr,
    TILE: tl.constexpr,
):
    cells = tl.load(header + _POSITIONS) * CODEBOOKS
    for cell in range(tl.program_id(0), cells, tl.num_programs(0)):
        row, slot, frame, now = find(cell, rows, arena, source, cell_row, CODEBOOKS)
        wish = -float("inf")
        if now == MASK:
            w, top, log_total = _read(logits, cell, logits_stride, CODEBOOKS, MASK, TILE)
            best = tl.max(w, 0)
            tl.store(token + cell, tl.min(tl.where(w == best, tl.arange(0, TILE), MASK), 0))
            wish = (best - top) - log_total
            if (tl.abs(wish) < float("inf")) == 0:  # true of NaN as well
                tl.store(sound + slot, 0)
            wish = wish_of(wish, row, slot, frame, cell % CODEBOOKS, knobs, keys)
        tl.store(score + cell, wish)


@triton.jit
def _draw(
    logits,
    header,
    rows,
    arena,
    knobs,
    keys,
    sound,
    source,
    cell_row,
    token,
    logits_stride,
    CODEBOOKS: tl.constexpr,
    MASK: tl.constexpr,
    TILE: tl.constexpr,
    KEEP: tl.constexpr,
    ROWS: tl.constexpr,
):
    index = tl.arange(0, ROWS)
    there = index < tl.load(header + _ROWS)
    slots = tl.load(rows + index * _ROW_WIDTH + _SLOT, mask=there, other=0)
    if tl.max(tl.load(knobs + slots * _KNOBS + _CLASS_TEMPERATURE, mask=there, other=0.0), 0) <= 0:
        return
    cells = tl.load(header + _POSITIONS) * CODEBOOKS
    for cell in range(tl.program_id(0), cells, tl.num_programs(0)):
        row, slot, frame, now = find(cell, rows, arena, source, cell_row, CODEBOOKS)
        temperature = tl.load(knobs + slot * _KNOBS + _CLASS_TEMPERATURE)
        if (temperature > 0) & (now == MASK) & (tl.load(sound + slot) != 0):
            w, top, log_total = _read(logits, cell, logits_stride, CODEBOOKS, MASK, TILE)
            time = tl.load(row + _STEP)
            u = entry_uniform(keys + slot * _KEYS, CLASS, time, frame, cell % CODEBOOKS, TILE)
            noisy = tl.div_rn((w - top) - log_total, temperature) + gumbel(u)
            tl.store(token + cell, _best_of_kept(w, noisy, KEEP, TILE))


@triton.jit
def _best_of_kept(w, noisy, KEEP: tl.constexpr, TILE: tl.constexpr):
    """The entry of the highest `noisy` among the KEEP highest `w`; of equal ones the lower, in both.

    Instead of sorting: take the best of all; if it is not among the KEEP, neither is anything whose `w`
    is lower, so all that goes and the rest is tried. Mostly the first one stands.
    """
    entry = tl.arange(0, TILE)
    noisy = tl.where(w > -float("inf"), tl.maximum(noisy, _LOWEST), -float("inf"))
    winner = tl.zeros([], tl.int32)
    rank = winner + KEEP
    while rank >= KEEP:
        winner = tl.min(tl.where(noisy == tl.max(noisy, 0), entry, TILE - 1), 0)
        border = tl.max(tl.where(entry == winner, w, -float("inf")), 0)
        above = (w > border) | ((w == border) & (entry < winner))
        rank = tl.sum(above.to(tl.int32), 0)
        noisy = tl.where(above, noisy, -float("inf"))
    return winner
