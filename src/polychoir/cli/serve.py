"""`polychoir serve`: settings from every source, then the server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from polychoir.cli.flags import field_flags, given, hidden_flags, with_flags
from polychoir.config import Settings, load_settings
from polychoir.config.legacy import MEANINGLESS
from polychoir.config.unbuilt import UNBUILT
from polychoir.errors import SettingError

ConfigFlag = Annotated[
    Path | None,
    typer.Option(help="Settings file [polychoir.toml here, if there is one].", show_default=False),
]


@with_flags(
    *field_flags(Settings, notes=dict.fromkeys(UNBUILT, " (not built yet)")), *hidden_flags(MEANINGLESS)
)
def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Models to serve, as --model.", show_default=False),
    ] = None,
    config: ConfigFlag = None,
    **flags: Any,
) -> None:
    """Serve models over HTTP.

    Every flag is also an environment name (POLYCHOIR_PORT) and a key in polychoir.toml (port).
    """
    flags["model"] = [*(models or ()), *(flags["model"] or ())]
    settings = read_settings(given(flags), config)
    from polychoir.server.run import serve as run_server

    with _pid_file(settings.pid_file):
        run_server(settings)


def read_settings(flags: dict[str, Any], config: Path | None) -> Settings:
    """Settings from all sources; notices go to stderr."""
    loaded = load_settings(flags, config_file=config)
    for notice in loaded.notices:
        typer.echo(f"polychoir: {notice}", err=True)
    return loaded.settings


@contextmanager
def _pid_file(path: Path | None) -> Iterator[None]:
    """Hold our process id in `path`. A file left by a process that is still alive is not ours to take."""
    if path is None:
        yield
        return
    try:
        if path.exists() and _alive(path.read_text(encoding="ascii")):
            raise SettingError(f"pid_file {path} belongs to a running process", param="pid_file")
        path.write_text(f"{os.getpid()}\n", encoding="ascii")
    except (OSError, UnicodeError) as error:
        raise SettingError(f"cannot write pid_file {path}: {error}", param="pid_file") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _alive(written: str) -> bool:
    if sys.platform == "win32":  # where signal 0 is not a question but an interrupt
        return False
    try:
        os.kill(int(written), 0)
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return int(written) != os.getpid()
