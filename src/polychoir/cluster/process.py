"""Starting a worker's process, and the socket between it and its parent.

Where there are Unix sockets the worker inherits one half of a pair: it has no name, so nobody else can
connect and nothing is left behind. Elsewhere it connects to a port on the loopback interface and shows a
token that was made for it.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from polychoir.errors import InternalError

CONNECT_S = 60.0
TOKEN = "POLYCHOIR_WORKER_TOKEN"
TOKEN_CHARS = 32
HAS_PAIRS = hasattr(socket, "AF_UNIX") and os.name == "posix"

_COMMAND = (sys.executable, "-P", "-m", "polychoir.cluster.worker")
"""-P: a file in the working directory must not stand in for a module."""


class WorkerProcess:
    """A process in a session of its own. `ended` is its exit code, negative for a signal."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = loop.create_future()
        self._process = process
        # A thread, since not every event loop can wait for a child, nor every thread that runs one.
        threading.Thread(target=self._wait, args=(loop,), name="polychoir-reaper", daemon=True).start()

    def kill(self) -> None:
        """End it at once, with the compilers it may have started."""
        if self._process.poll() is not None:
            return
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        else:
            self._process.kill()

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        code = self._process.wait()
        try:
            loop.call_soon_threadsafe(self._tell, code)
        except RuntimeError:  # the loop has been closed: nobody is left to tell
            if not loop.is_closed():
                raise

    def _tell(self, code: int) -> None:
        if not self.ended.done():
            self.ended.set_result(code)


async def start_worker(
    environment: Mapping[str, str], *, pairs: bool = HAS_PAIRS
) -> tuple[WorkerProcess, socket.socket]:
    """A new worker and the parent's end of its socket. environment: added to this process's own.

    Raises InternalError if it cannot be started or does not connect.
    """
    try:
        return _with_pair(environment) if pairs else await _with_port(environment)
    except OSError as error:
        raise InternalError(f"a worker process cannot be started: {error}") from error


def take_socket(fd: int | None, port: int | None) -> socket.socket:
    """The worker's end, from its command line."""
    if fd is not None:
        return socket.socket(fileno=fd)
    connection = socket.create_connection(("127.0.0.1", port or 0), CONNECT_S)
    connection.sendall(os.environ.pop(TOKEN).encode())
    return connection


def _with_pair(environment: Mapping[str, str]) -> tuple[WorkerProcess, socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = _start(("--fd", str(theirs.fileno())), environment, (theirs.fileno(),))
    return WorkerProcess(process), ours


async def _with_port(environment: Mapping[str, str]) -> tuple[WorkerProcess, socket.socket]:
    token = secrets.token_hex(TOKEN_CHARS // 2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        process = WorkerProcess(_start(("--port", port), {**environment, TOKEN: token}))
        try:
            return process, await asyncio.to_thread(_accept, listener, token)
        except OSError:
            process.kill()
            raise


def _accept(listener: socket.socket, token: str) -> socket.socket:
    """The first connection that knows the token."""
    deadline = time.monotonic() + CONNECT_S
    while True:
        listener.settimeout(max(deadline - time.monotonic(), 0.001))
        connection, _ = listener.accept()
        connection.settimeout(1.0)
        try:
            shown = connection.recv(TOKEN_CHARS, socket.MSG_WAITALL)
        except OSError:
            shown = b""
        if hmac.compare_digest(shown, token.encode()):
            return connection
        connection.close()


def _start(
    arguments: tuple[str, ...], environment: Mapping[str, str], fds: tuple[int, ...] = ()
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        (*_COMMAND, *arguments),
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=2,  # what a library prints is no answer, and stdout may be where ours go
        pass_fds=fds,
        start_new_session=True,
    )
