"""The fused sampler: interpreted on the CPU beside the plain one, and compiled for cards that are not here.

Whether Triton interprets is settled when it is imported, so each of the two has a process of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.apart import run_apart

pytest.importorskip("torch", reason="the kernels need the extra [omnivoice]")
pytest.importorskip("triton", reason="the fused kernels need Triton")

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    "file, interpret", [("interpreted_sampler.py", True), ("compiled_sampler.py", False)]
)
def test_fused_sampler(file: str, interpret: bool, tmp_path: Path) -> None:
    run_apart(HERE / file, tmp_path, interpret=interpret)
