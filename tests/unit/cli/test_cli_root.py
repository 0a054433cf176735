from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from polychoir import __version__

Run = Callable[..., Any]


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"polychoir {__version__}\n", "")


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "polychoir", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"polychoir {__version__}\n"


def test_help_names_every_command(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    for command in ("serve", "start", "say", "models", "voices", "download", "doctor"):
        assert f"\n  {command} " in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("sing",),
        ("serve", "--prot", "1"),
        ("say",),
        ("serve", "--port", "http"),
        ("say", "a", "--num-step", "x"),
    ],
)
def test_a_command_line_that_cannot_be_understood_is_2(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "Error" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("serve", "--api-workers", "4"), "polychoir: --api-workers: api_workers = 4 is not built yet"),
        (("serve", "--port", "70000"), "polychoir: --port: "),
        (("serve", "a=b", "a=c"), "polychoir: --model: two models would be served as 'a'"),
        (("say", "hi", "-o", "a.wav", "--model", "nobody"), "polychoir: no installed plug-in knows"),
        (("say", "hi", "-o", "a.wav", "--num-step", "999"), "polychoir: num_step: "),
        (("say", "hi", "-o", "a.wav", "--stream"), "polychoir: stream True is not supported yet"),
        (("say", "hi", "-o", "a.txt"), "polychoir: a.txt has none of the suffixes"),
        (
            ("say", "hi", "-o", "no/where.wav", "--model", "fake"),
            "polychoir: cannot write no/where.wav: No such",
        ),
        (("say", "hi", "-o", "a.wav", "--ref-audio", "b.wav"), "polychoir: ref_audio: cannot read b.wav"),
        (("say", "...", "-o", "a.wav", "--model", "fake"), "polychoir: there is nothing to say"),
        (("voices", "--config", "gone.toml"), "polychoir: cannot read gone.toml"),
        (("download", "nobody"), "polychoir: 'nobody' is not a hub id"),
    ],
)
def test_everything_else_that_is_wrong_is_1_and_one_line(
    run: Run, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_notices_are_said_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIVOICE_MODEL_ID", "fake")
    code, _, err = run("voices")
    assert (code, err) == (0, "polychoir: OMNIVOICE_MODEL_ID is read as POLYCHOIR_MODEL\n")


@pytest.mark.parametrize("command", ["serve", "start"])
def test_help_shows_models_as_any_number(run: Run, command: str) -> None:
    assert run(command, "--help").out.startswith(f"Usage: polychoir {command} [OPTIONS] [MODEL]...\n")
