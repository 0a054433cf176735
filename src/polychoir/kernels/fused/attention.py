"""Attention of packed runs, straight from the fused product: every token sees its own run, whole.

A list of tiles, made on the host and read on the device, says what there is to do, so the launch does not
depend on how many runs there are or how long they are: one captured graph serves every mix. The query heads
that share a key head are computed in one tile, so keys and values are read once for all of them.

Source of the online softmax: Milakov and Gimelshein (arXiv 1805.02867); of the tiling, Dao et al.,
FlashAttention (arXiv 2205.14135).
"""

# Arguments of a kernel have no Python types: Triton settles them when it compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from polychoir.kernels import tables
from polychoir.kernels.attention import QUERY_TILE
from polychoir.kernels.fused.card import card

_ITEMS = tl.constexpr(int(tables.Header.ITEMS))
_ITEM_WIDTH = tl.constexpr(tables.ITEM_WIDTH)
_RUN = tl.constexpr(int(tables.Item.RUN))
_QUERY = tl.constexpr(int(tables.Item.QUERY))
_RUN_WIDTH = tl.constexpr(tables.RUN_WIDTH)
_START = tl.constexpr(int(tables.Run.START))
_LENGTH = tl.constexpr(int(tables.Run.LENGTH))


@dataclass(frozen=True, slots=True)
class Tiling:
    """queries: of a tile, as the list of tiles was made. keys: of one turn of the inner loop. waves: programs
    for each multiprocessor."""

    queries: int = QUERY_TILE
    keys: int = 64
    warps: int = 4
    stages: int = 3
    waves: int = 2


LARGE = Tiling()
"""Measured on an H200 among 144 of its kind: 60 us a layer at 8,095 tokens in runs of 149 and 125 (torch's
varlen flash attention 72), 75 at 7,904 in runs of 291 and 125 (86)."""
SMALL = Tiling(keys=32, waves=4)
"""6.2 us at 274 tokens (11.3), 17.8 at 2,192 (25.3)."""
SMALL_TOKENS = 4_096
SINGLE_PRECISION = Tiling(keys=32, warps=8, stages=1, waves=1)
"""For checking only: tensor cores take no float32."""


def attend(
    qkv: Tensor,
    items: Tensor,
    runs: Tensor,
    header: Tensor,
    heads: int,
    kv_heads: int,
    head_dim: int,
    tiling: Tiling | None = None,
) -> Tensor:
    """[N, (heads + 2 kv_heads) * head_dim], normed and rotated, to [N, heads * head_dim].

    items, runs, header: see kernels/tables.py. Tokens that no item covers are left as they come.
    """
    if tiling is None:
        tiling = SMALL if qkv.shape[0] <= SMALL_TOKENS else LARGE
        tiling = SINGLE_PRECISION if qkv.dtype == torch.float32 else tiling
    out = torch.empty(qkv.shape[0], heads * head_dim, dtype=qkv.dtype, device=qkv.device)
    most = (triton.cdiv(qkv.shape[0], tiling.queries) + runs.shape[0]) * kv_heads
    _attend[(min(most, tiling.waves * card(qkv.device).multiprocessors),)](
        qkv, out, items, runs, header, head_dim**-0.5 * 1.4426950408889634, qkv.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, SIZE=head_dim, QUERIES=tiling.queries, KEYS=tiling.keys,
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return out


@triton.jit
def _attend(
    qkv, out, items, runs, header, scale, stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    SHARE: tl.constexpr = HEADS // KV_HEADS
    dtype = qkv.dtype.element_ty
    lines = tl.arange(0, QUERIES * SHARE)
    size = tl.arange(0, SIZE)
    for work in range(tl.program_id(0), tl.load(header + _ITEMS) * KV_HEADS, tl.num_programs(0)):
        item = items + (work // KV_HEADS) * _ITEM_WIDTH
        kv_head = work % KV_HEADS
        run = runs + tl.load(item + _RUN) * _RUN_WIDTH
        length = tl.load(run + _LENGTH)
        start = tl.load(run + _START).to(tl.int64)
        query = tl.load(item + _QUERY) + lines // SHARE
        head = (lines % SHARE) * SIZE
        asked = (query < length)[:, None]
        queries = qkv + start * stride + kv_head * SHARE * SIZE
        q = tl.load(queries + (query * stride + head)[:, None] + size[None, :], mask=asked, other=0.0)
        keys = qkv + start * stride + (HEADS + kv_head) * SIZE
        highest = tl.full([QUERIES * SHARE], -float("inf"), tl.float32)
        total = tl.zeros([QUERIES * SHARE], tl.float32)
        mixed = tl.zeros([QUERIES * SHARE, SIZE], tl.float32)
        for first in range(0, length, KEYS):
            key = first + tl.arange(0, KEYS)
            there = key < length
            k = tl.load(keys + key[None, :] * stride + size[:, None], mask=there[None, :], other=0.0)
            scores = tl.dot(q, k, input_precision="ieee") * scale
            scores = tl.where(there[None, :], scores, -float("inf"))
            higher = tl.maximum(highest, tl.max(scores, axis=1))
            shares = tl.exp2(scores - higher[:, None])
            shrink = tl.exp2(highest - higher)
            total = total * shrink + tl.sum(shares, axis=1)
            v = tl.load(
                keys + key[:, None] * stride + KV_HEADS * SIZE + size[None, :], mask=there[:, None], other=0.0
            )
            mixed = mixed * shrink[:, None] + tl.dot(shares.to(dtype), v, input_precision="ieee")
            highest = higher
        mixed = mixed / total[:, None]
        answers = out + start * (HEADS * SIZE) + kv_head * SHARE * SIZE
        tl.store(answers + (query * (HEADS * SIZE) + head)[:, None] + size[None, :], mixed, mask=asked)
