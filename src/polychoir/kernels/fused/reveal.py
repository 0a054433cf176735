"""The best masked cells of every row take their token: exact selection, all rows in one launch.

One program per row. It halves the range of ordered score bits until exactly as many cells lie above as the
timetable asks, re-reading the scores, which stay in the first-level cache, so a row may have any length.
"""

# Arguments of a kernel have no Python types: Triton settles them when it compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl
from torch import Tensor

from polychoir.kernels import tables
from polychoir.kernels.tables import SlotTables, StepTables

_ROWS = tl.constexpr(int(tables.Header.ROWS))
_ROW_WIDTH = tl.constexpr(tables.ROW_WIDTH)
_SLOT = tl.constexpr(int(tables.Row.SLOT))
_STEP = tl.constexpr(int(tables.Row.STEP))
_FRAMES = tl.constexpr(int(tables.Row.FRAMES))
_COND = tl.constexpr(int(tables.Row.COND))
_FIRST = tl.constexpr(int(tables.Row.FIRST))
_NEVER = tl.constexpr(-(2**31))
"""Key of a cell that cannot be chosen, below the key of every live score."""
_HIGHEST = tl.constexpr(2**31 - 1)
_TILE = 4_096
_WARPS = 8


def reveal(
    step: StepTables,
    slots: SlotTables,
    source: Tensor,
    token: Tensor,
    score: Tensor,
    mask_id: int,
    *,
    tile: int = _TILE,
    warps: int = _WARPS,
) -> None:
    """Write the tokens of this step's cells into the arena.

    source: [N] from `expand`; token, score: [P, 8] from `score`. A row takes as many of its live cells
    (score above -inf) as its timetable has for its step, best score first; of equal scores the lower
    codebook * frames + frame. A row that is not sound is not written, nor, whatever its score, is
    a cell that has its code already. tile: cells looked at together.
    """
    positions, codebooks = token.shape
    _reveal[(step.rows.shape[0],)](
        step.header,
        step.rows,
        slots.arena,
        slots.timetable,
        slots.sound,
        source,
        token,
        score,
        slots.timetable.stride(0),
        CODEBOOKS=codebooks,
        MASK=mask_id,
        TILE=min(tile, triton.next_power_of_2(positions * codebooks)),
        num_warps=warps,
    )


@triton.jit
def _keys(scores, first, cells, TILE: tl.constexpr):
    """Integers in the order of the scores of TILE cells from `first`; _NEVER for -inf and past the end."""
    index = first + tl.arange(0, TILE)
    value = tl.load(scores + index, mask=index < cells, other=-float("inf"))
    bits = (value + 0.0).to(tl.int32, bitcast=True)  # the sum makes -0 equal to 0
    return tl.where(value > -float("inf"), bits ^ ((bits >> 31) & 0x7FFFFFFF), _NEVER)


@triton.jit
def _count(scores, cells, threshold, TILE: tl.constexpr):
    """How many cells have a key of at least `threshold`."""
    found = tl.zeros([TILE], tl.int32)
    for first in range(0, cells, TILE):
        found += (_keys(scores, first, cells, TILE) >= threshold).to(tl.int32)
    return tl.sum(found, 0)


@triton.jit
def _flat(first, frames, CODEBOOKS: tl.constexpr, TILE: tl.constexpr):
    """The order among equals: codebook * frames + frame."""
    index = first + tl.arange(0, TILE)
    return (index % CODEBOOKS) * frames + index // CODEBOOKS


@triton.jit
def _count_equal(scores, cells, frames, threshold, limit, CODEBOOKS: tl.constexpr, TILE: tl.constexpr):
    """How many cells have exactly this key and a flat index below `limit`."""
    found = tl.zeros([TILE], tl.int32)
    for first in range(0, cells, TILE):
        early = _flat(first, frames, CODEBOOKS, TILE) < limit
        found += ((_keys(scores, first, cells, TILE) == threshold) & early).to(tl.int32)
    return tl.sum(found, 0)


@triton.jit
def _threshold(scores, cells, count, live, TILE: tl.constexpr):
    """The highest key that at least `count` of the `live` cells reach, and how many reach it.

    Stops early at any key that exactly `count` reach. 1 <= count <= live.
    """
    low, low_count = _NEVER + 1, live
    high = _HIGHEST
    middle = (low & high) + ((low ^ high) >> 1)  # their mean without overflow
    while (low_count > count) & (middle != low):
        reached = _count(scores, cells, middle, TILE)
        enough = reached >= count
        low = tl.where(enough, middle, low)
        low_count = tl.where(enough, reached, low_count)
        high = tl.where(enough, high, middle)
        middle = (low & high) + ((low ^ high) >> 1)
    return low, low_count


@triton.jit
def _limit(scores, cells, frames, threshold, surplus, CODEBOOKS: tl.constexpr, TILE: tl.constexpr):
    """The flat index below which cells of exactly this key are taken, so that `surplus` of them are not."""
    low, high = 0, cells
    wanted = _count_equal(scores, cells, frames, threshold, cells, CODEBOOKS, TILE) - surplus
    while high - low > 1:
        middle = (low + high) // 2
        enough = _count_equal(scores, cells, frames, threshold, middle, CODEBOOKS, TILE) >= wanted
        low = tl.where(enough, low, middle)
        high = tl.where(enough, middle, high)
    return high


@triton.jit
def _reveal(
    header,
    rows,
    arena,
    timetable,
    sound,
    source,
    token,
    score,
    timetable_stride,
    CODEBOOKS: tl.constexpr,
    MASK: tl.constexpr,
    TILE: tl.constexpr,
):
    if tl.program_id(0) >= tl.load(header + _ROWS):
        return
    row = rows + tl.program_id(0) * _ROW_WIDTH
    slot = tl.load(row + _SLOT)
    if tl.load(sound + slot) == 0:
        return
    frames = tl.load(row + _FRAMES)
    cells = frames * CODEBOOKS
    base = tl.load(row + _FIRST) * CODEBOOKS
    scores = score + base
    live = _count(scores, cells, _NEVER + 1, TILE)
    count = tl.minimum(tl.load(timetable + slot * timetable_stride + tl.load(row + _STEP)), live)
    if count < 1:
        return
    threshold, reached = _threshold(scores, cells, count, live, TILE)
    limit = cells
    if reached > count:
        limit = _limit(scores, cells, frames, threshold, reached - count, CODEBOOKS, TILE)
    places = source + tl.load(row + _COND)
    for first in range(0, cells, TILE):
        index = first + tl.arange(0, TILE)
        key = _keys(scores, first, cells, TILE)
        equal = (key == threshold) & (_flat(first, frames, CODEBOOKS, TILE) < limit)
        taken = (key > threshold) | equal
        place = tl.load(places + index // CODEBOOKS, mask=taken, other=0)
        chosen = tl.load(token + base + index, mask=taken, other=0)
        code = arena + place * CODEBOOKS + index % CODEBOOKS
        hidden = tl.load(code, mask=taken, other=0) == MASK
        tl.store(code, chosen, mask=taken & hidden)
