"""The embedded voice behind the server: the answers that a first user gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.listening import duration_of, samples_of
from support.serving import Served, make_app, served

pytest.importorskip("hibari", reason="the embedded voice is not installed")

SENTENCES = (
    "The kettle is on the stove.",
    "Seven grey geese crossed the river at dawn.",
    "Please read the second page aloud.",
)


@pytest.fixture(scope="module", params=[True, False], ids=["batch", "no-batch"])
def either_app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    return tmp_path_factory.mktemp("data"), request.param


@pytest.fixture
async def voice(either_app: tuple[Path, bool]) -> AsyncIterator[Served]:
    data, batch = either_app
    async with served(make_app(data, model=("hibari",), batch=batch)) as running:
        yield running


async def test_three_sentences_in_six_formats_and_alone_as_together(voice: Served) -> None:
    text = " ".join(SENTENCES)
    kinds = ("wav", "pcm", "flac", "mp3", "opus", "aac")
    together = await asyncio.gather(*(voice.speak(text, response_format=kind) for kind in kinds))
    alone = await voice.speak(text)
    assert together[0].content == alone.content
    length = float(alone.headers["x-audio-duration-s"])
    assert 3 < length < 15
    for kind, answer in zip(kinds, together, strict=True):
        assert answer.status_code == 200
        assert answer.headers["x-polychoir-chunks"] == "3"
        allowed = {"wav": 6e-4, "pcm": 6e-4, "flac": 6e-4, "aac": 0.1}.get(kind, 0.002)
        assert duration_of(answer.content, kind) == pytest.approx(length, abs=allowed)
    samples, _ = samples_of(alone.content, "wav")
    assert 0.05 < abs(samples).max() <= 1.0


async def test_what_it_cannot_say_is_refused(voice: Served) -> None:
    for text in ("...", "   ", "( ) [ ] { }", "你好，世界。", "Привет, мир."):
        answer = await voice.speak(text)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input"), text
    assert voice.speaker.engine.stats().batches_dispatched == 0


async def test_fields_it_has_no_use_for_are_refused_by_name(voice: Served) -> None:
    for name, value in (("num_step", 8), ("guidance_scale", 1.0), ("duration", 2.0), ("language", "de")):
        answer = await voice.speak(SENTENCES[0], **{name: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


async def test_stock_voices_are_its_own_one(voice: Served) -> None:
    own = await voice.speak(SENTENCES[0])
    stock = await voice.speak(SENTENCES[0], voice="alloy", model="tts-1")
    assert stock.content == own.content
    assert "voice_substituted" in stock.headers["x-polychoir-warnings"]
