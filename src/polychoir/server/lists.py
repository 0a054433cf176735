"""What is served: models and voices, in the shapes that OpenAI's SDK and Open WebUI read."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse

from polychoir.pipeline import Speaker
from polychoir.server.house import House, house_of
from polychoir.types import ModelInfo
from polychoir.voices import list_voices

OWNER = "polychoir"
_STARTED = int(time.time())  # OpenAI's `created`: when this server began to serve the model

router = APIRouter(tags=["lists"])


@router.get("/v1/models")
async def models(request: Request) -> JSONResponse:
    """Every served model, the default one first."""
    house = _listed(request)
    return JSONResponse({"object": "list", "data": [_card(name) for name in house.speakers]})


@router.get("/v1/models/{model_id:path}")
async def model(request: Request, model_id: str) -> JSONResponse:
    """One model. OpenAI's own names lead to the default model, as they do in a speech request."""
    speaker = _listed(request).door.find(model_id)
    return JSONResponse(_card(model_id) | {"root": speaker.info.name})


@router.get("/v1/audio/models")
async def audio_models(request: Request) -> JSONResponse:
    """What each model can be asked for."""
    house = _listed(request)
    return JSONResponse({"models": [_abilities(speaker.info) for speaker in house.speakers.values()]})


@router.get("/v1/audio/voices")
async def voices(request: Request, model: str | None = None) -> JSONResponse:
    """The voices of one model, or of all of them, each name once."""
    house = _listed(request)
    asked = house.speakers.values() if model is None else [house.door.find(model)]
    found: dict[str, dict[str, Any]] = {}
    for speaker in asked:
        for entry in _voices(speaker):
            found.setdefault(entry["id"], entry)
    return JSONResponse({"voices": list(found.values())})


def _listed(request: Request) -> House:
    house = house_of(request)
    house.keys.check_list(request)
    return house


def _card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": _STARTED, "owned_by": OWNER}


def _abilities(info: ModelInfo) -> dict[str, Any]:
    return {
        "id": info.name,
        "name": info.name,
        "kind": info.kind,
        "languages": list(info.languages),
        "fields": sorted(info.fields),
        "defaults": dict(info.defaults),
        "speed_range": list(info.speed_range),
        "license": info.license,
        "source": info.source,
    }


def _voices(speaker: Speaker) -> list[dict[str, Any]]:
    return [
        {**entry, "voice_id": entry["id"], "model": speaker.info.name}
        for entry in map(asdict, list_voices(speaker.info))
    ]
