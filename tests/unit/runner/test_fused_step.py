"""The fused step as a whole, interpreted on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.apart import run_apart

pytest.importorskip("torch", reason="the runner needs the extra [omnivoice]")
pytest.importorskip("triton", reason="the fused kernels need Triton")


def test_fused_step(tmp_path: Path) -> None:
    run_apart(Path(__file__).parent / "interpreted_step.py", tmp_path, interpret=True)
