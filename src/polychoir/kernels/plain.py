"""The small operations between the matrix products in plain torch: what every faster kernel must compute.

Order and precision are the published model's (Qwen3, arXiv 2505.09388, as the package `omnivoice` runs it):
norms in float32 whatever the dtype, everything else in the dtype of the tensors. Any device.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, silu

from polychoir.kernels.tables import Knob, Row


def embed(arena: Tensor, source: Tensor, text_table: Tensor, audio_table: Tensor) -> Tensor:
    """Embeddings [N, hidden] of the tokens at rows `source` [N] of the arena; zeros where that is -1.

    A text token takes its line of text_table; an audio frame the sum over its codes, codebook c from line
    code + c * vocabulary of audio_table.
    """
    tokens = arena[source.clamp_min(0)].long()
    first = tokens[:, 0]
    lines = torch.arange(tokens.shape[1], device=arena.device) * (audio_table.shape[0] // tokens.shape[1])
    audio = embedding(tokens.clamp_min(0) + lines, audio_table).sum(dim=1)
    text = embedding((-first - 1).clamp_min(0), text_table)
    hidden = torch.where((first < 0)[:, None], text, audio)
    return torch.where((source >= 0)[:, None], hidden, 0)


def embed_norm(
    arena: Tensor, source: Tensor, text_table: Tensor, audio_table: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """`embed`, and the norm of the first layer: both [N, hidden]."""
    hidden = embed(arena, source, text_table, audio_table)
    return hidden, rms_norm(hidden, weight, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis. In float32 whatever the dtype, as the published model does:
    a float64 run has to follow it there, or it would not be the same function."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def add_norm_(hidden: Tensor, update: Tensor, weight: Tensor, eps: float) -> Tensor:
    """hidden += update, in place; returns the norm of the sum. All [N, hidden]."""
    hidden += update
    return rms_norm(hidden, weight, eps)


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
    """Norm each query and key head and rotate it by its position, within the fused product.

    qkv: [N, (heads + 2 kv_heads) * D], queries, keys, values; the values stay. cos, sin: [positions, D / 2].
    position: [N]. The two halves of a head are the two coordinates that turn.
    """
    parts = qkv.view(qkv.shape[0], heads + 2 * kv_heads, -1)
    turn = (cos[position][:, None], sin[position][:, None])
    parts[:, :heads] = _rotate(rms_norm(parts[:, :heads], q_norm, eps), *turn)
    parts[:, heads:-kv_heads] = _rotate(rms_norm(parts[:, heads:-kv_heads], k_norm, eps), *turn)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, [N, 2 I] to [N, I]; a column of gate is followed by its column of up."""
    return silu(gate_up[:, 0::2]) * gate_up[:, 1::2]


def gated_product(x: Tensor, weight: Tensor) -> Tensor:
    """swiglu of x [N, H] by weight [2 I, H], [N, I]."""
    return swiglu(linear(x, weight))


def combine(normed: Tensor, rows: Tensor, cell_row: Tensor, knobs: Tensor) -> Tensor:
    """c + g (c - u) of each position's hidden states with and without the text, [P, hidden].

    The heads are linear, and what guidance does to log-probabilities is linear up to a constant, so the heads
    of this are the guided logits. normed: [N, hidden]. rows, knobs: see kernels/tables.py. cell_row: [P], -1
    past the last position, where zeros come out.
    """
    row = rows[cell_row.clamp_min(0).long()].long()
    frame = torch.arange(cell_row.shape[0], device=row.device) - row[:, Row.FIRST]
    live, guided = cell_row >= 0, row[:, Row.UNCOND] >= 0
    guidance = torch.where(guided, knobs[row[:, Row.SLOT], Knob.GUIDANCE], 0)[:, None]
    cond = normed[torch.where(live, row[:, Row.COND] + frame, 0)].float()
    uncond = normed[torch.where(live & guided, row[:, Row.UNCOND] + frame, 0)].float()
    return torch.where(live[:, None], cond + guidance * (cond - uncond), 0).to(normed.dtype)
