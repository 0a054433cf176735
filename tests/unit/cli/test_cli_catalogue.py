from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polychoir.voices import STOCK_VOICES

Run = Callable[..., Any]


def test_models_lists_every_plug_in(run: Run) -> None:
    code, out, err = run("models")
    assert (code, err) == (0, "")
    assert {"fake", "hibari", "omnivoice", "vits"} <= {line.split()[0] for line in out.splitlines()}
    assert "fake         iterative; any language; voice tones" in out


def test_models_names_checkpoints_in_the_cache(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "hub" / "models--somebody--a-text-model").mkdir(parents=True)
    _, out, _ = run("models")
    assert "somebody/a-text-model" not in out


def test_voices_of_a_model(run: Run) -> None:
    code, out, _ = run("voices", "--model", "fake")
    listed = [line.split()[0] for line in out.splitlines()]
    assert code == 0
    assert listed == ["tones", "auto", "default", *STOCK_VOICES]


def test_voices_of_an_unknown_model(run: Run) -> None:
    code, _, err = run("voices", "--model", "fakee")
    assert code == 1
    assert "did you mean 'fake'?" in err


def test_download_of_a_plug_in_that_needs_none(run: Run) -> None:
    assert run("download", "fake") == (0, "fake is ready to serve\n", "")


def test_download_without_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    code, _, err = run("download", "somebody/something")
    assert (code, err) == (
        1, "polychoir: downloading needs huggingface-hub: pip install 'polychoir[omnivoice]'\n",
    )  # fmt: skip


def test_download_without_a_network(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    code, _, err = run("download", "somebody/something")
    assert code == 1
    assert err.startswith("polychoir: cannot download somebody/something: ")
    assert err.count("\n") == 1
