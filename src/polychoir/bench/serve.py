"""Drives any OpenAI-compatible speech server over HTTP, ours or a peer's."""

from __future__ import annotations

import asyncio
import base64
import io
import math
import struct
import time
import wave
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from polychoir.bench.report import Outcome
from polychoir.bench.workloads import DESIGN, REFERENCE_S, REFERENCE_TEXT, Arrivals, Item
from polychoir.errors import SettingError

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

_RATE = 24_000
_TIMEOUT_S = 600.0
_WAV_HEADER = 44


@dataclass(frozen=True, slots=True)
class Target:
    """A server. plain: send only the fields that OpenAI has, for peers that know no others. max_in_flight: of
    this client, whatever the arrivals."""

    url: str
    model: str = "tts-1"
    voice: str = "auto"
    plain: bool = False
    api_key: str | None = None
    max_in_flight: int = 512


async def run_serve(
    target: Target, items: Sequence[Item], arrivals: Arrivals, *, seed: int = 1
) -> tuple[list[Outcome], float, dict[str, str]]:
    """Send every item; what became of each, the wall seconds, and the first message of each kind of error.

    Open loop: latency counts from when an item was due, not from when it could be sent. Raises SettingError
    if there is no HTTP client.
    """
    try:
        import aiohttp
    except ImportError as error:
        raise SettingError("bench serve needs aiohttp: pip install 'polychoir[bench]'") from error
    headers = {} if target.api_key is None else {"Authorization": f"Bearer {target.api_key}"}
    gate = asyncio.Semaphore(min(target.max_in_flight, arrivals.concurrency or target.max_in_flight))
    messages: dict[str, str] = {}
    if target.plain:  # a clone without its clip is speech, and is counted as that
        items = [replace(item, kind="speech") if item.kind == "clone" else item for item in items]
    bodies = [body_of(item, target) for item in items]
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
        headers=headers,
    ) as session:
        client = _Client(session, target.url.rstrip("/") + "/v1/audio/speech", gate, arrivals, messages)
        outcomes = await asyncio.gather(
            *(
                client.send(item, body, due)
                for item, body, due in zip(items, bodies, arrivals.times(items, seed), strict=True)
            )
        )
    return list(outcomes), time.perf_counter() - client.started, messages


@dataclass(frozen=True, slots=True)
class _Heard:
    """seconds of audio; the moments of the first byte and, of an answer sent as it is made, of the first
    audio."""

    seconds: float
    first_byte: float
    first_audio: float | None


class _Client:
    def __init__(
        self,
        session: ClientSession,
        url: str,
        gate: asyncio.Semaphore,
        arrivals: Arrivals,
        messages: dict[str, str],
    ) -> None:
        self.started = time.perf_counter()
        self._session = session
        self._url = url
        self._gate = gate
        self._closed_loop = arrivals.is_closed_loop
        self._messages = messages

    async def send(self, item: Item, body: dict[str, Any], due: float) -> Outcome:
        await asyncio.sleep(max(0.0, due - self._now()))
        async with self._gate:
            if self._closed_loop:  # nothing is due before its turn
                due = self._now()
            heard = await self._speak(body)
        if isinstance(heard, str):
            return Outcome(item, due, self._now(), error=heard)
        return Outcome(item, due, self._now(), heard.seconds, heard.first_byte, heard.first_audio)

    async def _speak(self, body: dict[str, Any]) -> _Heard | str:
        """What was heard, or the kind of error."""
        from aiohttp import ClientError

        try:
            async with self._session.post(self._url, json=body) as answer:
                data = bytearray(await answer.content.readany())
                first_byte = self._now()
                while len(data) <= _WAV_HEADER and (more := await answer.content.readany()):
                    data += more
                first_audio = self._now() if _is_streamed(answer) else None
                data += await answer.content.read()
                seconds = wav_seconds(data)
                if answer.status == 200 and seconds > 0:
                    return _Heard(seconds, first_byte, first_audio)
                kind = "no wav" if answer.status == 200 else str(answer.status)
                message = data[:300].decode("utf-8", "replace")
        except (ClientError, TimeoutError) as error:
            kind, message = type(error).__name__, str(error)
        self._messages.setdefault(kind, message)
        return kind

    def _now(self) -> float:
        return time.perf_counter() - self.started


def _is_streamed(answer: ClientResponse) -> bool:
    """Whoever states a length has made all of it: the first byte of such an answer says nothing of audio."""
    return "Content-Length" not in answer.headers


def body_of(item: Item, target: Target) -> dict[str, Any]:
    """The JSON body of an item."""
    body: dict[str, Any] = {
        "model": target.model, "input": item.text, "voice": target.voice, "response_format": "wav",
    }  # fmt: skip
    if item.kind == "design":
        body["instructions"] = DESIGN
    if target.plain:
        return body
    body |= {"language": "en", "seed": item.seed, "duration": item.seconds}
    body |= {} if item.steps is None else {"num_step": item.steps}
    body |= {} if item.guidance is None else {"guidance_scale": item.guidance}
    if item.kind == "clone":
        body |= {"voice": "auto", "ref_audio": reference_clip(), "ref_text": REFERENCE_TEXT}
    return body


def wav_seconds(data: bytes | bytearray) -> float:
    """Seconds of a wav file by the bytes that came: a streamed header has no size. 0 of anything else."""
    if len(data) < _WAV_HEADER or data[:4] != b"RIFF" or data[8:16] != b"WAVEfmt ":
        return 0.0
    (bytes_per_second,) = struct.unpack_from("<I", data, 28)  # of any rate, width and number of channels
    return (len(data) - _WAV_HEADER) / bytes_per_second if bytes_per_second else 0.0


@cache
def reference_clip() -> str:
    """Five seconds of something like a voice, as a data URL."""
    samples = array("h")
    for n in range(REFERENCE_S * _RATE):
        t = n / _RATE
        loud = 0.6 + 0.4 * math.sin(2 * math.pi * 3 * t)
        samples.append(
            int(6_500 * loud * (math.sin(2 * math.pi * 140 * t) + 0.3 * math.sin(2 * math.pi * 420 * t)))
        )
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(_RATE)
        out.writeframes(samples.tobytes())
    return "data:audio/wav;base64," + base64.b64encode(file.getvalue()).decode()
