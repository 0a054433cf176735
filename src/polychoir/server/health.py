"""Is it alive, is it ready, what is it doing: health routes and the metrics page."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from polychoir.engine.engine import LOADING_RETRY_S
from polychoir.pipeline import Speaker
from polychoir.server.errors import retry_headers
from polychoir.server.house import House, house_of

router = APIRouter(tags=["health"])


@router.get("/health/live")
async def live(request: Request) -> JSONResponse:
    """200 while the process is worth keeping; 503 once an engine has failed, which only a restart cures."""
    failed = house_of(request).door.state == "failed"
    return JSONResponse({"status": "failed" if failed else "live"}, 503 if failed else 200)


@router.get("/health/ready")
async def ready(request: Request) -> JSONResponse:
    """200 only while every model is warm and the server is not stopping."""
    house = house_of(request)
    models = {name: speaker.engine.status for name, speaker in house.speakers.items()}
    return _stated(house, {"models": models})


@router.get("/health")
async def health(request: Request) -> JSONResponse:
    """Readiness with the batching configuration and the engines' state."""
    house = house_of(request)
    models = {name: _engine(house, speaker) for name, speaker in house.speakers.items()}
    return _stated(house, {"requests_inside": house.door.inside, "models": models})


@router.get("/metrics", include_in_schema=False)
async def metrics(request: Request) -> Response:
    """Prometheus text format. Needs the key if there is one."""
    house = house_of(request)
    house.keys.check(request)
    return Response(house.metrics.render(), media_type=CONTENT_TYPE_LATEST)


def _stated(house: House, content: dict[str, Any]) -> JSONResponse:
    state = house.door.state
    if state == "ready":
        return JSONResponse({"status": state, "ready": True, **content})
    return JSONResponse({"status": state, "ready": False, **content}, 503, retry_headers(LOADING_RETRY_S))


def _engine(house: House, speaker: Speaker) -> dict[str, Any]:
    limits, stats = speaker.engine.limits, speaker.engine.stats()
    return {
        "status": speaker.engine.status,
        "kind": speaker.info.kind,
        "batching": {
            "enabled": house.settings.batch,
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "max_resident_seqs": limits.max_resident_seqs,
            "max_concurrent_plans": limits.max_concurrent_plans,
            "queue_limit": limits.queue_limit,
        },
        "state": {
            "waiting": stats.waiting,
            "running": stats.running,
            "plans_in_flight": stats.plans_in_flight,
            "step_tokens": stats.step_tokens,
            "batches_dispatched": stats.batches_dispatched,
            "avg_batch_size": round(stats.avg_batch_size, 3),
        },
    }
