"""`polychoir serve`: open the port at once, load behind it, say when it is ready, drain at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from types import FrameType

import uvicorn
from fastapi import FastAPI

from polychoir.assembly import build_speakers
from polychoir.config import Settings
from polychoir.errors import ModelLoadError, PolychoirError, SettingError
from polychoir.server.announce import announce
from polychoir.server.app import create_app
from polychoir.server.door import Door
from polychoir.server.listen import base_url, curl_line, open_socket
from polychoir.server.logs import configure_logging

LAST_WORDS_S = 2
"""After the drain: how long answers that are already being written may take."""

KEEP_ALIVE_S = 75
"""Above the idle time of common clients, so that it is they who close first."""


WIRE = "polychoir.server.wire:Wire"
"""Needs httptools, which not every Python has; h11, instead of it, bounds a head by itself."""


def serve(settings: Settings) -> None:
    """Run until told to stop.

    Raises SettingError for an address that cannot be had, ModelLoadError for a model that does not load.
    """
    configure_logging(settings.log_file)
    speakers = build_speakers(settings)
    app = create_app(speakers, settings)
    config = _config(app, settings)
    with open_socket(settings) as listener:
        address, command = base_url(settings, listener), curl_line(settings, listener)

        def ready() -> None:
            announce(f"polychoir: ready at {address}\n{command}")

        server = HouseServer(config, app.state.house.door, settings.drain_timeout, ready)
        announce(f"polychoir: {address} is open, loading {', '.join(speakers)}")
        server.run(sockets=[listener])
    if server.failure is not None:
        raise server.failure


def _config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=WIRE if find_spec("httptools") else "h11",
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LAST_WORDS_S,
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise SettingError(f"cannot use the certificate: {error}", param="ssl_certfile") from error
    return config


class HouseServer(uvicorn.Server):
    """uvicorn with a door: says when the house is ready, leaves if it cannot be, drains before it closes."""

    def __init__(
        self, config: uvicorn.Config, door: Door, drain_s: float, on_ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self.failure: PolychoirError | None = None
        self._door = door
        self._drain_s = drain_s
        self._on_ready = on_ready
        self._ready = False
        self._signals = 0
        self._drain_until: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: leave at once. Runs between any two instructions, so it only notes."""
        self._signals += 1
        if self._signals > 1:
            self.should_exit = self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second, in the event loop."""
        if self._signals:
            self._drain()
        elif not self._ready:
            self._look()
        return await super().on_tick(counter)

    def _drain(self) -> None:
        """Readiness is off and newcomers get 503 while those inside are served to the end, or the limit."""
        if self._drain_until is None:
            self._drain_until = time.monotonic() + self._drain_s
            self._door.draining = True
        if time.monotonic() >= self._drain_until:
            self._door.cut()
            self.should_exit = True
        elif self._door.inside == 0:
            self.should_exit = True

    def _look(self) -> None:
        state = self._door.state
        if state == "ready":
            self._ready = True
            self._on_ready()
        elif state == "failed":
            self.failure = self._why()
            self.should_exit = True

    def _why(self) -> PolychoirError:
        failures = (speaker.engine.failure for speaker in self._door.speakers.values())
        first = next(failure for failure in failures if failure is not None)
        if isinstance(first, PolychoirError):
            return first
        return ModelLoadError(f"the model did not load: {first!r}")
