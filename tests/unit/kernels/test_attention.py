"""Attention of packed runs beside the definition, run by run."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="the network needs the extra [omnivoice]")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from polychoir.kernels.attention import attend_grouped, choose, make_runs  # noqa: E402

CPU = torch.device("cpu")


def by_definition(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    share = q.shape[1] // k.shape[1]
    out = []
    for query, key, value in zip(*(x.split(lengths) for x in (q, k, v)), strict=True):
        key, value = (x.repeat_interleave(share, dim=1) for x in (key, value))  # noqa: PLW2901
        weights = torch.softmax(torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(q.shape[2]), -1)
        out.append(torch.einsum("hqk,khd->qhd", weights, value))
    return torch.cat(out)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    heads=st.sampled_from([(4, 2), (2, 2), (6, 1)]),
    seed=st.integers(0, 1_000),
)
def test_grouped_equals_the_definition(lengths: list[int], heads: tuple[int, int], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(sum(lengths), n, 8, generator=draw, dtype=torch.float64)
        for n in (heads[0], heads[1], heads[1])
    )
    out = attend_grouped(q, k, v, make_runs(lengths, CPU))
    assert torch.allclose(out, by_definition(q, k, v, lengths), atol=1e-12)


def test_a_broken_run_stays_alone() -> None:
    lengths = [5, 5, 3]
    q = torch.randn(13, 2, 8)
    clean = attend_grouped(q, q, q, make_runs(lengths, CPU))
    dirty = q.clone()
    dirty[7] = float("nan")
    out = attend_grouped(dirty, dirty, dirty, make_runs(lengths, CPU))
    assert out[5:10].isnan().any()
    assert (out[:5] == clean[:5]).all()
    assert (out[10:] == clean[10:]).all()


def test_a_cpu_gets_the_grouped_way() -> None:
    assert choose(CPU, torch.bfloat16, (4, 2, 32)) == ("grouped", attend_grouped)
