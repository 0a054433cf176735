"""Matrix products that do more than multiply, for cards with a tensor memory accelerator (Hopper on).

One kernel: as many programs as multiprocessors, each taking tile after tile, so that the loads of the next
tile run under the last stage of this one. Where a card or a number format has no such unit, the stock
product and a pass after it do the same.
"""

# Arguments of a kernel have no Python types: Triton settles them when it compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear
from triton.tools.tensor_descriptor import TensorDescriptor

from polychoir.kernels import tables
from polychoir.kernels.fused.card import card
from polychoir.kernels.fused.pointwise import swiglu

_POSITIONS = tl.constexpr(int(tables.Header.POSITIONS))
_HOPPER = (9, 0)
_GROUP = 8
"""Tiles of rows that share each tile of weights while it is in the cache."""


@dataclass(frozen=True, slots=True)
class Tile:
    """rows by width, in turns of `inner`."""

    rows: int = 128
    width: int = 256
    inner: int = 64
    warps: int = 8
    stages: int = 4


GATED = Tile(stages=4)
"""gate_up with SwiGLU on an H200, against cuBLAS and a pass: 154 us at 8,220 tokens (182)."""
PLAIN = Tile(stages=3)
"""A result of full width leaves less shared memory. The heads: 104 us at 8,220 tokens (cuBLAS, with the lines
that are no positions, 200)."""
FEWEST_ROWS = 2_048
"""cuBLAS splits smaller products better: gate_up 14.7 us at 512 tokens (16.9), 27.3 at 1,096 (28.5)."""


def gated_product(x: Tensor, weight: Tensor, tile: Tile | None = None) -> Tensor:
    """swiglu(x [N, H] by weight [2 I, H]), [N, I]; a line of gate is followed by its line of up."""
    tile = tile or _suiting(x, weight.shape[0] // 2, GATED)
    if tile is None:
        return swiglu(linear(x, weight))
    return _launch(x, weight, weight.shape[0] // 2, None, tile)


def leading_product(x: Tensor, weight: Tensor, header: Tensor, tile: Tile | None = None) -> Tensor:
    """x [N, H] by weight [V, H], [N, V], for the step's positions; lines past them are left as they come."""
    tile = tile or _suiting(x, weight.shape[0], PLAIN)
    if tile is None:
        return linear(x, weight)
    return _launch(x, weight, weight.shape[0], header, tile)


def _launch(x: Tensor, weight: Tensor, columns: int, header: Tensor | None, tile: Tile) -> Tensor:
    (rows, inner), width = x.shape, weight.shape[0]
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    wide = tile.width * columns // width
    tiles = triton.cdiv(rows, tile.rows) * triton.cdiv(width, tile.width)
    programs = min(tiles, card(x.device).multiprocessors)
    _product[(programs,)](
        TensorDescriptor.from_tensor(x, [tile.rows, tile.inner]),
        TensorDescriptor.from_tensor(weight, [tile.width, tile.inner]),
        TensorDescriptor.from_tensor(out, [tile.rows, wide]),
        header, rows, width, inner, programs,
        ROWS=tile.rows, WIDTH=tile.width, INNER=tile.inner, GROUP=_GROUP,
        GATED=columns < width, LEADING=header is not None,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def _suiting(x: Tensor, columns: int, tile: Tile) -> Tile | None:
    """The tile, if there is enough to do, the card has the unit, and lines begin at 16 bytes as it needs."""
    half = x.dtype in (torch.bfloat16, torch.float16) and x.shape[1] % 8 == columns % 8 == 0
    return tile if half and x.shape[0] >= FEWEST_ROWS and card(x.device).capability >= _HOPPER else None


@triton.jit
def _product(
    x, weight, out, header, height, width, inner, programs,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr,
    GATED: tl.constexpr, LEADING: tl.constexpr,
):  # fmt: skip
    if LEADING:
        height = tl.minimum(height, tl.load(header + _POSITIONS))
    high, wide = tl.cdiv(height, ROWS), tl.cdiv(width, WIDTH)
    for tile in tl.range(tl.program_id(0), high * wide, programs, flatten=True):
        group = tile // (GROUP * wide) * GROUP
        members = tl.minimum(high - group, GROUP)
        within = tile % (GROUP * wide)
        row, column = (group + within % members) * ROWS, within // members
        sums = tl.zeros([ROWS, WIDTH], tl.float32)
        for first in range(0, inner, INNER):
            a = x.load([row, first])
            b = weight.load([column * WIDTH, first])
            sums = tl.dot(a, b.T, sums)
        if GATED:
            # Neighbours in memory are neighbours in a thread's registers: nothing moves. Rounded as a
            # product of its own would be.
            gate, up = tl.split(tl.reshape(sums, [ROWS, WIDTH // 2, 2]))
            gate = gate.to(out.dtype).to(tl.float32)
            up = up.to(out.dtype).to(tl.float32)
            y = gate * tl.sigmoid(gate) * up
            out.store([row, column * (WIDTH // 2)], y.to(out.dtype))
        else:
            out.store([row, column * WIDTH], sums.to(out.dtype))
