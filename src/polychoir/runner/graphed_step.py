"""The plain step with its backbone captured: for a GPU without Triton. Sampling stays plain torch."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from polychoir.kernels.attention import Runs
from polychoir.models.omnivoice.network import Network
from polychoir.runner.graphs import GraphPool, bucket_sizes
from polychoir.runner.plain_step import PlainBatch, PlainStep
from polychoir.runner.slots import SlotTable
from polychoir.runner.step import Ran

_CLASSES = (512, 2_048)
"""Longest run of a graph: it fixes the grid of torch's varlen attention. What is longer is not captured."""


class GraphedStep(PlainStep):
    """A StepExecutor (runner/step.py). Needs varlen attention: the other kind has host-made shapes."""

    def __init__(self, network: Network, slots: SlotTable, *, max_rows: int, largest: int) -> None:
        super().__init__(network, slots)
        self._sizes = bucket_sizes(largest)
        device = network.device
        self._source = torch.full((largest,), -1, dtype=torch.int64, device=device)
        self._position = torch.zeros(largest, dtype=torch.int64, device=device)
        self._bounds = torch.zeros(2 * max_rows + 1, dtype=torch.int32, device=device)
        self._normed = torch.zeros(largest, network.config.hidden, dtype=network.dtype, device=device)
        self._pools: dict[int, GraphPool] = {}

    def capture(self, utilization: float) -> None:
        """Capture a graph for every bucket and class of longest run. See GraphPool."""
        memory = torch.cuda.graph_pool_handle()
        for longest in _CLASSES:
            pool = GraphPool(partial(self._backbone, longest), self._sizes, self._network.device, utilization)
            pool.capture_all(memory)
            self._pools[longest] = pool

    def close(self) -> None:
        super().close()
        for pool in self._pools.values():
            pool.close()

    def hidden(self, batch: PlainBatch) -> tuple[Tensor, Ran]:
        tokens = batch.source.numel()
        longest = next((size for size in _CLASSES if size >= batch.runs.longest), None)
        if longest is None or tokens > self._sizes[-1] or batch.runs.bounds.numel() > self._bounds.numel():
            return super().hidden(batch)[0], Ran(0, "skipped")
        self._source.fill_(-1)[:tokens] = batch.source
        self._position[:tokens] = batch.position
        self._bounds.fill_(tokens)[: batch.runs.bounds.numel()] = batch.runs.bounds
        ran = self._pools[longest].launch(tokens)
        return self._normed[:tokens], ran

    def _backbone(self, longest: int, size: int) -> None:
        attend = self._network.attend_runs(Runs(self._bounds, longest, ()))
        normed = self._network.hidden(self._tables.arena, self._source[:size], self._position[:size], attend)
        self._normed[:size].copy_(normed)
