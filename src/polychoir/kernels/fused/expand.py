"""From a step's short tables to one entry per token and per position, in one launch."""

# Arguments of a kernel have no Python types: Triton settles them when it compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl
from torch import Tensor

from polychoir.kernels import tables
from polychoir.kernels.tables import SlotTables, StepTables

_TOKENS = tl.constexpr(int(tables.Header.TOKENS))
_POSITIONS = tl.constexpr(int(tables.Header.POSITIONS))
_ROWS = tl.constexpr(int(tables.Header.ROWS))
_RUNS = tl.constexpr(int(tables.Header.RUNS))
_START = tl.constexpr(int(tables.Run.START))
_SLOT = tl.constexpr(int(tables.Run.SLOT))
_OFFSET = tl.constexpr(int(tables.Run.OFFSET))
_FIRST = tl.constexpr(int(tables.Row.FIRST))
_RUN_WIDTH = tl.constexpr(tables.RUN_WIDTH)
_ROW_WIDTH = tl.constexpr(tables.ROW_WIDTH)
_BLOCK = tl.constexpr(tables.BLOCK)
_TILE = 128


def expand(step: StepTables, slots: SlotTables, source: Tensor, position: Tensor, cell_row: Tensor) -> None:
    """Write where each packed token lies and whose each position is.

    source: int32 [N], arena row of each token, -1 past the last. position: int32 [N], its place within its
    run, 0 past the last. cell_row: int32 [P], the row of each position, -1 past the last.
    """
    tokens, positions = source.shape[0], cell_row.shape[0]
    _expand[(triton.cdiv(max(tokens, positions), _TILE),)](
        step.header,
        step.rows,
        step.runs,
        slots.blocks,
        source,
        position,
        cell_row,
        tokens,
        positions,
        slots.blocks.stride(0),
        RUN_STEPS=_halvings(step.runs.shape[0]),
        ROW_STEPS=_halvings(step.rows.shape[0]),
        TILE=_TILE,
        num_warps=4,
    )


def _halvings(entries: int) -> int:
    """How often a table of that many entries is halved until one is left."""
    return (entries - 1).bit_length()


@triton.jit
def _last_at_most(column, WIDTH: tl.constexpr, count, value, STEPS: tl.constexpr):
    """Index of the last of `count` ascending entries, WIDTH apart, that is at most `value`; the first is."""
    low = tl.zeros_like(value)
    high = low + count
    for _ in tl.static_range(STEPS):
        middle = (low + high) // 2
        right = tl.load(column + middle * WIDTH) <= value
        low = tl.where(right, middle, low)
        high = tl.where(right, high, middle)
    return low


@triton.jit
def _expand(
    header,
    rows,
    runs,
    blocks,
    source,
    position,
    cell_row,
    token_capacity,
    position_capacity,
    blocks_stride,
    RUN_STEPS: tl.constexpr,
    ROW_STEPS: tl.constexpr,
    TILE: tl.constexpr,
):
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)

    there = index < tl.load(header + _TOKENS)
    run = runs + _RUN_WIDTH * _last_at_most(
        runs + _START, _RUN_WIDTH, tl.load(header + _RUNS), index, RUN_STEPS
    )
    place = index - tl.load(run + _START)
    token = place + tl.load(run + _OFFSET)
    block = blocks + tl.load(run + _SLOT) * blocks_stride + token // _BLOCK
    row = tl.load(block, mask=there, other=0) * _BLOCK + token % _BLOCK
    inside = index < token_capacity
    tl.store(source + index, tl.where(there, row, -1), mask=inside)
    tl.store(position + index, tl.where(there, place, 0), mask=inside)

    there = index < tl.load(header + _POSITIONS)
    owner = _last_at_most(rows + _FIRST, _ROW_WIDTH, tl.load(header + _ROWS), index, ROW_STEPS)
    tl.store(cell_row + index, tl.where(there, owner, -1), mask=index < position_capacity)
