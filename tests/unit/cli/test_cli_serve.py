from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polychoir.config import Settings

Run = Callable[..., Any]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """What the server was started with, instead of starting it."""
    seen: list[Settings] = []
    monkeypatch.setattr("polychoir.server.run.serve", seen.append)
    return seen


@pytest.mark.parametrize("command", ["serve", "start"])
def test_flags_become_settings(run: Run, served: list[Settings], command: str) -> None:
    outcome = run(
        command, "fake", "--model", "x=hibari", "--port", "0", "--no-batch", "--max-batch-size", "4",
        "--allowed-origins", "https://a.example", "--allowed-origins", "https://b.example",
    )  # fmt: skip
    assert outcome == (0, "", "")
    (settings,) = served
    assert settings.model == ("fake", "x=hibari")
    assert (settings.port, settings.batch, settings.max_num_seqs) == (0, False, 4)
    assert settings.allowed_origins == ("https://a.example", "https://b.example")


def test_environment_and_file_are_read(
    run: Run, served: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("other.toml").write_text("queue-limit = 7\nport = 1\n")
    monkeypatch.setenv("POLYCHOIR_PORT", "2")
    assert run("serve", "--config", "other.toml").code == 0
    assert (served[0].queue_limit, served[0].port) == (7, 2)


def test_width_flags_of_an_older_server_get_a_notice(run: Run, served: list[Settings]) -> None:
    code, _, err = run("serve", "--cuda-graph-max-width", "512")
    assert (code, len(served)) == (0, 1)
    assert err.startswith("polychoir: --cuda-graph-max-width has no meaning here: ")
    assert err.count("\n") == 1


def test_pid_file_is_there_while_serving_and_gone_after(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(
        "polychoir.server.run.serve", lambda settings: seen.append(settings.pid_file.read_text())
    )
    assert run("serve", "--pid-file", "server.pid").code == 0
    assert seen == [f"{os.getpid()}\n"]
    assert not Path("server.pid").exists()


def test_a_living_process_keeps_its_pid_file(run: Run, served: list[Settings]) -> None:
    Path("server.pid").write_text(str(os.getppid()))
    code, _, err = run("serve", "--pid-file", "server.pid")
    assert (code, served) == (1, [])
    assert "belongs to a running process" in err
    assert Path("server.pid").exists()


@pytest.mark.parametrize("left", ["", "not a number", "999999999", "99999999999999999999999"])
def test_a_pid_file_left_by_nobody_is_taken_over(run: Run, served: list[Settings], left: str) -> None:
    Path("server.pid").write_text(left)
    assert run("serve", "--pid-file", "server.pid").code == 0
    assert len(served) == 1


def test_a_pid_file_that_cannot_be_written_stops_the_start(run: Run, served: list[Settings]) -> None:
    code, _, err = run("serve", "--pid-file", "no/such/folder.pid")
    assert (code, served) == (1, [])
    assert "cannot write pid_file" in err
