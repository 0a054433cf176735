"""The backbone's kernels at the sizes of a step: one row, eight, thirty, and rows of many lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from polychoir.kernels import plain
from polychoir.kernels.attention import attend_grouped, choose, make_runs, work_items
from polychoir.kernels.fused import pointwise, product
from polychoir.kernels.fused.attention import LARGE, SMALL, Tiling, attend
from polychoir.kernels.tables import Header
from tests.gpu.kernel_case import Compute, KernelCase

HIDDEN, HEADS, KV_HEADS, SIZE, INTERMEDIATE = 1_024, 16, 8, 128, 3_072
CODEBOOKS, VOCABULARY, TEXTS = 8, 1_025, 10_000
EPS = 1e-6
PAIR, CLONE_PAIR = (149, 125), (291, 125)
"""Tokens of a request of 5 s with and without its text; with a reference of 5 s."""
LENGTHS: dict[str, tuple[int, ...]] = {
    "1 x 5 s": PAIR,
    "8 x 5 s": PAIR * 8,
    "30 x 5 s": PAIR * 30,
    "20 x clone": CLONE_PAIR * 20,
    "mixed": (10, 33, 3_000, 64, 290, 1, 711, 128, 31, 32, 1_500, 97),
}
SPARE = 11
"""Tokens past the last run, which hold no numbers."""
TILINGS = (
    SMALL, LARGE,
    Tiling(keys=32, stages=2, waves=3), Tiling(keys=32, stages=4, waves=3),
    Tiling(keys=64, stages=2, waves=3), Tiling(keys=64, warps=8, stages=3, waves=2),
    Tiling(keys=128, stages=2, waves=1), Tiling(keys=128, warps=8, stages=2, waves=1),
)  # fmt: skip


def cases() -> list[KernelCase]:
    counts = [sum(LENGTHS[name]) for name in ("1 x 5 s", "8 x 5 s", "30 x 5 s")]
    making = (embed_norm, add_norm, qk_norm_rope, swiglu, gated_product, leading_product, combine)
    return [make(n) for make in making for n in counts] + [attention(n, t) for n, t in LENGTHS.items()]


def normal(generator: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, device=generator.device).to(dtype)


def embed_norm(tokens: int) -> KernelCase:
    def make(generator: torch.Generator, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        arena = torch.randint(
            VOCABULARY, (2 * tokens, CODEBOOKS), generator=generator, device=device, dtype=torch.int32
        )
        text = torch.rand(2 * tokens, generator=generator, device=device) < 0.1
        arena[text] = 0
        arena[text, 0] = -torch.randint(
            1, TEXTS + 1, (int(text.sum()),), generator=generator, device=device, dtype=torch.int32
        )
        source = torch.randperm(2 * tokens, generator=generator, device=device)[:tokens].int()
        source[-SPARE:] = -1
        tables = [normal(generator, dtype, lines, HIDDEN) for lines in (TEXTS, CODEBOOKS * VOCABULARY)]
        return arena, source, *tables, normal(generator, dtype, HIDDEN)

    def compute(embed: Callable[..., tuple[Tensor, Tensor]]) -> Compute:
        return lambda *inputs: embed(*inputs, EPS)

    # Reads of the tables count once for each token: they are few lines and mostly come from the cache.
    nbytes = tokens * HIDDEN * 2 * 3
    return KernelCase(
        f"embed_norm {tokens}", make, compute(pointwise.embed_norm), compute(plain.embed_norm), nbytes
    )


def add_norm(tokens: int) -> KernelCase:
    def make(generator: torch.Generator, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        shapes = ((tokens, HIDDEN), (tokens, HIDDEN), (HIDDEN,))
        return tuple(normal(generator, dtype, *shape) for shape in shapes)

    def compute(add: Callable[..., Tensor]) -> Compute:
        return lambda hidden, update, weight: (add(hidden, update, weight, EPS), hidden)

    nbytes = tokens * HIDDEN * 2 * 4
    return KernelCase(
        f"add_norm_ {tokens}", make, compute(pointwise.add_norm_), compute(plain.add_norm_), nbytes
    )


def qk_norm_rope(tokens: int) -> KernelCase:
    def make(generator: torch.Generator, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        angle = 7 * torch.rand(4_096, SIZE // 2, generator=generator, device=device)
        position = torch.randint(4_096, (tokens,), generator=generator, device=device, dtype=torch.int32)
        qkv = normal(generator, dtype, tokens, (HEADS + 2 * KV_HEADS) * SIZE)
        norms = [normal(generator, dtype, SIZE) for _ in range(2)]
        return qkv, *norms, angle.cos().to(dtype), angle.sin().to(dtype), position

    def compute(rotate: Callable[..., None]) -> Compute:
        def run(qkv: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
            rotate(qkv, *others, HEADS, KV_HEADS, EPS)
            return (qkv,)

        return run

    nbytes = tokens * ((HEADS + KV_HEADS) * SIZE * 2 * 2 + SIZE * 2)
    return KernelCase(
        f"qk_norm_rope_ {tokens}",
        make,
        compute(pointwise.qk_norm_rope_),
        compute(plain.qk_norm_rope_),
        nbytes,
    )


def swiglu(tokens: int) -> KernelCase:
    def make(generator: torch.Generator, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        return (3 * normal(generator, dtype, tokens, 2 * INTERMEDIATE),)

    nbytes = tokens * INTERMEDIATE * 2 * 3
    return KernelCase(
        f"swiglu {tokens}", make, lambda x: (pointwise.swiglu(x),), lambda x: (plain.swiglu(x),), nbytes
    )


def gated_product(tokens: int) -> KernelCase:
    def make(generator: torch.Generator, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        weight = 0.05 * torch.randn(2 * INTERMEDIATE, HIDDEN, generator=generator, device=device)
        return normal(generator, dtype, tokens, HIDDEN), weight.to(dtype)

    return KernelCase(
        f"gated_product {tokens}",
        make,
        lambda x, w: (product.gated_product(x, w),),
        lambda x, w: (plain.gated_product(x, w),),
        2 * (tokens * (HIDDEN + INTERMEDIATE) + 2 * INTERMEDIATE * HIDDEN),
        flops=4 * tokens * INTERMEDIATE * HIDDEN,
        others={"product and pass": lambda x, w: (pointwise.swiglu(linear(x, w)),)},
    )


def leading_product(tokens: int) -> KernelCase:
    """The heads, at as many positions as rows of 5 s have."""
    positions, width = tokens * PAIR[1] // sum(PAIR), CODEBOOKS * VOCABULARY

    def make(generator: torch.Generator, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        header = torch.zeros(8, dtype=torch.int32, device=device)
        header[Header.POSITIONS] = positions
        weight = 0.05 * torch.randn(width, HIDDEN, generator=generator, device=device)
        return normal(generator, dtype, tokens, HIDDEN), weight.to(dtype), header

    return KernelCase(
        f"leading_product {tokens}",
        make,
        lambda x, w, header: (product.leading_product(x, w, header)[:positions],),
        lambda x, w, _: (linear(x, w)[:positions],),
        2 * (positions * (HIDDEN + width) + width * HIDDEN),
        flops=2 * positions * width * HIDDEN,
        others={"all positions": lambda x, w, _: (linear(x, w),)},
    )


def combine(tokens: int) -> KernelCase:
    """Rows of 125 frames, every third without guidance, in a bucket with as many positions as tokens."""
    cond, frames = PAIR
    rows = tokens // sum(PAIR)

    def make(generator: torch.Generator, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        table = torch.zeros(rows, 8, dtype=torch.int32)
        table[:, 0] = torch.arange(rows)
        table[:, 2] = frames
        table[:, 3] = torch.arange(rows) * cond + cond - frames
        table[:, 4] = torch.where(torch.arange(rows) % 3 == 2, -1, rows * cond + torch.arange(rows) * frames)
        table[:, 5] = torch.arange(rows) * frames
        cell_row = torch.full((tokens,), -1, dtype=torch.int32)
        cell_row[: rows * frames] = torch.repeat_interleave(torch.arange(rows), frames).int()
        knobs = 3 * torch.rand(rows, 4, generator=generator, device=device)
        return normal(generator, dtype, tokens, HIDDEN), table.to(device), cell_row.to(device), knobs

    nbytes = HIDDEN * 2 * (rows * frames * 2 + tokens)
    return KernelCase(
        f"combine {tokens}",
        make,
        lambda *x: (pointwise.combine(*x),),
        lambda *x: (plain.combine(*x),),
        nbytes,
    )


def attention(name: str, lengths: Sequence[int]) -> KernelCase:
    tokens = sum(lengths)
    items = work_items(np.array(lengths, np.int32))

    def make(generator: torch.Generator, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        qkv = normal(generator, dtype, tokens + SPARE, (HEADS + 2 * KV_HEADS) * SIZE)
        qkv[tokens:] = float("nan")
        runs = torch.zeros(len(lengths) + 5, 4, dtype=torch.int32)
        runs[: len(lengths), 0] = torch.tensor([0, *accumulate(lengths)][:-1])
        runs[: len(lengths), 1] = torch.tensor(lengths)
        header = torch.zeros(8, dtype=torch.int32)
        header[Header.ITEMS] = len(items)
        return qkv, torch.from_numpy(items).to(device), runs.to(device), header.to(device)

    def fused(tiling: Tiling | None) -> Compute:
        return lambda *inputs: (attend(*inputs, HEADS, KV_HEADS, SIZE, tiling)[:tokens],)

    def parts(qkv: Tensor) -> tuple[Tensor, ...]:
        return torch.split(qkv[:tokens].view(tokens, -1, SIZE), [HEADS, KV_HEADS, KV_HEADS], dim=1)

    def grouped(qkv: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        return (attend_grouped(*parts(qkv), make_runs(lengths, qkv.device)).flatten(1),)

    def stock() -> Compute:
        device = torch.device("cuda")
        _, best = choose(device, torch.bfloat16, (HEADS, KV_HEADS, SIZE))
        runs = make_runs(lengths, device)
        return lambda qkv, *_: (best(*parts(qkv), runs).flatten(1),)

    others = {f"k{t.keys} w{t.warps} s{t.stages} x{t.waves}": fused(t) for t in TILINGS} | (
        {"torch varlen": stock()} if torch.cuda.is_available() else {}
    )
    nbytes = tokens * (HEADS + 2 * KV_HEADS + HEADS) * SIZE * 2
    flops = 4 * sum(n * n for n in lengths) * HEADS * SIZE
    return KernelCase(
        f"attend {name}", make, fused(None), grouped, nbytes, flops, others=others, compiles=False
    )
