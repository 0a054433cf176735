"""Peers that never come to an end: heads, bodies and trailers over a real port, and answers left unread."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from polychoir.server import body, wire
from polychoir.server.wire import MAX_HEAD_BYTES, Wire
from support.serving import PATIENCE_S, make_app, wait_until

SPEECH = b"POST /v1/audio/speech HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"


@contextmanager
def wired(app: Any, lifespan: str = "on") -> Iterator[int]:
    """The app behind our protocol; gives the port."""
    config = uvicorn.Config(app, port=0, log_level="critical", http=Wire, lifespan=lifespan)  # type: ignore[arg-type]
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)


@pytest.fixture
def app(tmp_path: Path) -> Any:
    return make_app(tmp_path)


@pytest.fixture
def port(app: Any) -> Iterator[int]:
    with wired(app) as port:
        wait_until(lambda: app.state.house.door.state == "ready")
        yield port


def called(port: int) -> socket.socket:
    caller = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    caller.settimeout(PATIENCE_S)
    return caller


def all_of(caller: socket.socket) -> bytes:
    """Until the other side closes, one way or the other."""
    heard = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while part := caller.recv(65_536):
            heard += part
    return bytes(heard)


def pushed(caller: socket.socket, part: bytes, most: int) -> int:
    """Send over and over; the bytes that were taken before the connection was gone."""
    sent = 0
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while sent < most:
            sent += caller.send(part)
    return sent


# -- heads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "status"), [(MAX_HEAD_BYTES - 1_000, 200), (MAX_HEAD_BYTES + 1, 431)])
def test_a_large_head_is_refused_however_it_comes(port: int, size: int, status: int) -> None:
    head = b"GET /health/live HTTP/1.1\r\nconnection: close\r\nx-long: " + b"a" * size + b"\r\n\r\n"
    for slices in (1, 7):
        with called(port) as caller, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            step = len(head) // slices + 1
            for start in range(0, len(head), step):
                caller.sendall(head[start : start + step])
                time.sleep(0.01)
            assert all_of(caller).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    "opening",
    [
        b"GET / HTTP/1.1\r\nx-long: ",
        b"GET /",
        b"\r\n",
        SPEECH + b"transfer-encoding: chunked\r\n\r\n1;extension=",
        SPEECH + b"transfer-encoding: chunked\r\n\r\n0\r\nx-trailer: ",
    ],
    ids=["header", "address", "before", "chunk line", "trailer"],
)
def test_a_line_without_end_is_cut(port: int, opening: bytes) -> None:
    part = opening if opening == b"\r\n" else b"a"
    with called(port) as caller:
        caller.sendall(opening)
        # What has been taken lies mostly in the buffers of the two sockets.
        assert pushed(caller, part * (65_536 // len(part)), most=64 * 2**20) < 32 * 2**20
    with called(port) as caller:  # and the others are served
        caller.sendall(b"GET /health/live HTTP/1.1\r\nconnection: close\r\n\r\n")
        assert all_of(caller).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("opening", [b"", b"GET / HTTP/1.1\r\nx-slow: a", b"first"])
def test_a_head_that_stops_is_given_up(app: Any, monkeypatch: pytest.MonkeyPatch, opening: bytes) -> None:
    monkeypatch.setattr(wire, "HEAD_S", 0.3)
    with wired(app) as port, called(port) as caller:
        if opening == b"first":  # a whole request, and half of another
            caller.sendall(b"GET /health/live HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nx-slow: a")
            assert all_of(caller).startswith(b"HTTP/1.1 200 ")
        else:
            caller.sendall(opening)
            assert all_of(caller) == b""


def test_a_kept_connection_may_be_idle(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HEAD_S", 0.2)
    with wired(app) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        for _ in range(2):
            connection.request("GET", "/health/live")
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b'{"status":"live"}')
            time.sleep(0.5)
        connection.close()


def test_what_is_not_http_is_400(port: int) -> None:
    with called(port) as caller:
        caller.sendall(b"SING /aloud\r\n\r\n")
        assert all_of(caller).startswith(b"HTTP/1.1 400 ")


# -- bodies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("trickling", [False, True], ids=["stops", "trickles"])
def test_a_body_that_does_not_arrive_gives_its_place_back(
    app: Any, port: int, monkeypatch: pytest.MonkeyPatch, trickling: bool
) -> None:
    monkeypatch.setattr(body, "BODY_S", 0.4)
    with called(port) as caller:
        caller.sendall(SPEECH + b"content-length: 1000\r\n\r\n{")
        wait_until(lambda: app.state.house.door.inside == 1)
        until = time.monotonic() + 0.8
        while trickling and time.monotonic() < until:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                caller.sendall(b" ")
            time.sleep(0.05)
        head, _, content = all_of(caller).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in head.lower()
    error = json.loads(content)["error"]
    assert (error["code"], error["type"]) == ("invalid_value", "invalid_request_error")
    assert error["message"].startswith("The body did not arrive: ")
    assert app.state.house.door.inside == 0


def test_a_slow_body_that_keeps_coming_is_waited_for(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_S", 0.3)
    monkeypatch.setattr(body, "MIN_BYTES_PER_S", 50)
    content = json.dumps({"input": "Slowly.", "response_format": "wav"}).encode() + b" " * 100
    with called(port) as caller:
        caller.sendall(SPEECH + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(content))
        for start in range(0, len(content), 15):  # 150 bytes a second: 1 s in all
            caller.sendall(content[start : start + 15])
            time.sleep(0.1)
        assert all_of(caller).startswith(b"HTTP/1.1 200 ")


# -- answers ---------------------------------------------------------------------------------------


async def endless(scope: Any, receive: Any, send: Any) -> None:
    """An answer larger than what two sockets can buffer."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"audio/pcm")]})
    for left in reversed(range(1_024)):
        await send({"type": "http.response.body", "body": bytes(65_536), "more_body": left > 0})


@pytest.mark.parametrize("unread_s", [0.3, 30.0], ids=["never", "late"])
def test_an_answer_nobody_reads_is_dropped(monkeypatch: pytest.MonkeyPatch, unread_s: float) -> None:
    monkeypatch.setattr(wire, "UNREAD_S", unread_s)
    with wired(endless, lifespan="off") as port, called(port) as caller:
        caller.sendall(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")
        time.sleep(1.0)
        whole = len(all_of(caller)) > 1_024 * 65_536
    assert whole == (unread_s > 1.0)
