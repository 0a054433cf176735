"""The listening socket, and how to reach it."""

from __future__ import annotations

import os
import shlex
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polychoir.config import Settings
from polychoir.errors import SettingError

BACKLOG = 2_048
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


@contextmanager
def open_socket(settings: Settings) -> Iterator[socket.socket]:
    """Listen on the address of the settings; a Unix socket's file is removed at the end, if it is still ours.

    Raises SettingError if the address cannot be had.
    """
    if settings.uds is not None:
        listener = _unix_socket(settings.uds)
    else:
        listener = _tcp_socket(settings.host, settings.port)
    identity = settings.uds and _identity(settings.uds)
    try:
        yield listener
    finally:
        listener.close()
        if settings.uds is not None and _identity(settings.uds) == identity:
            settings.uds.unlink(missing_ok=True)


def _tcp_socket(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise SettingError(f"cannot listen on host {host!r}: {error}", param="host") from error
    try:
        return socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SettingError(f"cannot listen on {host} port {port}: {reason}", param="port") from error


def _unix_socket(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            if _answers(path):
                raise OSError("a server does so already")
            path.unlink()  # left by a process that did not end well
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise SettingError(f"cannot listen on {path}: {error.strerror or error}", param="uds") from error
    return listener


def _answers(path: Path) -> bool:
    """Whether somebody listens on a Unix socket; one whose queue is full is alive, too."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.setblocking(False)
        try:
            caller.connect(str(path))
        except BlockingIOError:
            return True
        except ConnectionRefusedError:
            return False
    return True


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file is at this path; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def base_url(settings: Settings, listener: socket.socket) -> str:
    """The address to give to a client on this machine."""
    scheme = "http" if settings.ssl_certfile is None else "https"
    if settings.uds is not None:
        return f"{scheme}://localhost"
    host = _ANY.get(settings.host, settings.host)
    port = listener.getsockname()[1]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def curl_line(settings: Settings, listener: socket.socket) -> str:
    """A command that speaks."""
    words = ["curl", f"{base_url(settings, listener)}/v1/audio/speech"]
    if settings.uds is not None:
        words += ["--unix-socket", str(settings.uds)]
    words += ["-H", "Content-Type: application/json"]
    line = shlex.join([*words, "-d", '{"input": "Hello from polychoir."}', "-o", "hello.mp3"])
    if settings.api_key is not None:  # the shell fills it in: the key itself is not for screens
        line += ' -H "Authorization: Bearer $POLYCHOIR_API_KEY"'
    return line
