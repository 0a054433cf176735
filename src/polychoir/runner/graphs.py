"""Captured CUDA graphs of a whole step, one for each bucket of packed tokens.

A graph is replayed for whatever rows fill its bucket: who they are is read from device tables, so nothing is
captured while serving. A replay costs the host microseconds where launching some 250 kernels costs it more
than the device needs to run them.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from polychoir.runner.cuda import capture
from polychoir.runner.step import Ran

_log = logging.getLogger(__name__)

_FINENESS = ((512, 32), (1_024, 64), (2_048, 128), (4_096, 256))
"""Buckets up to so many tokens are so far apart: at most an eighth is padding from 256 tokens on."""
_COARSEST = 512


def bucket_sizes(largest: int) -> tuple[int, ...]:
    """Token sizes worth a graph, ascending; the last one is `largest`."""
    sizes, size = [], 0
    while size < largest:
        size += next((step for end, step in _FINENESS if size < end), _COARSEST)
        sizes.append(min(size, largest))
    return tuple(sizes)


def fit(tokens: int, sizes: Sequence[int]) -> int | None:
    """The smallest of the ascending sizes that holds so many tokens."""
    place = bisect_left(sizes, tokens)
    return sizes[place] if place < len(sizes) else None


def whole(tokens: int) -> int:
    """A size for a step that is larger than any bucket. Kernels are compiled for sizes that 16 divides:
    another would be compiled anew while somebody waits."""
    return -(-tokens // _COARSEST) * _COARSEST


class GraphPool:
    """Graphs of `step(size)`, which works on static buffers. All share one memory pool."""

    def __init__(
        self, step: Callable[[int], None], sizes: Sequence[int], device: torch.device, utilization: float
    ) -> None:
        """`utilization`: share of the device's memory that may be in use after a capture."""
        self._step = step
        self._sizes = tuple(sizes)
        self._device = device
        self._utilization = utilization
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.skipped: tuple[int, ...] = ()
        """Sizes there was no memory for."""

    def capture_all(self, pool: Any) -> None:
        """Capture every size, the largest first, so that the others fit into its memory. Takes seconds.

        pool: what torch.cuda.graph_pool_handle gave; pools of graphs that never run at once may share it.
        """
        started = time.perf_counter()
        for count, size in enumerate(reversed(self._sizes), start=1):
            made = capture(partial(self._step, size), pool, self._device, self._utilization)
            if made is None:
                self.skipped = (size, *self.skipped)
            else:
                self._graphs[size] = made[0]
            if count % 16 == 0 or count == len(self._sizes):
                took = time.perf_counter() - started
                _log.info("warming up: %d of %d step sizes, %.1f s", count, len(self._sizes), took)
        if self.skipped:
            _log.warning("no memory for graphs of %s tokens: these steps run slower", self.skipped)

    def launch(self, tokens: int) -> Ran:
        """Run the step for `tokens` packed tokens, by its graph if there is one."""
        size = fit(tokens, self._sizes)
        if size is None:
            size = whole(tokens)
            self._step(size)
            return Ran(size - tokens, "skipped")
        graph = self._graphs.get(size)
        if graph is None:
            self._step(size)
            return Ran(size - tokens, "skipped" if size in self.skipped else "miss")
        graph.replay()
        return Ran(size - tokens, "hit")

    def close(self) -> None:
        self._graphs.clear()
