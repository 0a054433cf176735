"""Buckets, and what runs where; capturing itself needs a GPU (tests/gpu)."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="the runner needs the extra [omnivoice]")

from polychoir.errors import ModelLoadError  # noqa: E402
from polychoir.runner import modes  # noqa: E402
from polychoir.runner.graphs import GraphPool, bucket_sizes, fit  # noqa: E402
from polychoir.runner.modes import resolve_mode  # noqa: E402

CPU = torch.device("cpu")


@pytest.mark.parametrize("largest", [1, 100, 8_192, 10_000])
def test_buckets_end_at_the_largest_and_padding_is_bounded(largest: int) -> None:
    sizes = bucket_sizes(largest)
    assert sizes[-1] == largest
    for small, large in itertools.pairwise((0, *sizes)):
        assert small < large
        if small >= 256:
            assert (large - small - 1) / (small + 1) <= 0.125
    for tokens in range(1, largest + 1, 7):
        size = fit(tokens, sizes)
        assert size is not None
        assert size >= tokens
        assert all(other < tokens for other in sizes if other < size)
    assert fit(largest + 1, sizes) is None


def test_what_has_no_graph_runs_all_the_same_and_is_counted() -> None:
    ran: list[int] = []
    pool = GraphPool(ran.append, (64, 128), CPU, utilization=0.9)
    pool.skipped = (128,)
    assert [(pool.launch(tokens).padded_tokens, pool.launch(tokens).graph) for tokens in (60, 100, 129)] == [
        (4, "miss"),
        (28, "skipped"),
        (383, "skipped"),
    ]
    assert ran == [64, 64, 128, 128, 512, 512]


def test_a_cpu_runs_eagerly_and_says_so() -> None:
    assert resolve_mode("auto", CPU) == "eager"
    assert resolve_mode("eager", CPU) == "eager"
    for mode in ("graph", "triton", "hybrid"):
        with pytest.raises(ModelLoadError, match=r"not possible on cpu in .*; possible: eager") as refusal:
            resolve_mode(mode, CPU)
        assert refusal.value.param == "runner_mode"
    with pytest.raises(ModelLoadError, match="not known"):
        resolve_mode("quick", CPU)


def test_what_a_gpu_can_run_depends_on_its_generation_and_the_number_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda, capability = torch.device("cuda"), (9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(modes, "find_spec", lambda name: object())
    assert resolve_mode("auto", cuda, torch.bfloat16) == "hybrid"
    assert resolve_mode("auto", cuda, torch.float32) == "hybrid"
    assert resolve_mode("auto", cuda, torch.float64) == "eager"
    with pytest.raises(ModelLoadError, match="possible: eager, triton, hybrid"):
        resolve_mode("graph", cuda, torch.float32)
    monkeypatch.setattr(modes, "find_spec", lambda name: None)
    assert resolve_mode("auto", cuda, torch.float16) == "graph"
    assert resolve_mode("auto", cuda, torch.float32) == "eager"
    capability = (7, 5)
    assert resolve_mode("auto", cuda, torch.float16) == "eager"
