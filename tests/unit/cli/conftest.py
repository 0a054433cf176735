from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from polychoir.cli import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process, in an empty folder and an environment without settings."""
    for name in os.environ:
        if name.startswith(("POLYCHOIR_", "OMNIVOICE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("POLYCHOIR_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("POLYCHOIR_FAKE_STEP_MS", "0")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # `models` sets it, and it should not outlive the test
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["polychoir", *arguments])
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Outcome(code, *capsys.readouterr())

    return run
