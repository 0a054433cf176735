"""One request's way through the house, between the door and the encoder.

Desk (resolve the voice, prepare chunks), inbox (submit), booth (restore the order, stitch). The HTTP
server and the command line both speak through here, so both give the same samples.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from dataclasses import dataclass
from types import TracebackType

from polychoir.audio.stitch import Stitcher
from polychoir.engine.engine import ChunkStream, Engine
from polychoir.errors import InvalidRequest
from polychoir.models.base import Model
from polychoir.types import (
    OUTPUT_SAMPLE_RATE,
    ChunkAudio,
    ModelInfo,
    Prepared,
    Samples,
    SpeechRequest,
    VoiceChoice,
)
from polychoir.voices import VoiceStore, resolve


class Speaker:
    """A served model: its engine, its voices, and the threads its text side runs on."""

    def __init__(
        self,
        model: Model,
        engine: Engine,
        store: VoiceStore,
        threads: Executor,
        *,
        strict_instructions: bool = False,
    ) -> None:
        self.model = model
        self.engine = engine
        self.store = store
        self._threads = threads
        self._strict_instructions = strict_instructions

    @property
    def info(self) -> ModelInfo:
        return self.model.info

    async def speak(self, request: SpeechRequest) -> Speech:
        """Prepare a request and hand its chunks to the engine, which has let them in on return.

        Raises InvalidRequest (all of its kinds), Overloaded, Unavailable, InternalError.
        """
        started = time.perf_counter()
        voice = resolve(request.voice, self.info, self.store)
        loop = asyncio.get_running_loop()
        prepared = await loop.run_in_executor(self._threads, self.model.frontend.prepare, request, voice)
        if self._strict_instructions and "instructions_ignored" in prepared.warnings:
            raise InvalidRequest("this model cannot honour these instructions", param="instructions")
        prepare_s = time.perf_counter() - started
        stream = await self.engine.submit(prepared.chunks, tier=request.tier)
        return Speech(self, request, voice, prepared, stream, prepare_s)

    async def rest_of(self, prepared: Prepared, first: ChunkAudio, request: SpeechRequest) -> ChunkStream:
        """The chunks that needed the first one's audio; let in without being asked for admission again."""
        if prepared.rest is None:
            raise ValueError("this is a bug: nothing waits for the first chunk")
        loop = asyncio.get_running_loop()
        chunks = await loop.run_in_executor(self._threads, prepared.rest, first)
        return await self.engine.submit(chunks, tier=request.tier, more=True)


class Speech:
    """Speech being made. Iterate once for its pieces in order, then read `report`.

    Pieces are float32 mono at `sample_rate`. Leaving `async with` early takes its rows out of the engine.
    """

    sample_rate = OUTPUT_SAMPLE_RATE

    def __init__(
        self,
        speaker: Speaker,
        request: SpeechRequest,
        voice: VoiceChoice,
        prepared: Prepared,
        stream: ChunkStream,
        prepare_s: float,
    ) -> None:
        self.voice = voice.id
        self.seed = request.seed
        self.total_chunks = prepared.total_chunks
        self.warnings = (*voice.warnings, *prepared.warnings)
        self.prepare_s = prepare_s
        self._speaker = speaker
        self._request = request
        self._prepared = prepared
        self._stream = stream
        self._sung: list[ChunkAudio] = []
        self._samples = 0

    async def __aenter__(self) -> Speech:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop: what is not made yet never will be."""
        self._stream.close()

    async def __aiter__(self) -> AsyncIterator[Samples]:
        stitcher = Stitcher(self.sample_rate)
        async for audio in self._chunks():
            self._sung.append(audio)
            for piece in stitcher.add(audio):
                self._samples += len(piece)
                yield piece
        for piece in stitcher.finish():
            self._samples += len(piece)
            yield piece

    async def _chunks(self) -> AsyncIterator[ChunkAudio]:
        """Chunks as they end; those that wait for the first one follow it."""
        async for audio in self._stream:
            if audio.index == 0 and self._prepared.rest is not None:
                self._stream = await self._speaker.rest_of(self._prepared, audio, self._request)
                yield audio
                break
            yield audio
        async for audio in self._stream:
            yield audio

    @property
    def report(self) -> SpeechReport:
        """What is known once the last piece is out."""
        return report(self._sung, self._samples / self.sample_rate)


@dataclass(frozen=True, slots=True)
class SpeechReport:
    """The late facts of a request, seconds unless said: what headers and the log tell.

    queue_s: until its first step. run_s: from then until its last one. decode_s: of all chunks together.
    steps: row-steps. retries: of content, before a chunk's first byte.
    """

    duration_s: float
    steps: int
    queue_s: float
    run_s: float
    decode_s: float
    retries: int = 0


def report(sung: list[ChunkAudio], duration_s: float) -> SpeechReport:
    """Sum up chunks that arrived together: each knows how long after that it started and ended."""
    started = min((audio.queue_s for audio in sung), default=0.0)
    ended = max((audio.queue_s + audio.run_s for audio in sung), default=0.0)
    return SpeechReport(
        duration_s=duration_s,
        steps=sum(audio.steps for audio in sung),
        queue_s=started,
        run_s=ended - started,
        decode_s=sum(audio.decode_s for audio in sung),
    )
