"""An experiment: attention that norms and rotates its queries itself.

A query is read by one tile only, so its norm costs no more there than in a pass of its own, and two thirds of
what that pass reads and writes are queries. A key is read by every tile of its run: keys keep their pass.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from polychoir.kernels.attention import work_items
from polychoir.kernels.fused import pointwise
from polychoir.kernels.fused.attention import LARGE, SMALL, SMALL_TOKENS, Tiling, attend
from polychoir.kernels.tables import ITEM_WIDTH, RUN_WIDTH, Header, Item, Run
from tests.gpu.kernel_case import CACHE_BYTES, microseconds, worst_error

_ITEMS = tl.constexpr(int(Header.ITEMS))
_ITEM_WIDTH = tl.constexpr(ITEM_WIDTH)
_RUN = tl.constexpr(int(Item.RUN))
_QUERY = tl.constexpr(int(Item.QUERY))
_RUN_WIDTH = tl.constexpr(RUN_WIDTH)
_START = tl.constexpr(int(Run.START))
_LENGTH = tl.constexpr(int(Run.LENGTH))
EPS = 1e-6
LENGTHS = {"1 x 5 s": (149, 125), "8 x 5 s": (149, 125) * 8, "30 x 5 s": (149, 125) * 30}


def norm_keys_(
    qkv: Tensor, k_norm: Tensor, cos: Tensor, sin: Tensor, position: Tensor, heads: int, kv_heads: int
) -> None:
    """The part of `qk_norm_rope_` that is left."""
    size = k_norm.shape[0]
    together = min(kv_heads & -kv_heads, 8)
    pointwise._qk_norm_rope[(qkv.shape[0], kv_heads // together)](
        qkv[:, heads * size :], k_norm, k_norm, cos, sin, position, EPS, qkv.stride(0), 0,
        HEADS=together, HALF=size // 2, num_warps=2,
    )  # fmt: skip


def attend_rotating(
    qkv: Tensor, q_norm: Tensor, cos: Tensor, sin: Tensor, items: Tensor, runs: Tensor, header: Tensor,
    heads: int, kv_heads: int, programs: int, tiling: Tiling,
) -> Tensor:  # fmt: skip
    """As `attend`, from queries that are neither normed nor rotated."""
    size = q_norm.shape[0]
    out = torch.empty(qkv.shape[0], heads * size, dtype=qkv.dtype, device=qkv.device)
    _attend[(programs,)](
        qkv, out, q_norm, cos, sin, items, runs, header, size**-0.5 * 1.4426950408889634, EPS, qkv.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, SIZE=size, QUERIES=tiling.queries, KEYS=tiling.keys,
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return out


@triton.jit
def _attend(
    qkv, out, q_norm, cos, sin, items, runs, header, scale, eps, stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    SHARE: tl.constexpr = HEADS // KV_HEADS
    HALF: tl.constexpr = SIZE // 2
    dtype = qkv.dtype.element_ty
    lines = tl.arange(0, QUERIES * SHARE)
    size = tl.arange(0, SIZE)
    across = (size + HALF) % SIZE
    sign = tl.where(size < HALF, -1.0, 1.0)
    weight = tl.load(q_norm + size).to(tl.float32)[None, :]
    weight_across = (tl.load(q_norm + across).to(tl.float32) * sign)[None, :]
    for work in range(tl.program_id(0), tl.load(header + _ITEMS) * KV_HEADS, tl.num_programs(0)):
        item = items + (work // KV_HEADS) * _ITEM_WIDTH
        kv_head = work % KV_HEADS
        run = runs + tl.load(item + _RUN) * _RUN_WIDTH
        length = tl.load(run + _LENGTH)
        start = tl.load(run + _START).to(tl.int64)
        query = tl.load(item + _QUERY) + lines // SHARE
        head = (lines % SHARE) * SIZE
        asked = (query < length)[:, None]
        queries = qkv + start * stride + kv_head * SHARE * SIZE + (query * stride + head)[:, None]
        x = tl.load(queries + size[None, :], mask=asked, other=0.0).to(tl.float32)
        y = tl.load(queries + across[None, :], mask=asked, other=0.0).to(tl.float32)
        factor = tl.rsqrt(tl.sum(x * x, axis=1) / SIZE + eps)[:, None]
        x = (x * factor).to(dtype).to(tl.float32) * weight
        y = (y * factor).to(dtype).to(tl.float32) * weight_across
        angle = query[:, None] * HALF + (size % HALF)[None, :]
        c = tl.load(cos + angle, mask=asked, other=0.0).to(tl.float32)
        s = tl.load(sin + angle, mask=asked, other=0.0).to(tl.float32)
        q = (x * c + y * s).to(dtype)
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


def run(attempt: Callable[[Callable[[], Any]], Any]) -> dict[str, Any]:
    """Both ways, in microseconds, and how far apart their results are."""
    return {
        name: attempt(lambda lengths=lengths, name=name: _compare(name, lengths))
        for name, lengths in LENGTHS.items()
    }


def _compare(name: str, lengths: tuple[int, ...]) -> dict[str, float]:
    heads, kv_heads, size, tokens = 16, 8, 128, sum(lengths)
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cuda").bfloat16()

    q_norm, k_norm = normal(size), normal(size)
    angle = 7 * torch.rand(4_096, size // 2, generator=generator, device="cuda")
    cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
    position = torch.cat([torch.arange(n) for n in lengths]).int().cuda()
    items = work_items(np.array(lengths, np.int32))
    tables = torch.zeros(len(lengths), 4, dtype=torch.int32)
    tables[:, 0] = torch.tensor([0, *accumulate(lengths)][:-1])
    tables[:, 1] = torch.tensor(lengths)
    header = torch.zeros(8, dtype=torch.int32)
    header[Header.ITEMS] = len(items)
    work, runs, header = torch.from_numpy(items).cuda(), tables.cuda(), header.cuda()
    tiling = SMALL if tokens <= SMALL_TOKENS else LARGE
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    programs = min(len(items) * kv_heads, tiling.waves * processors)

    def apart(qkv: Tensor) -> Tensor:
        pointwise.qk_norm_rope_(qkv, q_norm, k_norm, cos, sin, position, heads, kv_heads, EPS)
        return attend(qkv, work, runs, header, heads, kv_heads, size)

    def together(qkv: Tensor) -> Tensor:
        norm_keys_(qkv, k_norm, cos, sin, position, heads, kv_heads)
        return attend_rotating(qkv, q_norm, cos, sin, work, runs, header, heads, kv_heads, programs, tiling)

    width = (heads + 2 * kv_heads) * size
    turns = min(14, max(2, CACHE_BYTES // (tokens * width * 2)))
    qkvs = [normal(tokens, width) for _ in range(turns)]
    found = {"error": worst_error((together(qkvs[0].clone()),), (apart(qkvs[0].clone()),))}
    for label, way in (("apart", apart), ("queries within attention", together)):
        found[label] = microseconds([lambda x=x, way=way: way(x) for x in qkvs])
    print(f"{name:10} " + "  ".join(f"{k} {v:.3g}" for k, v in found.items()), flush=True)
    return found
