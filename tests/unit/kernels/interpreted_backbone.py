"""The fused kernels of the backbone under Triton's interpreter beside the plain ones. Run by
test_fused_backbone.py, which sets TRITON_INTERPRET: it counts when Triton is imported."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

from polychoir.kernels import plain
from polychoir.kernels.attention import QUERY_TILE, attend_grouped, make_runs, work_items
from polychoir.kernels.fused import pointwise, product
from polychoir.kernels.fused.attention import attend
from polychoir.kernels.tables import Header
from tests.support.interpreting import mend_interpreter
from tests.support.step_tables import TestRow, situation

mend_interpreter()
EPS = 1e-6
SHAPES = [(64, 32, 4, 2), (48, 16, 8, 8), (1_024, 128, 16, 8)]
"""Hidden size, head size, heads, key heads: the small checkpoint, an odd one, the real one."""


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Memory that is not written holds no numbers: what a kernel leaves out cannot pass by chance."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def draw() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("width", [48, 64, 1_024])
def test_add_norm(width: int, draw: torch.Generator) -> None:
    hidden, update = (torch.randn(5, width, generator=draw) for _ in range(2))
    weight, other = torch.randn(width, generator=draw), hidden.clone()
    normed = pointwise.add_norm_(hidden, update, weight, EPS)
    torch.testing.assert_close(normed, plain.add_norm_(other, update, weight, EPS))
    torch.testing.assert_close(hidden, other)


@pytest.mark.parametrize("width, size, heads, kv_heads", SHAPES)
def test_qk_norm_rope(width: int, size: int, heads: int, kv_heads: int, draw: torch.Generator) -> None:
    qkv = torch.randn(4, (heads + 2 * kv_heads) * size, generator=draw)
    q_norm, k_norm = (torch.randn(size, generator=draw) for _ in range(2))
    cos, sin = (torch.randn(60, size // 2, generator=draw) for _ in range(2))
    position, other = torch.tensor([0, 59, 7, 7]), qkv.clone()
    for rotate, x in ((pointwise.qk_norm_rope_, qkv), (plain.qk_norm_rope_, other)):
        rotate(x, q_norm, k_norm, cos, sin, position, heads, kv_heads, EPS)
    torch.testing.assert_close(qkv, other)


@pytest.mark.parametrize("width", [48, 1_500])
def test_swiglu(width: int, draw: torch.Generator) -> None:
    gate_up = 3 * torch.randn(3, 2 * width, generator=draw)
    torch.testing.assert_close(pointwise.swiglu(gate_up), plain.swiglu(gate_up))


@pytest.mark.parametrize("rows", [1, 70, 150])
def test_gated_product(rows: int, draw: torch.Generator) -> None:
    x = torch.randn(rows, 96, generator=draw).half()
    weight = (0.2 * torch.randn(48, 96, generator=draw)).half()
    for tile in (product.Tile(64, 32), product.Tile(32, 16, 32)):
        found = product.gated_product(x, weight, tile)
        torch.testing.assert_close(found, plain.gated_product(x, weight), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("positions", [0, 1, 64, 100])
def test_leading_product(positions: int, draw: torch.Generator) -> None:
    x, weight = (torch.randn(lines, 64, generator=draw).half() for lines in (100, 88))
    header = torch.zeros(8, dtype=torch.int32)
    header[Header.POSITIONS] = positions
    found = product.leading_product(x, weight, header, product.Tile(32, 32, 32))
    torch.testing.assert_close(found[:positions], linear(x, weight)[:positions], rtol=4e-3, atol=4e-3)
    left = found[-(-positions // 32) * 32 :]
    assert bool(left.isnan().all())  # nothing is spent on them


def test_embed_norm(draw: torch.Generator) -> None:
    arena = torch.randint(0, 17, (30, 8), generator=draw, dtype=torch.int32)
    arena[:10] = 0
    arena[:10, 0] = -(torch.arange(10, dtype=torch.int32) + 1)
    source = torch.tensor([3, 12, -1, 29, 0, 9], dtype=torch.int32)
    text, audio = torch.randn(20, 48, generator=draw), torch.randn(136, 48, generator=draw)
    weight = torch.randn(48, generator=draw)
    found = pointwise.embed_norm(arena, source, text, audio, weight, EPS)
    for one, other in zip(found, plain.embed_norm(arena, source, text, audio, weight, EPS), strict=True):
        torch.testing.assert_close(one, other)
    assert (found[0][2] == 0).all()


def test_combine(draw: torch.Generator) -> None:
    case = situation([TestRow(4), TestRow(1, guidance=0.0), TestRow(7, guidance=3.5)], draw)
    normed = torch.randn(case.tokens + 5, 48, generator=draw)
    arguments = (normed, case.step.rows, case.cell_row, case.slots.knobs)
    case.cell_row[: case.positions] = torch.repeat_interleave(torch.arange(3), torch.tensor([4, 1, 7])).int()
    case.cell_row[case.positions :] = -1
    found = pointwise.combine(*arguments)
    torch.testing.assert_close(found, plain.combine(*arguments))
    assert (found[case.positions :] == 0).all()
    assert (found[: case.positions] != 0).any(dim=1).all()


@pytest.mark.parametrize("size, heads, kv_heads", [(16, 2, 1), (32, 4, 2), (128, 4, 2)])
def test_attention_of_runs(size: int, heads: int, kv_heads: int, draw: torch.Generator) -> None:
    """Runs around the sizes of a tile; tokens past the last run are not numbers and must not matter."""
    lengths = np.array([1, QUERY_TILE, 2 * QUERY_TILE + 5, 3, QUERY_TILE - 1], np.int32)
    tokens, items = int(lengths.sum()), work_items(lengths)
    qkv = torch.full((tokens + 9, (heads + 2 * kv_heads) * size), float("nan"))
    qkv[:tokens] = torch.randn(tokens, qkv.shape[1], generator=draw)
    runs = torch.full((16, 4), -7, dtype=torch.int32)
    runs[: len(lengths), 0] = torch.from_numpy(np.cumsum(lengths) - lengths)
    runs[: len(lengths), 1] = torch.from_numpy(lengths)
    work = torch.full((64, 2), -7, dtype=torch.int32)
    work[: len(items)] = torch.from_numpy(items)
    header = torch.zeros(8, dtype=torch.int32)
    header[Header.ITEMS] = len(items)
    found = attend(qkv, work, runs, header, heads, kv_heads, size)[:tokens]
    q, k, v = torch.split(qkv[:tokens].view(tokens, -1, size), [heads, kv_heads, kv_heads], dim=1)
    expected = attend_grouped(q, k, v, make_runs(lengths.tolist(), torch.device("cpu")))
    torch.testing.assert_close(found, expected.flatten(1), rtol=1e-4, atol=1e-5)
