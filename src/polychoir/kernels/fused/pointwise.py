"""The small operations between the matrix products, each in one pass over its bytes.

Signatures and results are those of `polychoir.kernels.plain`; arithmetic is in float32, rounded where the
plain form rounds. A program takes one token, so that even a step of 300 tokens gives every multiprocessor
work, and reads 16 bytes a thread.
"""

# Arguments of a kernel have no Python types: Triton settles them when it compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from polychoir.kernels import tables

_ROW_WIDTH = tl.constexpr(tables.ROW_WIDTH)
_SLOT = tl.constexpr(int(tables.Row.SLOT))
_COND = tl.constexpr(int(tables.Row.COND))
_UNCOND = tl.constexpr(int(tables.Row.UNCOND))
_FIRST = tl.constexpr(int(tables.Row.FIRST))
_GUIDANCE = tl.constexpr(int(tables.Knob.GUIDANCE))
_KNOBS = tl.constexpr(len(tables.Knob))
_SWIGLU_TILE = 1_024


def embed_norm(
    arena: Tensor, source: Tensor, text_table: Tensor, audio_table: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Embeddings and their first norm, both [N, hidden]; see plain.embed and plain.rms_norm."""
    count, width, codebooks = source.shape[0], text_table.shape[1], arena.shape[1]
    hidden = torch.empty(count, width, dtype=text_table.dtype, device=text_table.device)
    normed = torch.empty_like(hidden)
    _embed_norm[(count,)](
        arena, source, text_table, audio_table, weight, hidden, normed, eps, width,
        audio_table.shape[0] // codebooks, CODEBOOKS=codebooks, BLOCK=triton.next_power_of_2(width),
        num_warps=4,
    )  # fmt: skip
    return hidden, normed


def add_norm_(hidden: Tensor, update: Tensor, weight: Tensor, eps: float) -> Tensor:
    """hidden += update, in place; returns the norm of the sum. All [N, hidden]."""
    count, width = hidden.shape
    normed = torch.empty_like(hidden)
    _add_norm[(count,)](
        hidden, update, weight, normed, eps, width, BLOCK=triton.next_power_of_2(width), num_warps=4
    )
    return normed


def qk_norm_rope_(
    qkv: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    heads: int,
    kv_heads: int,
    eps: float,
) -> None:
    """Norm and rotate the queries and keys within the fused product, [N, (heads + 2 kv_heads) * D]."""
    count, half = qkv.shape[0], q_norm.shape[0] // 2
    together = min(heads & -heads, kv_heads & -kv_heads, 8)  # a group is all queries or all keys
    _qk_norm_rope[(count, (heads + kv_heads) // together)](
        qkv, q_norm, k_norm, cos, sin, position, eps, qkv.stride(0), heads,
        HEADS=together, HALF=half, num_warps=2,
    )  # fmt: skip


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, [N, 2 I] to [N, I]; a column of gate is followed by its column of up."""
    count, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(count, width, dtype=gate_up.dtype, device=gate_up.device)
    _swiglu[(count, triton.cdiv(width, _SWIGLU_TILE))](gate_up, out, width, TILE=_SWIGLU_TILE, num_warps=4)
    return out


def combine(normed: Tensor, rows: Tensor, cell_row: Tensor, knobs: Tensor) -> Tensor:
    """c + g (c - u) of each position's two hidden states, [P, hidden]; zeros past the last position."""
    count, width = cell_row.shape[0], normed.shape[1]
    out = torch.empty(count, width, dtype=normed.dtype, device=normed.device)
    _combine[(count,)](
        normed, rows, cell_row, knobs, out, width, BLOCK=triton.next_power_of_2(width), num_warps=4
    )
    return out


@triton.jit
def _rms_norm(x, weight, columns, inside, eps, width):
    """Norm of one token in float32, rounded to the dtype before the weight as the plain form does."""
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    factor = tl.load(weight + columns, mask=inside, other=0.0)
    rounded = (x * scale).to(weight.dtype.element_ty).to(tl.float32)
    return rounded * factor.to(tl.float32)


@triton.jit
def _embed_norm(
    arena, source, text, audio, weight, hidden, normed, eps, width, vocabulary,
    CODEBOOKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    where = tl.load(source + token).to(tl.int64)
    x = tl.zeros([BLOCK], tl.float32)
    if where >= 0:
        first = tl.load(arena + where * CODEBOOKS).to(tl.int64)
        if first < 0:
            x += tl.load(text - (first + 1) * width + columns, mask=inside, other=0.0).to(tl.float32)
        else:
            for codebook in tl.static_range(CODEBOOKS):
                code = tl.load(arena + where * CODEBOOKS + codebook).to(tl.int64)
                line = audio + (codebook * vocabulary + code) * width
                x += tl.load(line + columns, mask=inside, other=0.0).to(tl.float32)
    kept = x.to(hidden.dtype.element_ty)
    tl.store(hidden + token * width + columns, kept, mask=inside)
    y = _rms_norm(kept.to(tl.float32), weight, columns, inside, eps, width)
    tl.store(normed + token * width + columns, y, mask=inside)


@triton.jit
def _add_norm(hidden, update, weight, normed, eps, width, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    place = token * width + columns
    x = tl.load(hidden + place, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(update + place, mask=inside, other=0.0).to(tl.float32)
    kept = x.to(hidden.dtype.element_ty)
    tl.store(hidden + place, kept, mask=inside)
    y = _rms_norm(kept.to(tl.float32), weight, columns, inside, eps, width)
    tl.store(normed + place, y, mask=inside)


@triton.jit
def _qk_norm_rope(
    qkv, q_norm, k_norm, cos, sin, position, eps, stride, heads, HEADS: tl.constexpr, HALF: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS
    columns = tl.arange(0, HALF)
    first = qkv + token * stride + (head + tl.arange(0, HEADS))[:, None] * (2 * HALF) + columns[None, :]
    weight = q_norm if head < heads else k_norm
    dtype = qkv.dtype.element_ty
    a = tl.load(first).to(tl.float32)
    b = tl.load(first + HALF).to(tl.float32)
    scale = tl.rsqrt((tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)) / (2 * HALF) + eps)[:, None]
    a = (a * scale).to(dtype).to(tl.float32) * tl.load(weight + columns).to(tl.float32)[None, :]
    b = (b * scale).to(dtype).to(tl.float32) * tl.load(weight + HALF + columns).to(tl.float32)[None, :]
    at = tl.load(position + token).to(tl.int64) * HALF + columns
    c = tl.load(cos + at).to(tl.float32)[None, :]
    s = tl.load(sin + at).to(tl.float32)[None, :]
    tl.store(first, a * c - b * s)
    tl.store(first + HALF, b * c + a * s)


@triton.jit
def _swiglu(gate_up, out, width, TILE: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * TILE
    columns, pairs = first + tl.arange(0, TILE), 2 * first + tl.arange(0, 2 * TILE)
    both = tl.load(gate_up + token * (2 * width) + pairs, mask=pairs < 2 * width, other=0.0)
    gate, up = tl.split(tl.reshape(both.to(tl.float32), [TILE, 2]))
    tl.store(out + token * width + columns, gate * tl.sigmoid(gate) * up, mask=columns < width)


@triton.jit
def _combine(normed, rows, cell_row, knobs, out, width, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    row = tl.load(cell_row + place)
    y = tl.zeros([BLOCK], tl.float32)
    if row >= 0:
        line = rows + row * _ROW_WIDTH
        frame = place - tl.load(line + _FIRST)
        uncond = tl.load(line + _UNCOND)
        cond = normed + (tl.load(line + _COND) + frame) * width + columns
        y += tl.load(cond, mask=inside, other=0.0).to(tl.float32)
        if uncond >= 0:
            guidance = tl.load(knobs + tl.load(line + _SLOT) * _KNOBS + _GUIDANCE)
            other = tl.load(normed + (uncond + frame) * width + columns, mask=inside, other=0.0)
            y += guidance * (y - other.to(tl.float32))
    tl.store(out + place * width + columns, y, mask=inside)
