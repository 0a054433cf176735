"""Capturing without a GPU, torch's calls replaced: what is captured, and what is left out and why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runner needs the extra [omnivoice]")

from polychoir.models.omnivoice.codec_graphs import CodecGraphs  # noqa: E402
from polychoir.runner.cuda import is_lost  # noqa: E402
from polychoir.runner.graphs import GraphPool  # noqa: E402

DEVICE = torch.device("cuda")


class Card:
    """100 bytes of memory, of which each forward of a size keeps that many."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used = 0
        self.ran: list[int] = []
        self.replayed = 0
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 - self.used, 100))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: self)
        monkeypatch.setattr(torch.cuda, "graph", self._graph)

    @contextmanager
    def _graph(self, graph: Any, **options: Any) -> Iterator[None]:
        assert options["capture_error_mode"] == "thread_local"  # the booth may be at work on its own
        yield

    def replay(self) -> None:
        self.replayed += 1

    def forward(self, size: int) -> int:
        self.ran.append(size)
        self.used = size
        if size > 120:
            raise torch.cuda.OutOfMemoryError("out of memory")
        return size


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    return Card(monkeypatch)


def test_sizes_without_memory_are_left_out_and_named(card: Card, caplog: pytest.LogCaptureFixture) -> None:
    pool = GraphPool(card.forward, (40, 80, 95, 130), DEVICE, utilization=0.9)
    pool.capture_all((0, 0))
    assert pool.skipped == (95, 130)
    assert "(95, 130)" in caplog.text
    card.ran.clear()
    uses = [(pool.launch(tokens).graph, pool.launch(tokens).padded_tokens) for tokens in (30, 80, 90)]
    assert uses == [("hit", 10), ("hit", 0), ("skipped", 5)]
    assert (card.replayed, card.ran) == (4, [95, 95])


@pytest.mark.parametrize(("utilization", "captured"), [(0.5, [40]), (0.9, [40, 80]), (1.0, [40, 80, 95])])
def test_the_codecs_graphs_keep_the_same_bound(card: Card, utilization: float, captured: list[int]) -> None:
    graphs = CodecGraphs("decoder", card.forward, (40, 80, 95), DEVICE, utilization)
    card.ran.clear()
    assert [graphs.run(size) for size in (40, 80, 95)] == [40, 80, 95]
    assert [size for size in (40, 80, 95) if size not in card.ran] == captured


def test_a_device_is_lost_when_it_cannot_even_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: Any = None) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    assert not is_lost(DEVICE)
    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    assert is_lost(DEVICE)
