"""Who is let in, who is told to come back, and what happens to work nobody waits for any more."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from polychoir.engine.core import EngineStats
from polychoir.errors import InternalError, Overloaded
from support.serving import Served, make_app, served, speaker_of, until


def code_of(response: Any) -> str:
    code: str = response.json()["error"]["code"]
    return code


async def test_a_full_queue_is_429_with_a_time_to_come_back_and_nothing_lost(tmp_path: Path) -> None:
    app = make_app(tmp_path, queue_limit=2, max_num_seqs=1, max_resident_seqs=1, fake_step_ms=3.0)
    async with served(app) as house:
        answers = await asyncio.gather(*(house.speak(f"Number {i}.") for i in range(24)))
        refused = [answer for answer in answers if answer.status_code != 200]
        assert 0 < len(refused) < 24
        for answer in refused:
            assert (answer.status_code, code_of(answer)) == (429, "overloaded")
            assert int(answer.headers["retry-after"]) >= 1
            assert int(answer.headers["retry-after-ms"]) >= 1
            assert "x-should-retry" not in answer.headers
        assert (await house.speak()).status_code == 200
        assert app.state.house.door.inside == 0


async def test_loading_is_503_and_readiness_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app(tmp_path)
    model: Any = speaker_of(app).model
    go_on, load = threading.Event(), model.load

    def slow_load(wake: Any) -> Any:
        go_on.wait(10)
        return load(wake)

    monkeypatch.setattr(model, "load", slow_load)
    async with served(app, ready=False) as house:
        refused = await house.speak()
        assert (refused.status_code, code_of(refused)) == (503, "loading")
        assert int(refused.headers["retry-after"]) >= 1
        assert (await house.speak(seed="abc")).status_code == 400  # a bad request need not wait to be told
        readiness = await house.client.get("/health/ready")
        assert (readiness.status_code, readiness.json()["status"]) == (503, "loading")
        assert (await house.client.get("/health/live")).status_code == 200
        go_on.set()
        await speaker_of(app).engine.wait_ready()
        assert (await house.client.get("/health/ready")).json() == {
            "status": "ready",
            "ready": True,
            "models": {"fake": "ready"},
        }
        assert (await house.speak()).status_code == 200


async def test_a_model_that_did_not_load_is_500_without_internals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(tmp_path)

    def broken_load(wake: Any) -> Any:
        raise RuntimeError("no such file: /home/someone/weights")

    monkeypatch.setattr(speaker_of(app).model, "load", broken_load)
    async with served(app, ready=False) as house:
        await until(lambda: house.speaker.engine.status == "failed")
        answer = await house.speak()
        assert (answer.status_code, code_of(answer)) == (500, "internal_error")
        assert "someone" not in answer.text
        for path in ("/health/live", "/health/ready", "/health"):
            response = await house.client.get(path)
            assert (response.status_code, response.json()["status"]) == (503, "failed")


async def test_draining_refuses_newcomers_and_serves_those_inside(tmp_path: Path) -> None:
    app = make_app(tmp_path, fake_step_ms=10.0)
    async with served(app) as house:
        inside = asyncio.create_task(house.speak("Before."))
        await until(lambda: app.state.house.door.inside == 1)
        app.state.house.door.draining = True
        refused = await house.speak("After.")
        assert (refused.status_code, code_of(refused)) == (503, "draining")
        assert "retry-after" in refused.headers
        assert (await house.client.get("/health/ready")).json()["status"] == "draining"
        assert (await inside).status_code == 200


@pytest.mark.parametrize("fields", [{"timeout": 0.5}, {}], ids=["the request's", "the server's"])
async def test_a_timeout_is_504_and_its_rows_leave(tmp_path: Path, fields: dict[str, Any]) -> None:
    app = make_app(tmp_path, fake_step_ms=20.0, request_timeout_s=60.0 if fields else 0.5)
    async with served(app) as house:
        answer = await house.speak("This is going to take far too long.", num_step=128, **fields)
        assert (answer.status_code, code_of(answer)) == (504, "deadline_exceeded")
        assert answer.headers["x-should-retry"] == "false"
        await until(lambda: house.speaker.engine.stats().running == 0)
        assert house.speaker.engine.stats().sequences_aborted == 1


async def vanish(app: Any, body: dict[str, Any], gone: asyncio.Event) -> list[Any]:
    """One request over bare ASGI whose client disappears when told; returns what was sent to nobody."""
    content = json.dumps(body).encode()
    messages = [{"type": "http.request", "body": content, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/audio/speech",
        "raw_path": b"/v1/audio/speech",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
    }
    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize("queued", [False, True], ids=["running", "queued"])
async def test_a_vanished_client_frees_its_rows(tmp_path: Path, queued: bool) -> None:
    app = make_app(tmp_path, fake_step_ms=5.0, batch=False)
    async with served(app) as house:
        before = asyncio.create_task(house.speak("First.", num_step=128)) if queued else None
        if queued:
            await until(lambda: house.speaker.engine.stats().running == 1)
        gone = asyncio.Event()
        body = {"input": "Word after word after word. " * 40, "num_step": 128}
        visit = asyncio.create_task(vanish(app, body, gone))
        await until(lambda: house.speaker.engine.stats().waiting > 0)
        gone.set()
        sent = await visit
        assert sent[0]["status"] == 499
        stats = house.speaker.engine.stats
        await until(lambda: stats().waiting == 0 and stats().running == int(queued), patience_s=1.0)
        assert stats().sequences_aborted > 1
        assert app.state.house.door.inside == int(queued)
        if before is not None:
            assert (await before).status_code == 200
        assert (await house.speak()).status_code == 200


async def test_a_failed_row_costs_its_own_request_only(tmp_path: Path) -> None:
    async with served(make_app(tmp_path, fake_fail_rate=0.5, fake_step_ms=1.0)) as house:
        answers = await asyncio.gather(*(house.speak("Luck.", seed=seed) for seed in range(20)))
        statuses = {answer.status_code for answer in answers}
        assert statuses == {200, 500}
        again = await asyncio.gather(*(house.speak("Luck.", seed=seed) for seed in range(20)))
        assert [answer.status_code for answer in answers] == [answer.status_code for answer in again]


async def test_what_broke_is_logged_with_the_request_id_and_not_told(
    house: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(request: Any, voice: Any) -> Any:
        raise InternalError("CUDA out of memory in /home/u/.cache, process 4711")

    monkeypatch.setattr(house.speaker.model.frontend, "prepare", broken)
    answer = await house.client.post(
        "/v1/audio/speech", json={"input": "Hi."}, headers={"x-request-id": "mine-1"}
    )
    assert answer.status_code == 500
    assert answer.headers["x-should-retry"] == "false"
    assert answer.headers["x-request-id"] == "mine-1"
    assert "mine-1" in answer.json()["error"]["message"]
    for secret in ("CUDA", "/home/u", "4711"):
        assert secret not in answer.text
    logged = capsys.readouterr().out
    assert "process 4711" in logged
    assert "mine-1" in logged


async def test_the_door_counts_back_whatever_happens(house: Served) -> None:
    for fields in ({"seed": "abc"}, {"voice": "nobody"}, {"model": "nobody"}, {"stream": True}):
        assert (await house.speak(**fields)).status_code >= 400
    task = asyncio.create_task(house.speak("Cancelled from outside.", num_step=128))
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await until(lambda: house.app.state.house.door.inside == 0)


# -- what the door counts --------------------------------------------------------------------------


async def test_more_than_the_capacity_do_not_get_in(tmp_path: Path) -> None:
    app = make_app(tmp_path, queue_limit=2, max_num_seqs=1, max_resident_seqs=1)
    door = app.state.house.door
    assert door.capacity == 3 * 2 + 1  # of three tiers, none can fill the places of another
    async with asyncio.timeout(None) as deadline:
        with contextlib.ExitStack() as inside:
            for _ in range(door.capacity):
                inside.enter_context(door.enter(deadline))
            with pytest.raises(Overloaded) as refused, door.enter(deadline):
                pass
            assert refused.value.retry_after_s == 1.0
            assert door.inside == door.capacity
        with door.enter(deadline):
            assert door.inside == 1
    assert door.inside == 0


def seen(app: Any, monkeypatch: pytest.MonkeyPatch, **stats: Any) -> Any:
    """The door of an app whose engine is ready and shows these figures."""
    engine = speaker_of(app).engine
    monkeypatch.setattr(type(engine), "status", "ready")
    monkeypatch.setattr(engine, "stats", lambda: EngineStats(**stats))
    return app.state.house.door


@pytest.mark.parametrize(("backlog", "wait"), [(0.0, 1.0), (7.5, 7.5), (1_000.0, 60.0)])
def test_a_full_tier_is_refused_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backlog: float, wait: float
) -> None:
    app = make_app(tmp_path, queue_limit=5)
    waiting = {"standard": 5, "interactive": 4}
    door = seen(app, monkeypatch, waiting=9, waiting_by_tier=waiting, backlog_s=backlog)
    with pytest.raises(Overloaded) as refused:
        door.check_open(speaker_of(app), "standard")
    assert refused.value.retry_after_s == wait
    door.check_open(speaker_of(app), "interactive")
    door.check_open(speaker_of(app), "batch")


async def test_the_door_itself_refuses_over_http(house: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = house.speaker.engine.limits.queue_limit
    seen(house.app, monkeypatch, waiting_by_tier={"standard": limit}, backlog_s=12.3)
    refused = await house.speak()
    assert (refused.status_code, code_of(refused)) == (429, "overloaded")
    assert (refused.headers["retry-after"], refused.headers["retry-after-ms"]) == ("13", "12300")
    assert house.app.state.house.door.inside == 0
    assert (await house.speak(response_format="pcm")).status_code == 200  # interactive


async def test_the_bytes_of_bodies_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polychoir.server.door.MAX_HELD_BYTES", 3_000)
    app = make_app(tmp_path, fake_step_ms=20.0)
    long = "Held. " * 300
    async with served(app) as house:
        inside = asyncio.create_task(house.speak(long))
        await until(lambda: house.speaker.engine.stats().running > 0)
        refused = await house.speak(long)
        assert (refused.status_code, code_of(refused)) == (429, "overloaded")
        assert "retry-after" in refused.headers
        assert (await house.speak("Short.")).status_code == 200
        assert (await inside).status_code == 200
        assert (await house.speak(long, num_step=1)).status_code == 200
