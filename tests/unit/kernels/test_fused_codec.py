"""The codec's fused convolutions: interpreted on the CPU beside the plain ones, and compiled for other cards.

Whether Triton interprets is settled when it is imported, so each of the two has a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the kernels need the extra [omnivoice]")
pytest.importorskip("triton", reason="the fused kernels need Triton")

HERE = Path(__file__).parent


@pytest.mark.parametrize(("file", "interpret"), [("interpreted_codec.py", "1"), ("compiled_codec.py", "0")])
def test_fused_codec(file: str, interpret: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "TRITON_INTERPRET": interpret,
        "TRITON_CACHE_DIR": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / file)],
        env=environment,
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
