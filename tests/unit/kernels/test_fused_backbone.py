"""The fused kernels of the backbone: interpreted on the CPU, and compiled for cards that are not here.

Whether Triton interprets is settled when it is imported, so each of the two has a process of its own.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.apart import run_apart

pytest.importorskip("torch", reason="the kernels need the extra [omnivoice]")

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    "file, interpret", [("interpreted_backbone.py", True), ("compiled_backbone.py", False)]
)
def test_fused_backbone(file: str, interpret: bool, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="the fused kernels need Triton")
    run_apart(HERE / file, tmp_path, interpret=interpret)


def test_every_query_is_in_one_tile() -> None:
    from polychoir.kernels.attention import QUERY_TILE, work_items

    lengths = np.array([1, QUERY_TILE, QUERY_TILE + 1, 5 * QUERY_TILE - 1], np.int32)
    items = work_items(lengths)
    assert items.dtype == np.int32
    asked = [(run, query + i) for run, query in items for i in range(QUERY_TILE) if query + i < lengths[run]]
    assert sorted(asked) == [(run, query) for run, length in enumerate(lengths) for query in range(length)]
    assert len(items) == 1 + 1 + 2 + 5
