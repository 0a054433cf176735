"""The fused sampler compiled without a GPU for the cards it is meant for. Run by test_fused_sampler.py."""

from __future__ import annotations

import math
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from polychoir.kernels.fused.expand import _expand
from polychoir.kernels.fused.reveal import _TILE, _WARPS, _reveal
from polychoir.kernels.fused.score import DRAW, SCORE, _draw, _score

CARDS = [75, 80, 90]
POINTERS = {"logits": "*bf16", "knobs": "*fp32", "keys": "*i64", "score": "*fp32"}
NUMBERS = {"logits_stride", "timetable_stride", "blocks_stride", "token_capacity", "position_capacity"}
SIZES = {"CODEBOOKS": 8, "MASK": 1_024, "TILE": 1_024}
KEEP = math.ceil(0.1 * 1_025)


def build(kernel: Any, constants: dict[str, int], warps: int, card: int, logits: str = "*bf16") -> Any:
    names = kernel.arg_names
    pointers = {**POINTERS, "logits": logits}
    signature = {
        name: "constexpr" if name in constants else "i32" if name in NUMBERS else pointers.get(name, "*i32")
        for name in names
    }
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()})
    return triton.compile(source, target=GPUTarget("cuda", card, 32), options={"num_warps": warps})


@pytest.mark.parametrize("card", CARDS)
def test_expand(card: int) -> None:
    assert build(_expand, {"RUN_STEPS": 9, "ROW_STEPS": 8, "TILE": 128}, 4, card).asm["cubin"]


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("logits", ["*bf16", "*fp16", "*fp32"])
def test_score(card: int, logits: str) -> None:
    if card == 75 and logits == "*bf16":
        pytest.skip("a card of capability 7.5 computes in fp16, it has no bf16")
    built = build(_score, SIZES, SCORE.warps, card, logits)
    assert built.metadata.shared <= 1_024
    assert ".local" not in built.asm["ptx"]


@pytest.mark.parametrize("card", CARDS)
def test_draw(card: int) -> None:
    built = build(_draw, {**SIZES, "KEEP": KEEP, "ROWS": 256}, DRAW.warps, card, "*fp16")
    assert "lg2.approx" not in built.asm["ptx"]  # see philox.log


@pytest.mark.parametrize("card", CARDS)
def test_reveal(card: int) -> None:
    assert build(_reveal, {"CODEBOOKS": 8, "MASK": 1_024, "TILE": _TILE}, _WARPS, card).asm["cubin"]
