"""The server in front of worker processes: the same answers, and what clients see when a worker dies."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx

from polychoir.cluster.engine import WorkerEngine
from support.serving import Served, listening, make_app, served, speaker_of, until

TEXTS = [f"Number {n} is a line of its own. " * 12 for n in range(8)]


def engine_of(house: Served) -> WorkerEngine:
    engine = house.speaker.engine
    assert isinstance(engine, WorkerEngine)
    return engine


async def answers(tmp_path: Path, **settings: Any) -> list[bytes]:
    async with served(make_app(tmp_path, **settings)) as house:
        replies = await asyncio.gather(*(house.speak(text, seed=7) for text in TEXTS))
    assert {reply.status_code for reply in replies} == {200}
    return [reply.content for reply in replies]


async def test_answers_are_the_same_bytes_with_and_without_workers(tmp_path: Path) -> None:
    here = await answers(tmp_path)
    assert await answers(tmp_path, workers=1) == here
    assert await answers(tmp_path, workers=2) == here


async def test_a_worker_that_dies_is_not_noticed_by_those_inside(tmp_path: Path) -> None:
    here = await answers(tmp_path)
    async with served(make_app(tmp_path, workers=1, fake_step_ms=20.0)) as house:
        engine = engine_of(house)
        replies = asyncio.gather(*(house.speak(text, seed=7) for text in TEXTS))
        await until(lambda: engine.stats().running > 0)
        os.kill(engine.workers[0].process.pid, signal.SIGKILL)
        await until(lambda: engine.status == "loading")
        late = await house.speak("Too early.")
        assert (late.status_code, late.json()["error"]["code"]) == (503, "loading")
        assert int(late.headers["retry-after"]) >= 1
        assert (await house.client.get("/health/ready")).status_code == 503
        assert (await house.client.get("/health/live")).status_code == 200
        assert [reply.content for reply in await replies] == here
        assert (await house.client.get("/health/ready")).status_code == 200


async def test_numbers_of_workers_are_seen_by_health_and_metrics(tmp_path: Path) -> None:
    async with served(make_app(tmp_path, workers=2)) as house:
        await until(lambda: all(worker.status == "ready" for worker in engine_of(house).workers))
        for text in TEXTS:
            assert (await house.speak(text)).status_code == 200
        page = (await house.client.get("/metrics")).text
        health = (await house.client.get("/health")).json()["models"]["fake"]
    assert 'polychoir_sequences_finished_total{model="fake"} 16.0' in page.splitlines()
    assert health["batching"]["queue_limit"] == 4_000


def test_workers_behind_a_real_port(tmp_path: Path) -> None:
    """With the event loop that serves people, not the one that tests run in."""
    with listening(make_app(tmp_path, workers=2)) as address:
        body = {"input": TEXTS[0], "response_format": "wav", "seed": 7}
        reply = httpx.post(f"{address}/v1/audio/speech", json=body, timeout=20)
    assert reply.status_code == 200
    assert len(reply.content) > 100_000


async def test_no_process_is_left_behind(tmp_path: Path) -> None:
    app = make_app(tmp_path, workers=2)
    async with served(app):
        pids = [worker.process.pid for worker in speaker_of(app).engine.workers if worker.process]
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()
