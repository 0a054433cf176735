"""The fused kernels of the backbone compiled without a GPU, at the tilings that serve, for the cards they
are meant for: they fit in shared memory and keep what they work on in registers.

Run by test_fused_backbone.py."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from polychoir.kernels.fused import pointwise, product
from polychoir.kernels.fused.attention import LARGE, SINGLE_PRECISION, SMALL, Tiling, _attend

SHARED_MEMORY = {80: 163 * 1_024, 86: 99 * 1_024, 89: 99 * 1_024, 90: 227 * 1_024}
"""Bytes that one program may have (CUDA C++ Programming Guide, table of compute capabilities)."""
INTEGERS = {"width", "vocabulary", "stride", "heads", "height", "inner", "programs"}
NUMBERS = {"eps", "scale"}
TABLES = {"arena", "source", "position", "rows", "cell_row", "items", "runs", "header"}


def build(
    kernel: Any,
    constants: dict[str, int],
    card: int,
    dtype: str = "*bf16",
    kinds: dict[str, str] | None = None,
    **options: int,
) -> Any:
    """As a launch with aligned tensors and sizes that 16 divides compiles it."""

    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        if kinds and name in kinds:
            return kinds[name]
        if name in INTEGERS:
            return "i32"
        if name in NUMBERS:
            return "fp32"
        return "*i32" if name in TABLES else "*fp32" if name == "knobs" else dtype

    names = kernel.arg_names
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if name not in constants
        and name not in NUMBERS
        and name != "vocabulary"
        and name not in (kinds or {})
    }
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, {name: kind(name) for name in names}, values, aligned)
    return triton.compile(source, target=GPUTarget("cuda", card, 32), options=options)


def stack_bytes(built: Any, path: Path) -> int:
    """Bytes of each thread's stack: where registers go that are too many."""
    path.write_bytes(built.asm["cubin"])
    tool = triton.knobs.nvidia.cuobjdump.path
    usage = subprocess.run([tool, "-res-usage", str(path)], capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+)", usage)
    assert found, usage
    return int(found[1])


@pytest.mark.parametrize("card", SHARED_MEMORY)
@pytest.mark.parametrize("tiling", [SMALL, LARGE])
def test_attention(card: int, tiling: Tiling, tmp_path: Path) -> None:
    built = build_attention(tiling, card, "*bf16")
    assert built.metadata.shared <= SHARED_MEMORY[card]
    assert "wgmma" in built.asm["ptx"] if card == 90 else "mma.sync" in built.asm["ptx"]
    assert stack_bytes(built, tmp_path / "attention.cubin") == 0


@pytest.mark.parametrize("card", SHARED_MEMORY)
def test_attention_in_single_precision_fits(card: int) -> None:
    assert build_attention(SINGLE_PRECISION, card, "*fp32").metadata.shared <= SHARED_MEMORY[card]


def build_attention(tiling: Tiling, card: int, dtype: str) -> Any:
    constants = {"HEADS": 16, "KV_HEADS": 8, "SIZE": 128, "QUERIES": tiling.queries, "KEYS": tiling.keys}
    return build(_attend, constants, card, dtype, num_warps=tiling.warps, num_stages=tiling.stages)


@pytest.mark.parametrize(
    "kernel, constants, warps",
    [
        (pointwise._embed_norm, {"CODEBOOKS": 8, "BLOCK": 1_024}, 4),
        (pointwise._add_norm, {"BLOCK": 1_024}, 4),
        (pointwise._qk_norm_rope, {"HEADS": 8, "HALF": 64}, 2),
        (pointwise._swiglu, {"TILE": 1_024}, 4),
        (pointwise._combine, {"BLOCK": 1_024}, 4),
    ],
)
@pytest.mark.parametrize("card", [80, 90])
def test_pointwise(kernel: Any, constants: dict[str, int], warps: int, card: int, tmp_path: Path) -> None:
    built = build(kernel, constants, card, num_warps=warps)
    assert ".v4" in built.asm["ptx"]  # reads of 16 bytes a thread
    assert stack_bytes(built, tmp_path / "pointwise.cubin") == 0


@pytest.mark.parametrize("gated", [True, False])
def test_product(gated: bool, tmp_path: Path) -> None:
    tile = product.GATED if gated else product.PLAIN
    constants = {
        "ROWS": tile.rows, "WIDTH": tile.width, "INNER": tile.inner,
        "GROUP": 8, "GATED": gated, "LEADING": not gated,
    }  # fmt: skip
    wide = tile.width // 2 if gated else tile.width
    blocks = {"x": (tile.rows, tile.inner), "weight": (tile.width, tile.inner), "out": (tile.rows, wide)}
    kinds = {name: f"tensordesc<bf16[{high},{across}]>" for name, (high, across) in blocks.items()}
    built = build(product._product, constants, 90, kinds=kinds, num_warps=tile.warps, num_stages=tile.stages)
    assert built.metadata.shared <= SHARED_MEMORY[90]
    assert "wgmma" in built.asm["ptx"]
    assert "cp.async.bulk.tensor" in built.asm["ptx"]
    assert stack_bytes(built, tmp_path / "product.cubin") == 0
