"""Servers for tests: in this process through ASGI, or on a real port in a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from polychoir.assembly import build_speakers
from polychoir.config import Settings
from polychoir.pipeline import Speaker
from polychoir.server.app import create_app

PATIENCE_S = 20.0


def make_app(tmp: Path, **settings: Any) -> FastAPI:
    """An app of the fake model (quick: no pause in a step), unless the settings name another."""
    quick: dict[str, Any] = {}
    if "fake" in settings.setdefault("model", ("fake",)):
        quick = {"fake_step_ms": 0.0, "fake_us_per_token": 0.0}
    chosen = Settings(data_dir=tmp, **(quick | settings))
    return create_app(build_speakers(chosen), chosen)


def speaker_of(app: FastAPI, name: str = "fake") -> Speaker:
    speaker: Speaker = app.state.house.speakers[name]
    return speaker


@dataclass(frozen=True, slots=True)
class Served:
    """An app that is running in this process and a client of it."""

    app: FastAPI
    client: httpx.AsyncClient

    async def speak(self, text: str = "Hi there.", **fields: Any) -> httpx.Response:
        """A speech request; wav and a fixed seed unless said otherwise."""
        body = {"input": text, "response_format": "wav", "seed": 1, **fields}
        return await self.client.post("/v1/audio/speech", json=body)

    @property
    def speaker(self) -> Speaker:
        return next(iter(self.app.state.house.speakers.values()))


@asynccontextmanager
async def served(app: FastAPI, *, ready: bool = True) -> AsyncIterator[Served]:
    """Run the app's lifespan here. ready: wait until its models are warm."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://polychoir.test") as client,
    ):
        if ready:
            for speaker in app.state.house.speakers.values():
                await speaker.engine.wait_ready()
        yield Served(app, client)


@contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """The app behind a real port, in a thread; gives its base URL once its models are warm."""
    config = uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started and app.state.house.door.state == "ready")
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)


def wait_until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Look until it is so; an AssertionError says that it never was."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"still not so after {patience_s} s")
        time.sleep(0.005)


async def until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """`wait_until` without holding up the event loop."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"still not so after {patience_s} s")
        await asyncio.sleep(0.002)
