"""The fused step as a whole, interpreted on the CPU: Triton decides at its import whether it interprets, so
this has a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the runner needs the extra [omnivoice]")
pytest.importorskip("triton", reason="the fused kernels need Triton")

HERE = Path(__file__).parent


def test_fused_step() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(HERE / "interpreted_step.py"),
    ]
    done = subprocess.run(
        command,
        env=environment,
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
