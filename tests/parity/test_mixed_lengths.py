"""Short and long texts in one batch cost what their tokens cost (cases_A, A61), on the small checkpoint."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import pytest
import torch

from polychoir.bench.engine import Bench, running
from polychoir.engine.engine import LocalEngine
from polychoir.types import Chunk, ModelOptions, SamplingParams, SpeechRequest, VoiceChoice

torch.set_num_threads(1)  # the tensors are small: threads cost more than they bring

CASES = Path(__file__).parents[1] / "data" / "cases_A.jsonl"
WORDS = "the quick brown fox jumps over a lazy dog while rivers move slowly toward the sea"
ROUNDS = 3
STEP_TOKENS = 8_192
DEARER, PADDED = 1.15, 0.05


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a batch from its first submission to its last audio, and with a step in flight."""

    tokens: int
    wall_s: float
    busy_s: float


def lengths() -> list[int]:
    """Words of the case's texts."""
    case = next(
        found for line in CASES.read_text().splitlines() if (found := json.loads(line))["id"] == "A61"
    )
    words: list[int] = case["input"]["bench"]["lengths_words"]
    return words


def bench_of(checkpoint: Path) -> Bench:
    """With steps large enough for all of the case's texts at once."""
    options = ModelOptions(device="cpu", extra={"max_num_batched_tokens": STEP_TOKENS})
    return Bench(str(checkpoint), options, limits={"max_num_batched_tokens": STEP_TOKENS})


async def sing(engine: LocalEngine, words: int, seed: int, steps: int) -> list[Chunk]:
    """One text of so many words to its end; the chunks it was sung in."""
    text = " ".join(islice(cycle(WORDS.split()), words)) + "."
    sampling = SamplingParams(num_step=steps)
    request = SpeechRequest(f"r{seed}", text, seed=seed, language="en", sampling=sampling)
    prepared = engine.model.frontend.prepare(request, VoiceChoice("auto"))
    chunks, rest, sung = prepared.chunks, prepared.rest, list(prepared.chunks)
    while chunks:
        async with await engine.submit(chunks) as stream:
            async for audio in stream:
                last = audio
        chunks, rest = (rest(last), None) if rest is not None else ((), None)
        sung += chunks
    return sung


async def together(engine: LocalEngine, texts: Sequence[int], steps: int) -> tuple[Cost, list[Chunk]]:
    """All texts at once; their cost, and every chunk."""
    before, started = engine.stats(), time.perf_counter()
    sung = await asyncio.gather(*(sing(engine, words, seed, steps) for seed, words in enumerate(texts)))
    wall, after = time.perf_counter() - started, engine.stats()
    tokens = after.tokens_total - before.tokens_total
    return Cost(tokens, wall, after.busy_s - before.busy_s), [chunk for chunks in sung for chunk in chunks]


async def test_A61_every_token_computed_is_one_of_a_row(checkpoint_dir: Path) -> None:
    """On a CPU exactly: rows lie end to end. (On a GPU steps fill up to the next bucket.)"""
    async with running(bench_of(checkpoint_dir)) as engine:
        cost, chunks = await together(engine, lengths(), steps=2)
        stats = engine.stats()
    sizes = {chunk.work.tokens for chunk in chunks}
    assert max(sizes) > 5 * min(sizes)
    assert stats.avg_batch_size > 2
    assert cost.tokens == sum(chunk.work.tokens * chunk.work.steps for chunk in chunks)
    assert stats.padded_tokens_total == 0


@pytest.mark.slow
async def test_A61_mixed_lengths_cost_no_more_than_equal_ones(checkpoint_dir: Path) -> None:
    """Beside the same texts, each in a batch of its equals. The best of three rounds, each with both in turn,
    since machines drift and are shared."""
    equals = [[words] * max(1, min(16, 120 // words)) for words in lengths()]
    everything = [words for texts in equals for words in texts]
    async with running(bench_of(checkpoint_dir)) as engine:
        await together(engine, lengths(), steps=1)
        rounds = [
            [(await together(engine, texts, steps=8))[0] for texts in (everything, *equals)]
            for _ in range(ROUNDS)
        ]
        stats = engine.stats()
    assert stats.padded_tokens_total < PADDED * (stats.tokens_total + stats.padded_tokens_total)
    mixed, *alike = (cost.tokens for cost in rounds[0])
    assert mixed == sum(alike)
    ratios = [mixed.wall_s / sum(cost.wall_s for cost in alike) for mixed, *alike in rounds]
    assert min(ratios) <= DEARER, f"together beside among equals: {ratios}"
