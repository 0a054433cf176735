"""What everybody does who queues work on a CUDA device: mark, capture, and see whether it is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """An event behind everything queued so far. Waiting for it sleeps: a core is worth more elsewhere."""
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def is_lost(device: torch.device) -> bool:
    """True if no later call can succeed: such an error stays until the process ends."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def capture(
    forward: Callable[[], T], pool: Any, device: torch.device, utilization: float
) -> tuple[torch.cuda.CUDAGraph, T] | None:
    """A graph of `forward` and what it gave; None if more than `utilization` of the memory would be in use.

    pool: of torch.cuda.graph_pool_handle; graphs that never run at once may share it.
    """
    try:
        forward()  # compiles, chooses algorithms, and shows how much memory it takes
        torch.cuda.synchronize(device)
        free, total = torch.cuda.mem_get_info(device)
        if total - free > utilization * total:
            return None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            out = forward()
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None
    return graph, out
