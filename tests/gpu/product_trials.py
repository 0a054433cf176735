"""Experiments on the backbone's matrix products: is there a better way than cuBLAS and a pass after it?

small      Triton products for steps of few tokens, 28 different weights in turn as a step has them
shared     the inner axis split over programs; the norm that follows adds the shares up
residual   cuBLAS adds the product to the hidden states, the norm reads them alone
gated      gate_up with SwiGLU in the product's last stage, at other tiles than those that serve
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear
from triton.tools.tensor_descriptor import TensorDescriptor

from polychoir.kernels.fused import pointwise, product
from polychoir.kernels.fused.pointwise import _rms_norm
from tests.gpu.kernel_case import microseconds, worst_error

LAYERS, HIDDEN, INTERMEDIATE, EPS = 28, 1_024, 3_072, 1e-6
SHAPES = {"qkv": (1_024, 4_096), "out": (2_048, 1_024), "gate_up": (1_024, 6_144), "down": (3_072, 1_024)}
"""Inner axis and width."""
SMALL_TOKENS, LARGE_TOKENS = (64, 128, 274, 512), (2_192, 8_220)


@dataclass(frozen=True)
class Tile:
    rows: int
    width: int
    inner: int
    warps: int
    stages: int
    shares: int = 1

    def __str__(self) -> str:
        shares = f" /{self.shares}" if self.shares > 1 else ""
        return f"{self.rows}x{self.width}x{self.inner} w{self.warps} s{self.stages}{shares}"


SMALL = (
    Tile(64, 64, 64, 4, 5), Tile(64, 64, 128, 4, 4), Tile(64, 128, 64, 4, 5), Tile(64, 128, 128, 4, 3),
    Tile(128, 64, 64, 4, 5), Tile(128, 128, 64, 8, 4), Tile(64, 32, 128, 4, 5), Tile(64, 256, 64, 8, 4),
)  # fmt: skip
SHARED = (
    Tile(64, 64, 128, 4, 4), Tile(64, 64, 128, 4, 4, shares=2), Tile(64, 128, 64, 4, 5, shares=2),
    Tile(64, 128, 64, 4, 5, shares=4), Tile(128, 128, 64, 8, 4, shares=4),
)  # fmt: skip
GATED = (
    product.GATED, product.Tile(stages=3), product.Tile(256, 128), product.Tile(128, 128),
    product.Tile(64, warps=4), product.Tile(64, 128, warps=4),
)  # fmt: skip


def shared_product(x: Tensor, weight: Tensor, tile: Tile) -> Tensor:
    """x [M, K] by weight [N, K]: [M, N], or float32 [shares, M, N] to be added up."""
    (rows, inner), width = x.shape, weight.shape[0]
    shape = (rows, width) if tile.shares == 1 else (tile.shares, rows, width)
    out = torch.empty(shape, dtype=x.dtype if tile.shares == 1 else torch.float32, device=x.device)
    _product[(triton.cdiv(width, tile.width), triton.cdiv(rows, tile.rows), tile.shares)](
        TensorDescriptor.from_tensor(x, [tile.rows, tile.inner]),
        TensorDescriptor.from_tensor(weight, [tile.width, tile.inner]),
        out, rows, width, inner, ROWS=tile.rows, WIDTH=tile.width, INNER=tile.inner, SHARES=tile.shares,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def add_shares_norm_(hidden: Tensor, shares: Tensor, weight: Tensor) -> Tensor:
    """hidden += shares.sum(0), in place; its norm. No shares, [0, ...]: the norm alone."""
    count, width = hidden.shape
    normed = torch.empty_like(hidden)
    _add_shares_norm[(count,)](
        hidden, shares, weight, normed, EPS, width, hidden.numel(),
        SHARES=shares.shape[0], BLOCK=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return normed


@triton.jit
def _product(
    x, weight, out, rows, width, inner,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    column, row, share = tl.program_id(0) * WIDTH, tl.program_id(1) * ROWS, tl.program_id(2)
    sums = tl.zeros([ROWS, WIDTH], tl.float32)
    turns = tl.cdiv(tl.cdiv(inner, INNER), SHARES)
    for turn in range(share * turns, (share + 1) * turns):  # past the end a descriptor gives zeros
        a = x.load([row, turn * INNER])
        b = weight.load([column, turn * INNER])
        sums = tl.dot(a, b.T, sums, input_precision="ieee")
    line = row + tl.arange(0, ROWS)[:, None]
    place = column + tl.arange(0, WIDTH)[None, :]
    inside = (line < rows) & (place < width)
    tl.store(out + (share * rows + line) * width + place, sums.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _add_shares_norm(
    hidden, shares, weight, normed, eps, width, apart, SHARES: tl.constexpr, BLOCK: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    place = token * width + columns
    x = tl.load(hidden + place, mask=inside, other=0.0).to(tl.float32)
    for share in tl.static_range(SHARES):
        x += tl.load(shares + share * apart + place, mask=inside, other=0.0).to(tl.float32)
    kept = x.to(hidden.dtype.element_ty)
    tl.store(hidden + place, kept, mask=inside)
    y = _rms_norm(kept.to(tl.float32), weight, columns, inside, eps, width)
    tl.store(normed + place, y, mask=inside)


Way = Callable[[Tensor], Tensor]
"""From one layer's weight to what the next operation takes."""


