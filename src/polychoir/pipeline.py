"""One request's way through the house, between the door and the encoder.

Desk (resolve the voice, prepare chunks), inbox (submit), booth (restore the order, stitch). The HTTP
server and the command line both speak through here, so both give the same samples.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

from polychoir.audio.stitch import Stitcher
from polychoir.engine.engine import ChunkStream, Engine
from polychoir.errors import InternalError, InvalidRequest, TextTooLong, UnspeakableText
from polychoir.fit import fit
from polychoir.lanes import Lanes
from polychoir.models.base import Model
from polychoir.text import is_speakable
from polychoir.types import (
    INSTRUCTIONS_IGNORED,
    OUTPUT_SAMPLE_RATE,
    Chunk,
    ChunkAudio,
    ModelInfo,
    Prepared,
    Samples,
    SpeechRequest,
    Terms,
    VoiceChoice,
)
from polychoir.voices import LOCK_PHRASE, STOCK_VOICES, StockVoice, VoiceStore, resolve

MAX_AUDIO_S = 7_200.0
"""Longest answer, by the frontend's estimate: 100,000 characters of prose at their natural pace are less."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What the desk made of a request: who speaks, what is run, and the seconds it took."""

    request: SpeechRequest
    voice: VoiceChoice
    prepared: Prepared
    prepare_s: float
    ignored: tuple[str, ...] = ()
    """Warning codes for what the model's card does not allow."""


class Speaker:
    """A served model: its engine, its voices, and the threads its text side runs on."""

    def __init__(
        self,
        model: Model,
        engine: Engine,
        store: VoiceStore,
        lanes: Lanes,
        *,
        strict_instructions: bool = False,
    ) -> None:
        self.model = model
        self.engine = engine
        self.store = store
        self._lanes = lanes
        self._strict_instructions = strict_instructions
        self._locking = asyncio.Lock()

    @property
    def info(self) -> ModelInfo:
        return self.model.info

    async def speak(self, request: SpeechRequest) -> Speech:
        """Prepare a request and hand its chunks to the engine, which has let them in on return.

        Raises InvalidRequest (all of its kinds), Overloaded, Unavailable, InternalError.
        """
        started = time.perf_counter()
        request, ignored = fit(request, self.info, strict=self._strict_instructions)
        if not is_speakable(request.text):  # a first look, so that it need not queue to be refused
            raise UnspeakableText("there is nothing to say in this text")
        voice = await self._voice(request)
        prepared = await self._prepare(request, voice)
        if self._strict_instructions and INSTRUCTIONS_IGNORED in prepared.warnings:
            raise InvalidRequest("this model cannot honour these instructions", param="instructions")
        desk = Desk(request, voice, prepared, time.perf_counter() - started, ignored)
        stream = await self.engine.submit(prepared.chunks, _terms(desk, desk.prepare_s))
        return Speech(self, desk, stream)

    async def rest_of(self, desk: Desk, first: ChunkAudio) -> ChunkStream:
        """The chunks that needed the first one's audio; let in without being asked for admission again."""
        if desk.prepared.rest is None:
            raise InternalError("this is a bug: nothing waits for the first chunk")
        chunks = await self._lanes.run(len(desk.request.text), partial(desk.prepared.rest, first))
        took = desk.prepare_s + first.queue_s + first.run_s + first.decode_s
        terms = replace(_terms(desk, took), more=True, heard_s=len(first.samples) / first.sample_rate)
        return await self.engine.submit(chunks, terms)

    async def _prepare(self, request: SpeechRequest, voice: VoiceChoice) -> Prepared:
        work = partial(self.model.frontend.prepare, request, voice)
        prepared = await self._lanes.run(len(request.text), work)
        if not prepared.chunks:
            raise InternalError(f"this is a bug in the model {self.info.name}: a text became no chunks")
        _check_length(prepared.chunks, prepared.total_chunks)
        return prepared

    async def _voice(self, request: SpeechRequest) -> VoiceChoice:
        """Whose voice it is. The first use of a stock name makes its speaker and keeps it."""
        if request.reference is not None:
            return _cloned(request)
        voice = resolve(request.voice, self.info, self.store)
        if voice.id not in STOCK_VOICES or voice.instruct is None:
            return voice
        async with self._locking:  # whoever waited here finds it locked
            voice = resolve(request.voice, self.info, self.store)
            if voice.instruct is not None:
                await self._lock(STOCK_VOICES[voice.id], voice)
        return resolve(request.voice, self.info, self.store)

    async def _lock(self, stock: StockVoice, voice: VoiceChoice) -> None:
        """Say the phrase with the name's own design and seed: its codes are the speaker from now on."""
        request = SpeechRequest(f"lock-{stock.name}", LOCK_PHRASE, stock.seed, stock.name, language="en")
        prepared = await self._prepare(request, voice)
        async with await self.engine.submit(prepared.chunks) as stream:
            async for audio in stream:
                if audio.codes is None:
                    raise InternalError(f"{self.info.name} designs voices but gives no codes to keep")
                self.store.put(self.info.name, stock.name, replace(audio.codes, text=LOCK_PHRASE, rms=None))


