"""`POST /v1/audio/speech`: check, let in, sing, encode, answer. The answer is whole (buffered)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from polychoir.audio.encode import CONTENT_TYPES
from polychoir.errors import DeadlineExceeded
from polychoir.pipeline import Speaker, Speech
from polychoir.server.answer import PiecesResponse
from polychoir.server.body import read_speech_body
from polychoir.server.door import Place
from polychoir.server.errors import as_error, status_of
from polychoir.server.headers import report_headers, server_timing, speech_headers
from polychoir.server.house import House, house_of
from polychoir.server.metrics import NO_MODEL
from polychoir.server.middleware import ACCESS
from polychoir.server.mouth import Mouth
from polychoir.server.presence import until_gone
from polychoir.server.schemas import SpeechBody, check_unknown_fields
from polychoir.types import SpeechRequest

router = APIRouter(tags=["speech"])

_JSON_SCHEMA = {"application/json": {"schema": SpeechBody.model_json_schema()}}
_AUDIO = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in CONTENT_TYPES.values()}


@router.post(
    "/v1/audio/speech",
    response_class=Response,
    responses={200: {"content": _AUDIO, "description": "The audio, as one file."}},
    openapi_extra={"requestBody": {"required": True, "content": _JSON_SCHEMA}},
)
async def create_speech(request: Request) -> Response:
    """Turn text into speech."""
    house = house_of(request)
    visit = Visit(house, request, time.monotonic())
    try:
        house.keys.check(request)
        response = await visit.answer()
    except Exception as error:
        house.metrics.count(visit.model, status_of(as_error(error)))
        raise
    house.metrics.count(visit.model, response.status_code)
    return response


@dataclass(frozen=True, slots=True)
class Order:
    """What a body asks of which model, with the warnings that the door already has."""

    speaker: Speaker
    body: SpeechBody
    asked: SpeechRequest
    warnings: tuple[str, ...]


class Visit:
    """One request on its way through the house; `model` becomes a served name once it is known."""

    def __init__(self, house: House, request: Request, arrived: float) -> None:
        self.model = NO_MODEL
        self._house = house
        self._request = request
        self._arrived = arrived
        self._facts: dict[str, Any] = request.scope["state"][ACCESS]

    async def answer(self) -> Response:
        """Raises PolychoirError; when the time is up, wherever the request is then, DeadlineExceeded."""
        try:
            async with asyncio.timeout(self._house.settings.request_timeout_s) as deadline:
                with self._house.door.enter(deadline) as place:
                    order = await self._order(place)
                    self._house.door.check_open(order.speaker, order.asked.tier)
                    self._shorten(deadline, order.body.timeout)
                    return await until_gone(self._request.receive, self._sing(order))
        except TimeoutError:
            if self._house.door.draining:
                raise self._house.door.stopping() from None
            raise DeadlineExceeded("The request took longer than its timeout and was cut.") from None

    async def _order(self, place: Place) -> Order:
        settings = self._house.settings
        body = await read_speech_body(self._request, partial(self._house.door.hold, place))
        speaker = self._house.door.find(body.model)
        self.model = self._facts["model"] = speaker.info.name
        unknown = check_unknown_fields(body, strict=settings.strict_fields)
        asked = await _asked(body, self._request.scope["state"]["request_id"])
        most_s = settings.request_timeout_s
        asked = replace(asked, timeout_s=min(asked.timeout_s or most_s, most_s))
        self._facts["chars"] = len(asked.text)
        if settings.log_requests:
            self._facts["input"] = asked.text
        return Order(speaker, body, asked, unknown)

    async def _sing(self, order: Order) -> Response:
        body = order.body
        mouth = Mouth(self._house.encoding, body.response_format, body.sample_rate)
        async with await order.speaker.speak(order.asked) as speech:
            async for samples in speech:
                await mouth.feed(samples)
            pieces = await mouth.finish()
        self._observe(speech)
        headers = _headers(order, speech, mouth)
        return PiecesResponse(pieces, headers, CONTENT_TYPES[body.response_format])

    def _shorten(self, deadline: asyncio.Timeout, timeout: float | None) -> None:
        """A request's own timeout counts from its arrival and can only bring the deadline forward."""
        current = deadline.when()
        if timeout is None or current is None:
            return
        left = self._arrived + timeout - time.monotonic()
        deadline.reschedule(min(current, asyncio.get_running_loop().time() + left))

    def _observe(self, speech: Speech) -> None:
        metrics, report = self._house.metrics, speech.report
        took = time.monotonic() - self._arrived
        metrics.queue_s.labels(self.model).observe(report.queue_s)
        metrics.first_byte_s.labels(self.model).observe(took)  # the end as well, while answers are whole
        metrics.total_s.labels(self.model).observe(took)
        metrics.audio_s.labels(self.model).observe(report.duration_s)
        self._facts |= {
            "voice": speech.voice,
            "chunks": speech.total_chunks,
            "audio_s": round(report.duration_s, 3),
        }


async def _asked(body: SpeechBody, request_id: str) -> SpeechRequest:
    """A clip of megabytes is decoded beside the event loop."""
    if body.ref_audio is None:
        return body.to_request(request_id=request_id)
    return await asyncio.to_thread(body.to_request, request_id=request_id)


def _headers(order: Order, speech: Speech, mouth: Mouth) -> dict[str, str]:
    report = speech.report
    stages = {
        "queue": report.queue_s,
        "prepare": speech.prepare_s,
        "run": report.run_s,
        "decode": report.decode_s,
        "encode": mouth.encode_s,
    }
    return {
        **speech_headers(speech, order.speaker.info.name, mouth.sample_rate, order.warnings),
        **report_headers(report),
        **server_timing(stages),
    }
