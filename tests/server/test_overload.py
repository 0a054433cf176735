"""Three times as many listeners as the server can serve: those let in are heard in time, the rest are told
when to come again, and nothing breaks."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
import pytest
from fastapi import FastAPI

from polychoir.engine.cost import StepCost
from polychoir.engine.engine import LocalEngine
from support.serving import listening, make_app, speaker_of

STEP_MS, US_PER_TOKEN, STEPS, TOKENS_PER_CHAR = 4.0, 10.0, 8, 4
TEXT = "A short line of forty letters, no more."
TARGET_S = 0.3
TOKENS = len(TEXT) * TOKENS_PER_CHAR * STEPS
NOMINAL = 0.9 / (TOKENS * US_PER_TOKEN / 1e6)
"""Requests a second at the knee, nine tenths of what endless steps would do, if the machine lost no time."""


@dataclass
class Seen:
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    retries: list[tuple[float, int]] = field(default_factory=list)


async def ask(session: aiohttp.ClientSession, url: str, seed: int, seen: Seen) -> None:
    body = {"input": TEXT, "response_format": "pcm", "seed": seed, "priority": "interactive"}
    started = time.perf_counter()
    async with session.post(f"{url}/v1/audio/speech", json=body) as answer:
        content = await answer.read()
        seen.statuses[answer.status] += 1
        if answer.status == 200:
            assert content
            seen.latencies.append(time.perf_counter() - started)
        elif answer.status == 429:
            ms = float(answer.headers["retry-after-ms"])
            seen.retries.append((ms, int(answer.headers["Retry-After"])))


def capacity_curve(app: FastAPI) -> StepCost:
    """What steps cost here and now, as the engine has measured it."""
    engine = speaker_of(app).engine
    assert isinstance(engine, LocalEngine) and engine._loop._core is not None
    return engine._loop._core.scheduler.cost


async def flood(url: str, rate: float, seconds: float) -> Seen:
    """Random arrivals, whoever is refused does not come again."""
    draw, seen, at = random.Random(1), Seen(), 0.0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(ask(session, url, seed, Seen()) for seed in range(3)))
        started, number, asking = time.perf_counter(), 0, set[asyncio.Task[None]]()
        while (at := at + draw.expovariate(rate)) < seconds:
            await asyncio.sleep(max(0.0, started + at - time.perf_counter()))
            number += 1
            task = asyncio.create_task(ask(session, url, number, seen))
            asking.add(task)
            task.add_done_callback(asking.discard)
        await asyncio.gather(*asking)
    return seen


@pytest.mark.parametrize("seconds", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_at_three_times_its_capacity_the_server_does_what_it_can(tmp_path: Path, seconds: int) -> None:
    app = make_app(
        tmp_path,
        fake_step_ms=STEP_MS,
        fake_us_per_token=US_PER_TOKEN,
        fake_steps=STEPS,
        fake_tokens_per_char=TOKENS_PER_CHAR,
    )
    with listening(app) as url:
        asyncio.run(flood(url, NOMINAL, 2.0))
        before = psutil.Process().memory_info().rss
        seen = asyncio.run(flood(url, 3 * NOMINAL, seconds))
        grown = psutil.Process().memory_info().rss / before
        cost = capacity_curve(app)
    capacity = cost.pace(cost.knee) / TOKENS
    asked = sum(seen.statuses.values())
    good = sum(latency <= TARGET_S for latency in seen.latencies)
    print(
        f"{asked} asked at {3 * NOMINAL:.0f}/s: {dict(seen.statuses)}, in time {good}"
        f" ({good / seconds / capacity:.2f} of {capacity:.1f}/s),"
        f" p50 {statistics.median(seen.latencies):.3f} s, worst {max(seen.latencies):.3f} s,"
        f" memory x{grown:.3f},"
        f" retry-after-ms median {statistics.median(ms for ms, _ in seen.retries):.0f}"
    )
    assert set(seen.statuses) == {200, 429}
    assert seen.statuses[429] > 0.3 * asked
    assert good >= 0.9 * capacity * seconds
    assert good >= 0.9 * len(seen.latencies)
    assert all(ms >= 50 and after >= 1 for ms, after in seen.retries)
    assert grown < 1.1
