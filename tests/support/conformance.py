"""Checks that any model must pass, through a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from polychoir.engine.engine import LocalEngine
from polychoir.engine.plan import limits_for
from polychoir.errors import UnspeakableText
from polychoir.models.base import Model
from polychoir.types import Samples, SpeechRequest, VoiceChoice

VOICE = VoiceChoice("auto")


def speech_request(text: str, **fields: object) -> SpeechRequest:
    return replace(SpeechRequest("req", text, seed=1), **fields)


async def speak(engine: LocalEngine, request: SpeechRequest, voice: VoiceChoice = VOICE) -> Samples:
    """All samples of a request, chunks in order."""
    prepared = engine.model.frontend.prepare(request, voice)
    assert prepared.rest is None and len(prepared.chunks) == prepared.total_chunks
    async with await engine.submit(prepared.chunks) as stream:
        sung = [audio async for audio in stream]
    return np.concatenate([audio.samples for audio in sorted(sung, key=lambda audio: audio.index)])


async def check_alone_equals_together(
    model: Model, texts: Sequence[str], *, tolerance: float, voice: VoiceChoice = VOICE
) -> None:
    """Each text alone, then all at once with seeds of their own: the same samples within `tolerance`."""
    engine = LocalEngine(model, limits_for(model.info))
    engine.start()
    await engine.wait_ready()
    try:
        requests = [speech_request(text, seed=100 + i) for i, text in enumerate(texts)]
        alone = [await speak(engine, request, voice) for request in requests]
        before = engine.stats()
        together = await asyncio.gather(*(speak(engine, request, voice) for request in requests))
        after = engine.stats()
        batches = after.batches_dispatched - before.batches_dispatched
        assert after.rows_dispatched - before.rows_dispatched > batches, "nothing ran together"
        for one, other in zip(alone, together, strict=True):
            assert len(one) == len(other) > 0
            assert np.abs(one - other).max() <= tolerance
    finally:
        await engine.aclose()


async def check_refusals(model: Model) -> None:
    """Text with nothing to say is refused by the frontend, before any work."""
    for text in ("", "...", "?!", "( ) [ ] { }", " \n\t "):
        with pytest.raises(UnspeakableText) as caught:
            model.frontend.prepare(speech_request(text), VOICE)
        assert caught.value.param == "input"
