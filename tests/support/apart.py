"""Runs a file of tests in a process of its own: whether Triton interprets is settled when it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LATEST_S = 400


def run_apart(file: Path, cache: Path, *, interpret: bool) -> None:
    """Fails with the end of what the tests of `file` printed. cache: folder for kernels compiled there."""
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1" if interpret else "0",
        "TRITON_CACHE_DIR": str(cache),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LATEST_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
