"""Many requests in many voices leave nothing behind (cases_A, A51), on the small checkpoint."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import psutil
import pytest

from polychoir.bench.engine import Bench, running
from polychoir.types import ModelOptions, SpeechRequest, VoiceChoice, VoicePrompt

VOICES, REQUESTS, AFTER = 60, 500, 100


def voice(number: int) -> VoiceChoice:
    codes = np.random.default_rng(number).integers(0, 1_024, (8, 20)).astype("<i2")
    return VoiceChoice(f"v{number}", prompt=VoicePrompt(codes.tobytes(), 8, 20, "A short note.", rms=0.1))


@pytest.mark.slow
async def test_memory_is_flat_over_five_hundred_requests_in_sixty_voices(
    checkpoint_dir: Path,
) -> None:
    seen: dict[int, int] = {}
    options = ModelOptions(device="cpu", defaults={"num_step": 4})
    async with running(Bench(str(checkpoint_dir), options)) as engine:
        for number in range(REQUESTS):
            text = f"Voice {number % VOICES} line {number}."
            request = SpeechRequest(f"r{number}", text, seed=number, language="en", duration=0.6)
            prepared = engine.model.frontend.prepare(request, voice(number % VOICES))
            async with await engine.submit(prepared.chunks) as stream:
                async for audio in stream:
                    assert audio.samples.size > 0
            if number + 1 in (AFTER, REQUESTS):
                gc.collect()
                seen[number + 1] = psutil.Process().memory_info().rss
        stats = engine.stats()
    assert stats.sequences_finished == REQUESTS
    assert seen[REQUESTS] < 1.03 * seen[AFTER], f"grew from {seen[AFTER]} to {seen[REQUESTS]} bytes"
