"""CUDA graphs of the codec, one for each size in frames, captured when it is loaded and never later."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from polychoir.runner.cuda import capture

_log = logging.getLogger(__name__)


class CodecGraphs:
    """Graphs of `forward(size)`, which reads static tensors. One at a time, always on the same stream."""

    def __init__(
        self,
        what: str,
        forward: Callable[[int], Tensor],
        sizes: Sequence[int],
        device: torch.device,
        utilization: float,
        pool: Any = None,
    ) -> None:
        """Captures every size there is memory for, the largest first: the others fit into its memory.

        what: their name in the log. utilization: share of the device's memory that may be in use. pool: of
        graphs that never run beside these; None for a new one. Takes seconds.
        """
        self.sizes = tuple(sizes)
        self._forward = forward
        self._device = device
        self._utilization = utilization
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        started = time.perf_counter()
        pool = torch.cuda.graph_pool_handle() if pool is None else pool
        skipped = [size for size in reversed(self.sizes) if not self._capture(size, pool)]
        if skipped:
            _log.warning("%s: no memory for graphs of %s frames: these run slower", what, skipped)
        _log.info("%s: graphs of %d sizes, %.1f s", what, len(self._graphs), time.perf_counter() - started)

    def fit(self, frames: int) -> int | None:
        """The smallest size that holds so many frames."""
        return next(iter(self.sizes[bisect_left(self.sizes, frames) :]), None)

    def run(self, size: int) -> Tensor:
        """What `forward(size)` gives; by its graph it is overwritten by the next run of any size."""
        if size not in self._graphs:
            return self._forward(size)
        graph, out = self._graphs[size]
        graph.replay()
        return out

    @torch.inference_mode()
    def _capture(self, size: int, pool: Any) -> bool:
        made = capture(partial(self._forward, size), pool, self._device, self._utilization)
        if made is not None:
            self._graphs[size] = made
        return made is not None
