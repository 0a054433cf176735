"""One step through the fused kernels, on static buffers: the form that a CUDA graph can hold.

The host writes one small table of who is in the step and where (kernels/tables.py); everything else, down to
which cell is revealed, is decided on the device. Shapes depend on the bucket alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from polychoir.kernels.attention import work_items
from polychoir.kernels.fused import pointwise
from polychoir.kernels.fused.attention import attend
from polychoir.kernels.fused.expand import expand
from polychoir.kernels.fused.product import leading_product
from polychoir.kernels.fused.reveal import reveal
from polychoir.kernels.fused.score import score
from polychoir.kernels.tables import (
    HEADER_WIDTH,
    ITEM_WIDTH,
    ROW_WIDTH,
    RUN_WIDTH,
    Header,
    Row,
    StepTables,
)
from polychoir.models.omnivoice.network import Network
from polychoir.runner.graphs import GraphPool, bucket_sizes, fit, whole
from polychoir.runner.packing import Packing, pack, split
from polychoir.runner.slots import Slot, SlotTable
from polychoir.runner.step import Ran

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STAGINGS = 3
"""Host copies of the tables: one being read by a copy, one for a step behind it, one being written."""
_WORST_TILE = 16
"""No attention tile is smaller than this many queries."""


class FusedStep:
    """A StepExecutor (runner/step.py)."""

    def __init__(self, network: Network, slots: SlotTable, *, max_rows: int, largest: int) -> None:
        """`largest`: tokens of the largest bucket; a plan with more is split, a row with more runs alone."""
        self._network = network
        self._slots = slots.tables
        self._max_rows = max_rows
        self._sizes = bucket_sizes(largest)
        self._graphs: GraphPool | None = None
        self._buffers = StepBuffers(max_rows, whole(2 * network.config.context), network)
        self._kept: tuple[tuple[int, ...], Packing] | None = None

    def capture(self, utilization: float) -> None:
        """Capture a graph for every bucket. See GraphPool."""
        self._graphs = GraphPool(self._step, self._sizes, self._network.device, utilization)
        self._graphs.capture_all(torch.cuda.graph_pool_handle())

    def run(self, slots: Sequence[Slot], steps: Sequence[int]) -> Ran:
        parts = [
            self._run_part(slots[part], steps[part])
            for part in split(slots, tokens=self._sizes[-1], rows=self._max_rows)
        ]
        worst = max(parts, key=lambda ran: ("hit", "miss", "skipped").index(ran.graph or "hit"))
        return Ran(sum(ran.padded_tokens for ran in parts), worst.graph)

    def close(self) -> None:
        self._kept = None
        if self._graphs is not None:
            self._graphs.close()

    def _run_part(self, slots: Sequence[Slot], steps: Sequence[int]) -> Ran:
        tokens = self.fill(slots, steps)
        if self._graphs is not None:
            return self._graphs.launch(tokens)
        size = fit(tokens, self._sizes) or whole(tokens)
        self._step(size)
        return Ran(size - tokens)

    def fill(self, slots: Sequence[Slot], steps: Sequence[int]) -> int:
        """Tell the device who is in the step; returns how many tokens it has."""
        packing = self._packing(slots)
        self._buffers.fill(packing, steps)
        return packing.tokens

    def _packing(self, slots: Sequence[Slot]) -> Packing:
        key = tuple(slot.serial for slot in slots)
        if self._kept is None or self._kept[0] != key:
            self._kept = (key, pack(slots))
        return self._kept[1]

    def _step(self, size: int) -> None:
        """The whole step over `size` tokens, what is past the real ones skipped by the kernels."""
        slots, tables, mask_id = self._slots, self._buffers.tables, self._network.config.mask_id
        logits = self.logits(size)
        source, _, cell_row = self._per_token(size)
        token, scores = (buffer[:size] for buffer in self._buffers.per_cell)
        score(logits, tables, slots, source, cell_row, token, scores, mask_id)
        reveal(tables, slots, source, token, scores, mask_id)

    def logits(self, size: int) -> Tensor:
        """Guided logits [size, codebooks * audio vocabulary] of the step's positions, in their order."""
        network, slots, tables = self._network, self._slots, self._buffers.tables
        config = network.config
        source, position, cell_row = self._per_token(size)
        expand(tables, slots, source, position, cell_row)
        normed = network.hidden(
            slots.arena,
            source,
            position,
            lambda qkv: attend(
                qkv, tables.items, tables.runs, tables.header, config.heads, config.kv_heads, config.head_dim
            ),
        )
        guided = pointwise.combine(normed, tables.rows, cell_row, slots.knobs)
        return leading_product(guided, network.weights.heads, tables.header)

    def _per_token(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        source, position, cell_row = self._buffers.per_token
        return source[:size], position[:size], cell_row[:size]


class StepBuffers:
    """Static device memory of a step, and the pinned host memory it is filled from."""

    def __init__(self, max_rows: int, longest: int, network: Network) -> None:
        device = network.device
        items = -(-longest // _WORST_TILE) + 2 * max_rows
        shapes = (
            (HEADER_WIDTH,),
            (max_rows, ROW_WIDTH),
            (2 * max_rows, RUN_WIDTH),
            (items, ITEM_WIDTH),
        )
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        self._whole = torch.zeros(int(ends[-1]), dtype=torch.int32, device=device)
        parts = self._whole.tensor_split(ends[:-1].tolist())
        self.tables = StepTables(*(part.view(shape) for part, shape in zip(parts, shapes, strict=True)))
        self._stagings = [_Staging(self._whole, shapes) for _ in range(_STAGINGS)]
        self._turn = 0
        codebooks = network.config.codebooks
        self.per_token = tuple(torch.zeros(longest, dtype=torch.int32, device=device) for _ in range(3))
        self.per_cell = (
            torch.zeros(longest, codebooks, dtype=torch.int32, device=device),
            torch.zeros(longest, codebooks, dtype=torch.float32, device=device),
        )

    def fill(self, packing: Packing, steps: Sequence[int]) -> None:
        """Send the tables of a step."""
        self._turn = (self._turn + 1) % len(self._stagings)
        staging = self._stagings[self._turn]
        header, rows, runs, items = staging.claim()
        work = work_items(packing.lengths)
        header[[Header.ROWS, Header.TOKENS, Header.POSITIONS, Header.RUNS, Header.ITEMS]] = (
            len(packing.rows),
            packing.tokens,
            packing.positions,
            len(packing.runs),
            len(work),
        )
        rows[: len(packing.rows)] = packing.rows
        rows[: len(packing.rows), Row.STEP] = steps
        runs[: len(packing.runs)] = packing.runs
        items[: len(work)] = work
        staging.send()


class _Staging:
    """Pinned host memory for the tables of one step."""

    def __init__(self, target: Tensor, shapes: Sequence[tuple[int, ...]]) -> None:
        self._target = target
        on_gpu = target.device.type == "cuda"
        self._memory = torch.zeros_like(target, device="cpu", pin_memory=on_gpu)
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        parts = self._memory.tensor_split(ends[:-1].tolist())
        self._parts = [part.view(shape).numpy() for part, shape in zip(parts, shapes, strict=True)]
        self._sent = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]

    def claim(self) -> list[NDArray[np.int32]]:
        """To write on. Its last copy is done by now, unless one plan was split into many parts."""
        if self._sent is not None:
            self._sent.synchronize()
        return self._parts

    def send(self) -> None:
        self._target.copy_(self._memory, non_blocking=True)
        if self._sent is not None:
            self._sent.record()
