"""The codec's convolution compiled without a GPU for cards it is meant for. Run by test_fused_codec.py."""

from __future__ import annotations

from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from polychoir.kernels.fused.snake import TILES, _conv, warps

POINTERS = {
    "x_ptr": "*fp16", "weight_ptr": "*fp16", "bias_ptr": "*fp32", "residual_ptr": "*fp16",
    "raw_ptr": "*fp16", "bent_ptr": "*fp16", "curve_ptr": "*fp32", "live_ptr": "*i32",
}  # fmt: skip
LARGEST_SHARED = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10}


def build(card: int, block_m: int, block_n: int) -> Any:
    names = _conv.arg_names
    constants = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": 64}
    signature = {name: "constexpr" if name in constants else POINTERS.get(name, "i32") for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in (*POINTERS, "narrow", "wide")}
    source = ASTSource(
        _conv, signature, {(names.index(name),): value for name, value in constants.items()}, aligned
    )
    options = {"num_warps": warps(block_m, block_n), "num_stages": 3}
    return triton.compile(source, target=GPUTarget("cuda", card, 32), options=options)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("card", LARGEST_SHARED)
def test_conv(card: int, tile: tuple[int, int]) -> None:
    built = build(card, *tile)
    assert built.metadata.shared <= LARGEST_SHARED[card]
    assert "cp.async" in built.asm["ptx"]  # the loads overlap the products
    products = "wgmma" if card == 90 else "mma.sync"
    assert products in built.asm["ptx"]