def run(attempt: Callable[[Callable[[], Any]], Any]) -> dict[str, Any]:
    """Microseconds of one layer's share, each way; cuBLAS and the pass after it first."""
    weights = {
        name: torch.randn(LAYERS, width, inner, device="cuda").mul_(0.03).bfloat16()
        for name, (inner, width) in SHAPES.items()
    }
    results: dict[str, Any] = {}
    for tokens in (*SMALL_TOKENS, *LARGE_TOKENS):
        for shape, (inner, _) in SHAPES.items():
            x = torch.randn(tokens, inner, device="cuda").bfloat16()
            hidden = torch.zeros(tokens, HIDDEN, device="cuda").bfloat16()
            found: dict[str, Any] = {}
            wanted: Tensor | None = None
            for label, way in ways(shape, x, hidden, few=tokens in SMALL_TOKENS):
                result = attempt(lambda way=way, w=weights[shape][0]: way(w).clone())
                if isinstance(result, str):
                    found[label] = result
                    continue
                wanted = result if wanted is None else wanted
                micro = attempt(
                    lambda way=way, ws=weights[shape]: microseconds([lambda w=w: way(w) for w in ws])
                )
                found[label] = {"us": micro, "error": worst_error((result,), (wanted,))}
                hidden.zero_()
            results[f"{shape} {tokens}"] = found
            _show(f"{shape} {tokens}", found)
    return results


def ways(shape: str, x: Tensor, hidden: Tensor, *, few: bool) -> Iterator[tuple[str, Way]]:
    """What is tried for a product of x [M, K] and what comes after it. hidden: [M, hidden], is added to."""
    if shape == "qkv":
        yield "linear", lambda w: linear(x, w)
        for tile in SMALL if few else ():
            yield f"product {tile}", lambda w, tile=tile: shared_product(x, w, tile)
    elif shape == "gate_up":
        yield "linear + swiglu", lambda w: pointwise.swiglu(linear(x, w))
        for tile in GATED:
            yield f"gated {tile}", lambda w, tile=tile: product.gated_product(x, w, tile)
        for tile in SMALL if few else ():
            yield (
                f"product {tile} + swiglu",
                lambda w, tile=tile: pointwise.swiglu(shared_product(x, w, tile)),
            )
    else:
        norm = torch.linspace(0.5, 1.5, hidden.shape[1], device=x.device).to(x.dtype)
        none = hidden.new_empty(0, *hidden.shape)
        yield "linear + add_norm_", lambda w: pointwise.add_norm_(hidden, linear(x, w), norm, EPS)
        yield "residual", lambda w: add_shares_norm_(hidden.addmm_(x, w.T), none, norm)
        for tile in SHARED if few else ():
            yield (
                f"shared {tile}",
                lambda w, tile=tile: add_shares_norm_(
                    hidden, shared_product(x, w, tile).view(tile.shares, *hidden.shape), norm
                ),
            )


def _show(name: str, found: dict[str, Any]) -> None:
    times = {
        label: value["us"]
        for label, value in found.items()
        if isinstance(value, dict) and isinstance(value["us"], float)
    }
    if not times:
        return
    stock, *others = times
    best = sorted(others, key=times.__getitem__)[:3]
    tried = "; ".join(f"{label} {times[label]:.2f}" for label in best)
    print(f"{name:14} {stock} {times[stock]:.2f} us; {tried}", flush=True)
