"""Many requests in many voices leave nothing behind (cases_A, A51): the server, on the small checkpoint."""

from __future__ import annotations

import base64
import gc
import io
import json
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from polychoir.runner.prompt_cache import PromptCache
from support.serving import Served, make_app, served

CASES = Path(__file__).parents[1] / "data" / "cases_A.jsonl"
AFTER, GROWTH = 100, 0.03
RATE, CLIP_S, CLIP_BYTES = 24_000, 1.0, 25 * 8 * 2
"""A clip, and its codes: 25 frames of 8 codebooks, two bytes each."""
CLIP_TEXT = "A short note."


def clip(voice: int) -> str:
    """A second of something like a voice, another for every number."""
    t = np.arange(int(CLIP_S * RATE)) / RATE
    loud = 0.3 * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * t))
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, RATE, 0, "NONE", ""))
        out.writeframes((loud * np.sin(2 * np.pi * (100 + 5 * voice) * t) * 32_767).astype("<i2").tobytes())
    return base64.b64encode(file.getvalue()).decode()


async def speak(house: Served, voice: int, number: int) -> None:
    text = f"Voice {voice} line {number}."
    answer = await house.speak(
        text, seed=number, duration=0.6, ref_audio=clip(voice), ref_text=CLIP_TEXT, preprocess_prompt=False
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-polychoir-voice"] == "clone"


async def counted(house: Served) -> tuple[int, int]:
    """Clips that were known and clips that were encoded, as /metrics has them."""
    lines = (await house.client.get("/metrics")).text.splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    names = (f'polychoir_prompt_cache_{name}_total{{model="omnivoice"}}' for name in ("hits", "misses"))
    hits, misses = (int(float(found[name])) for name in names)
    return hits, misses


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> list[PromptCache]:
    """Those that are made from now on: how much one holds is told to nobody outside."""
    made: list[PromptCache] = []

    def make(limit_bytes: int) -> PromptCache:
        made.append(PromptCache(limit_bytes))
        return made[-1]

    monkeypatch.setattr("polychoir.runner.build.PromptCache", make)
    return made


@asynccontextmanager
async def house(tmp: Path, checkpoint: Path, cache_mb: int) -> AsyncIterator[Served]:
    settings = {"model": (f"omnivoice={checkpoint}",), "device": "cpu", "num_step": 4}
    async with served(make_app(tmp, **settings, prompt_cache_mb=cache_mb)) as running:
        yield running


@pytest.mark.slow
async def test_A51_memory_is_flat_over_five_hundred_requests_in_sixty_voices(
    tmp_path: Path, checkpoint_dir: Path, caches: list[PromptCache]
) -> None:
    case = next(
        found for line in CASES.read_text().splitlines() if (found := json.loads(line))["id"] == "A51"
    )
    requests, voices = case["input"]["loop"]["n"], case["input"]["loop"]["voices"]
    resident: dict[int, int] = {}
    async with house(tmp_path, checkpoint_dir, cache_mb=1) as running:
        for number in range(requests):
            await speak(running, number % voices, number)
            if number + 1 in (AFTER, requests):
                gc.collect()
                resident[number + 1] = psutil.Process().memory_info().rss
        assert await counted(running) == (requests - voices, voices)
        assert [cache.held_bytes for cache in caches] == [voices * CLIP_BYTES]
        assert running.speaker.engine.stats().sequences_finished == requests
    assert resident[requests] < (1 + GROWTH) * resident[AFTER], f"resident bytes grew: {resident}"


@pytest.mark.parametrize(("cache_mb", "held", "known"), [(0, 0, 0), (1, 2 * CLIP_BYTES, 4)])
async def test_A51_the_cache_of_clips_keeps_to_its_bound(
    tmp_path: Path, checkpoint_dir: Path, caches: list[PromptCache], cache_mb: int, held: int, known: int
) -> None:
    """Without room nothing is kept; with room a clip that comes again is known."""
    async with house(tmp_path, checkpoint_dir, cache_mb) as running:
        for number in range(6):
            await speak(running, number % 2, number)
        assert await counted(running) == (known, 6 - known)
        assert [cache.held_bytes for cache in caches] == [held]
