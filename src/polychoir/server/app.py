"""The app: routes, what surrounds them, and the engines' life."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NoReturn

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse

from polychoir import __version__
from polychoir.config import Settings
from polychoir.pipeline import Speaker
from polychoir.server import health, lists, speech
from polychoir.server.headers import EXPOSED
from polychoir.server.house import House, build_house
from polychoir.server.middleware import BodyLimit, Boundary, HeadAsGet, RequestId

ROUTERS = (speech.router, lists.router, health.router)
STOP_S = 10.0
"""How long the end waits for an engine; one that is still loading is left to end with the process."""

LOCAL_ORIGINS = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"


def create_app(speakers: Mapping[str, Speaker], settings: Settings) -> FastAPI:
    """An app that starts these speakers' engines with its lifespan and stops them at its end."""
    house = build_house(speakers, settings)
    app = FastAPI(
        title="polychoir",
        version=__version__,
        redirect_slashes=False,  # a wrong path is answered with the right one, see Boundary
        redoc_url=None,
        lifespan=_lifespan,
        middleware=_layers(settings),
        exception_handlers={HTTPException: _reraise, RequestValidationError: _reraise},
    )
    app.state.house = house
    for router in ROUTERS:
        app.include_router(router)
    app.add_api_route("/", index, include_in_schema=False)
    return app


def _layers(settings: Settings) -> list[Middleware]:
    """Outermost first. CORS is outside the boundary: a page must be able to read errors, too."""
    paths = frozenset(str(getattr(route, "path", "")) for router in ROUTERS for route in router.routes)
    return [
        Middleware(RequestId),
        Middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_origin_regex=LOCAL_ORIGINS,
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],
            expose_headers=EXPOSED,
        ),
        Middleware(Boundary, paths=paths),
        Middleware(BodyLimit),
        Middleware(HeadAsGet),
    ]


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Loading goes on in the engines' own threads: the port is open before the models are warm."""
    house: House = app.state.house
    for speaker in house.speakers.values():
        speaker.engine.start()
    yield
    house.door.draining = True
    for speaker in house.speakers.values():
        await speaker.engine.aclose(timeout_s=STOP_S)
    house.encoding.shutdown(wait=False, cancel_futures=True)


async def _reraise(request: Request, error: Exception) -> NoReturn:
    """The framework's own errors are answered by the boundary, like ours."""
    raise error


async def index() -> JSONResponse:
    """What this is and where to go."""
    return JSONResponse(
        {
            "name": "polychoir",
            "version": __version__,
            "speech": "/v1/audio/speech",
            "models": "/v1/models",
            "voices": "/v1/audio/voices",
            "health": "/health",
            "metrics": "/metrics",
            "docs": "/docs",
        }
    )
