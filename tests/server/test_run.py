"""The whole process, as a user starts and stops it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from polychoir.config import Settings
from polychoir.errors import ModelLoadError, SettingError
from polychoir.server.listen import base_url, curl_line, open_socket
from polychoir.server.run import HouseServer
from support.serving import PATIENCE_S, make_app, speaker_of, wait_until


@dataclass
class Process:
    """A server process; its output is read as it comes."""

    process: subprocess.Popen[str]
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        line = next(line for line in self.out if "ready at" in line)
        return line.rpartition(" ")[2].strip()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@contextmanager
def started(tmp: Path, *flags: str) -> Iterator[Process]:
    command = [sys.executable, "-m", "polychoir", "serve", "--data-dir", str(tmp), *flags]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp
    ) as process:
        running = Process(process)
        readers = [
            threading.Thread(target=lambda: running.out.extend(process.stdout or ())),
            threading.Thread(target=lambda: running.err.extend(process.stderr or ())),
        ]
        for reader in readers:
            reader.start()
        try:
            yield running
        finally:
            if process.poll() is None:
                process.kill()
            for reader in readers:
                reader.join(PATIENCE_S)


def speak(url: str, text: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/audio/speech", json={"input": text, **fields}, timeout=PATIENCE_S)


def test_a_server_from_start_to_drained_stop(tmp_path: Path) -> None:
    with started(tmp_path, "fake", "--port", "0", "--fake-step-ms", "20") as server:
        wait_until(lambda: any("curl" in line for line in server.out))
        assert speak(server.url, "Private words.").status_code == 200
        answers: list[httpx.Response] = []
        inside = threading.Thread(target=lambda: answers.append(speak(server.url, "Inside.", num_step=64)))
        inside.start()
        wait_until(lambda: httpx.get(f"{server.url}/health").json()["requests_inside"] == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{server.url}/health/ready").json()["status"] == "draining")
        refused = speak(server.url, "Too late.")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        inside.join(PATIENCE_S)
        assert answers[0].status_code == 200
        assert server.process.wait(PATIENCE_S) == 0
    requests = [json.loads(line) for line in server.err if '"request"' in line]
    assert [line["status"] for line in requests if line["method"] == "POST"] == [200, 503, 200]
    assert not any("Private" in line for line in server.err)
    assert not any("Traceback" in line for line in server.err)


def test_the_drain_has_an_end(tmp_path: Path) -> None:
    flags = ("fake", "--port", "0", "--fake-step-ms", "200", "--drain-timeout", "0.3")
    with started(tmp_path, *flags) as server:
        wait_until(lambda: any("curl" in line for line in server.out))
        answers: list[httpx.Response] = []
        inside = threading.Thread(target=lambda: answers.append(speak(server.url, "Far.", num_step=128)))
        inside.start()
        wait_until(lambda: httpx.get(f"{server.url}/health").json()["requests_inside"] == 1)
        asked = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - asked < 5  # the request alone would have taken 26 s
        inside.join(PATIENCE_S)
        assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (503, "draining")


def test_texts_are_logged_only_when_asked(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    flags = ("fake", "--port", "0", "--log-requests", "--log-file", str(log))
    with started(tmp_path, *flags) as server:
        wait_until(lambda: any("curl" in line for line in server.out))
        speak(server.url, "Words for the log.")
        assert server.stop() == 0
    assert "Words for the log." in log.read_text(encoding="utf-8")


def test_a_taken_port_and_an_unknown_model_are_one_line_and_code_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for flags, word in ((("fake", "--port", port), port), (("no-such-model",), "no-such-model")):
            with started(tmp_path, *flags) as server:
                assert server.process.wait(PATIENCE_S) == 1
            assert len(server.err) == 1, server.err
            assert word in server.err[0]


def test_a_model_that_fails_to_load_ends_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app(tmp_path)

    def torn(wake: Any) -> Any:
        raise ModelLoadError("the weights are torn")

    monkeypatch.setattr(speaker_of(app).model, "load", torn)
    config = uvicorn.Config(app, log_level="error")
    server = HouseServer(config, app.state.house.door, drain_s=1.0, on_ready=lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
        thread.start()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert isinstance(server.failure, ModelLoadError)
    assert server.failure.message == "the weights are torn"


def test_the_address_shown_is_one_that_works(tmp_path: Path) -> None:
    with open_socket(Settings(data_dir=tmp_path, host="0.0.0.0", port=0)) as listener:
        port = listener.getsockname()[1]
        settings = Settings(data_dir=tmp_path, host="0.0.0.0", port=0, api_key="hidden")
        assert base_url(settings, listener) == f"http://127.0.0.1:{port}"
        assert "hidden" not in curl_line(settings, listener)
        assert "Authorization" in curl_line(settings, listener)


def test_a_unix_socket_is_replaced_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    settings = Settings(data_dir=tmp_path, uds=path)
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    with open_socket(settings) as listener:
        assert path.is_socket()
        assert f"--unix-socket {path}" in curl_line(settings, listener)
    assert not path.exists()
    path.write_text("not a socket")
    with pytest.raises(SettingError) as caught, open_socket(settings):
        pass
    assert caught.value.param == "uds"
    assert path.read_text() == "not a socket"


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7", "x" * 70])
def test_a_host_that_is_not_here_is_named(tmp_path: Path, host: str) -> None:
    with pytest.raises(SettingError) as caught, open_socket(Settings(data_dir=tmp_path, host=host, port=0)):
        pass
    assert caught.value.param in ("host", "port")


def test_a_unix_socket_that_answers_is_not_taken(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, uds=tmp_path / "s")
    with open_socket(settings):
        before = (tmp_path / "s").stat().st_ino
        for _ in range(2):
            with pytest.raises(SettingError) as caught, open_socket(settings):
                pass
            assert caught.value.param == "uds"
        assert (tmp_path / "s").stat().st_ino == before
    assert not (tmp_path / "s").exists()


def test_a_unix_socket_of_somebody_else_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with open_socket(Settings(data_dir=tmp_path, uds=path)):
        path.rename(tmp_path / "mine")  # keeps its inode in use
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.is_socket()


def test_a_reader_who_has_seen_enough_ends_nothing(tmp_path: Path) -> None:
    """As `polychoir serve fake | head -1` does: the later lines have nowhere to go."""
    command = [sys.executable, "-m", "polychoir", "serve", "--data-dir", str(tmp_path), "fake", "--port", "0"]
    log = tmp_path / "server.log"
    with (
        log.open("w") as err,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True, cwd=tmp_path) as process,
    ):
        try:
            if process.stdout is None:
                raise AssertionError("a pipe was asked for")
            url = process.stdout.readline().split()[1]
            process.stdout.close()
            wait_until(lambda: answers(f"{url}/health/ready"))
            time.sleep(0.3)  # the announcement comes just after
            assert speak(url, "Still here.").status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
    assert "Traceback" not in log.read_text()
    assert "BrokenPipe" not in log.read_text()


def answers(address: str) -> bool:
    try:
        return httpx.get(address).status_code == 200
    except httpx.TransportError:
        return False


def test_the_process_bounds_heads(tmp_path: Path) -> None:
    with started(tmp_path, "fake", "--port", "0") as server:
        wait_until(lambda: any("curl" in line for line in server.out))
        assert httpx.get(f"{server.url}/health", headers={"x-long": "a" * 70_000}).status_code == 431
        assert server.stop() == 0
