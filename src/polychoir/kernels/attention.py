"""Attention within packed runs: every token sees its own run, whole, and nothing else.

q [N, H, D], k and v [N, K, D] hold all runs end to end; H is a multiple of K. Two ways to compute it:

grouped   runs of equal length go through one scaled_dot_product_attention. Exact blocks, no mask, no
          padding; works everywhere and in every dtype. Rows never touch, so a broken one stays alone.
          Measured on one CPU thread, 16 runs of 125-149 tokens, 16 heads of 128, float32: 67 ms, and one
          call over all tokens with a block mask 469 ms; 16 runs of 50-420 tokens: 135 ms and 1065 ms.
varlen    flash attention over cumulative lengths (torch.nn.attention.varlen): CUDA, bf16 and fp16.

`choose` tries varlen on a small case and takes it only if it agrees with grouped.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)
_TOLERANCE = 2e-2
"""Largest difference allowed between the two ways for unit normal inputs in half precision."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Where the runs of a packed batch lie.

    bounds: int32 [runs + 1] on the device. longest: of the runs. groups: for each length, int64
    [runs of that length, length] token indices; None where one group is all tokens in order.
    """

    bounds: Tensor
    longest: int
    groups: tuple[tuple[Tensor | None, int], ...]
    """Index and run length of each group."""


QUERY_TILE = 32
"""Query tokens of one tile of the fused attention (kernels/fused/attention.py)."""

Attend = Callable[[Tensor, Tensor, Tensor, Runs], Tensor]


def make_runs(lengths: Sequence[int], device: torch.device) -> Runs:
    """Index the runs of these lengths, packed in order. Lengths are at least 1."""
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    by_length: dict[int, list[int]] = {}
    for start, end in pairwise(starts):
        by_length.setdefault(end - start, []).append(start)
    groups: list[tuple[Tensor | None, int]] = []
    for length, firsts in by_length.items():
        if len(by_length) == 1:
            groups.append((None, length))
            continue
        index = torch.tensor(firsts)[:, None] + torch.arange(length)
        groups.append((index.to(device, non_blocking=True), length))
    bounds = torch.tensor(starts, dtype=torch.int32).to(device, non_blocking=True)
    return Runs(bounds, max(lengths), tuple(groups))


def work_items(lengths: NDArray[np.int32]) -> NDArray[np.int32]:
    """The tiles of packed runs of these lengths: int32 [items, 2], run and first query within the run."""
    tiles = -(-lengths // QUERY_TILE)
    run = np.repeat(np.arange(len(lengths), dtype=np.int32), tiles)
    before = np.repeat(np.cumsum(tiles) - tiles, tiles)
    query = (np.arange(len(run)) - before) * QUERY_TILE
    return np.stack((run, query.astype(np.int32)), axis=1)


def attend_grouped(q: Tensor, k: Tensor, v: Tensor, runs: Runs) -> Tensor:
    """Attention run by run, equal lengths together. Returns [N, H, D]."""
    out = torch.empty_like(q)
    for index, length in runs.groups:
        if index is None:
            views = (x.view(-1, length, *x.shape[1:]) for x in (q, k, v))
            out.view(-1, length, *q.shape[1:]).copy_(_attend_equal(*views))
        else:
            out[index] = _attend_equal(q[index], k[index], v[index])
    return out


def _attend_equal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[runs, length, heads, D] in and out."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)


def _make_varlen() -> Attend:
    """Bind torch's varlen attention, whose arguments changed between releases.

    Raises ImportError or AttributeError where torch has none.
    """
    from torch.nn.attention import varlen

    varlen_attn: Any = varlen.varlen_attn
    names = inspect.signature(varlen_attn).parameters
    grouped_heads = {"enable_gqa": True} if "enable_gqa" in names else {}

    def attend_varlen(q: Tensor, k: Tensor, v: Tensor, runs: Runs) -> Tensor:
        extra = grouped_heads if q.shape[1] != k.shape[1] else {}
        out: Tensor = varlen_attn(q, k, v, runs.bounds, runs.bounds, runs.longest, runs.longest, **extra)
        return out

    return attend_varlen


def _with_repeated_heads(attend: Attend) -> Attend:
    """For kernels that want as many key heads as query heads."""

    def attend_repeated(q: Tensor, k: Tensor, v: Tensor, runs: Runs) -> Tensor:
        share = q.shape[1] // k.shape[1]
        return attend(q, k.repeat_interleave(share, dim=1), v.repeat_interleave(share, dim=1), runs)

    return attend_repeated


def choose(device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int]) -> tuple[str, Attend]:
    """The quickest way that is right here, and its name. shape: heads, key heads, head size."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return "grouped", attend_grouped
    try:
        varlen = _make_varlen()
    except (ImportError, AttributeError) as error:
        _log.warning("this torch has no varlen attention (%s); using grouped attention", error)
        return "grouped", attend_grouped
    for name, attend in (("varlen", varlen), ("varlen, heads repeated", _with_repeated_heads(varlen))):
        try:
            worst = _disagreement(attend, device, dtype, shape)
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            _log.warning("%s: attention is not usable here (%s)", name, error)
            continue
        if worst <= _TOLERANCE:
            return name, attend
        _log.warning("%s: attention is off by %.3g here", name, worst)
    return "grouped", attend_grouped


def _disagreement(
    attend: Attend, device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int]
) -> float:
    """Largest difference from grouped attention on three short runs of fixed noise."""
    heads, kv_heads, head_dim = shape
    generator = torch.Generator().manual_seed(0)
    lengths = (5, 130, 37)
    q, k, v = (
        torch.randn(sum(lengths), n, head_dim, generator=generator).to(device, dtype)
        for n in (heads, kv_heads, kv_heads)
    )
    runs = make_runs(lengths, device)
    return float((attend(q, k, v, runs).float() - attend_grouped(q, k, v, runs).float()).abs().max())