def _terms(desk: Desk, spent_s: float) -> Terms:
    """What the engine is asked for, with what is left of the request's time."""
    request = desk.request
    left = None if request.timeout_s is None else max(0.0, request.timeout_s - spent_s)
    return Terms(request.tier, request.tenant, left)


def _check_length(chunks: Sequence[Chunk], total: int) -> None:
    """Chunks that wait for the first one's audio are taken to be like it."""
    seconds = sum(chunk.estimated_s for chunk in chunks) * total / len(chunks)
    if seconds > MAX_AUDIO_S:
        raise TextTooLong(
            f"the text would take about {seconds:.0f} s to say; an answer has at most {MAX_AUDIO_S:.0f} s"
        )


def _cloned(request: SpeechRequest) -> VoiceChoice:
    if request.voice.casefold() not in {"auto", "default"}:
        raise InvalidRequest("ref_audio is the voice: leave voice out, or send 'auto'", param="voice")
    return VoiceChoice("clone")


class Speech:
    """Speech being made. Iterate once for its pieces in order, then read `report`.

    Pieces are float32 mono at `sample_rate`. Leaving `async with` early takes its rows out of the engine.
    """

    sample_rate = OUTPUT_SAMPLE_RATE

    def __init__(self, speaker: Speaker, desk: Desk, stream: ChunkStream) -> None:
        self.voice = desk.voice.id
        self.seed = desk.request.seed
        self.total_chunks = desk.prepared.total_chunks
        self.warnings = tuple(dict.fromkeys((*desk.ignored, *desk.voice.warnings, *desk.prepared.warnings)))
        self.prepare_s = desk.prepare_s
        self._speaker = speaker
        self._desk = desk
        self._stream = stream
        self._facts: list[ChunkAudio] = []  # without their samples: an answer is not held twice
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
        stitcher = Stitcher(self.total_chunks, self._speaker.info.sample_rate, self.sample_rate)
        async for audio in self._chunks():
            self._facts.append(replace(audio, samples=audio.samples[:0].copy(), codes=None))
            for piece in stitcher.add(audio.index, audio.samples):
                self._samples += len(piece)
                yield piece

    async def _chunks(self) -> AsyncIterator[ChunkAudio]:
        """Chunks as they end; those that wait for the first one follow it."""
        async for audio in self._stream:
            yield audio
        if self._desk.prepared.rest is None:
            return
        first_took = audio.queue_s + audio.run_s + audio.decode_s
        self._stream = await self._speaker.rest_of(self._desk, audio)
        async for audio in self._stream:
            yield replace(audio, queue_s=first_took + audio.queue_s)

    @property
    def report(self) -> SpeechReport:
        """What is known once the last piece is out."""
        return report(self._facts, self._samples / self.sample_rate)


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
    """Sum up chunks whose `queue_s` counts from the request's arrival."""
    started = min((audio.queue_s for audio in sung), default=0.0)
    ended = max((audio.queue_s + audio.run_s for audio in sung), default=0.0)
    return SpeechReport(
        duration_s=duration_s,
        steps=sum(audio.steps for audio in sung),
        queue_s=started,
        run_s=ended - started,
        decode_s=sum(audio.decode_s for audio in sung),
    )
