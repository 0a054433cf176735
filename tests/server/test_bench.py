"""The bench against a real server of ours, and its commands."""

from __future__ import annotations

import asyncio
import io
import json
import wave
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from polychoir.bench.engine import Bench, run
from polychoir.bench.report import summarise
from polychoir.bench.serve import Target, body_of, reference_clip, run_serve, wav_seconds
from polychoir.bench.workloads import NAMED, Arrivals, Item, Share, Workload
from polychoir.cli import app
from polychoir.errors import SettingError
from polychoir.types import ModelOptions
from support.serving import listening, make_app

pytest.importorskip("aiohttp", reason="bench serve needs the extra [bench]")


def wav_of(seconds: int, channels: int = 1, width: int = 2) -> bytes:
    """Silence."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((channels, width, 24_000, 0, "NONE", ""))
        out.writeframes(bytes(24_000 * channels * width * seconds))
    return file.getvalue()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with listening(make_app(tmp_path)) as address:
        yield address


async def test_every_item_is_sent_and_heard(url: str) -> None:
    items = NAMED["mixed"].items(40)
    outcomes, wall, messages = await run_serve(
        Target(url, plain=True), items, Arrivals(rate=200, poisson=True)
    )
    assert [outcome.item for outcome in outcomes] == items
    assert (messages, {outcome.error for outcome in outcomes}) == ({}, {None})
    for outcome in outcomes:
        assert outcome.audio_s > 0.5
        assert outcome.first_audio is None  # our answers come whole
        assert outcome.first_byte is not None
        assert outcome.due <= outcome.first_byte <= outcome.ended <= wall


async def test_a_closed_loop_has_no_more_in_flight_than_it_says(url: str) -> None:
    outcomes, _, _ = await run_serve(
        Target(url, plain=True), NAMED["auto1"].items(30), Arrivals(concurrency=3)
    )
    events = sorted([(o.due, 1) for o in outcomes] + [(o.ended, -1) for o in outcomes])
    in_flight = peak = 0
    for _, change in events:
        in_flight += change
        peak = max(peak, in_flight)
    assert peak == 3


async def test_refusals_are_counted_with_their_words(url: str) -> None:
    """The fake model knows no `duration`; a server that is not there answers nothing."""
    items = NAMED["auto1"].items(3)
    outcomes, _, messages = await run_serve(Target(url), items, Arrivals())
    assert {outcome.error for outcome in outcomes} == {"400"}
    assert "duration" in messages["400"]
    outcomes, _, _ = await run_serve(Target("http://127.0.0.1:9"), items, Arrivals())
    assert {outcome.error for outcome in outcomes} == {"ClientConnectorError"}


async def test_omnivoice_answers_every_kind(tmp_path: Path, checkpoint_dir: Path) -> None:
    """As it is asked: a design whose words are all known, a clone of the clip that was sent."""
    load = Workload("all", (Share(1.0, 0.6, 0.8),), {"speech": 0.4, "design": 0.3, "clone": 0.3})
    items = load.items(9)
    kinds = {item.kind: item for item in items}
    assert set(kinds) == {"speech", "design", "clone"}
    app = make_app(tmp_path, model=(f"omnivoice={checkpoint_dir}",), device="cpu", num_step=4)
    with listening(app) as address:
        target = Target(address)
        outcomes, wall, messages = await run_serve(target, items, Arrivals(rate=50))
        assert (messages, {outcome.error for outcome in outcomes}) == ({}, {None})
        figures = summarise(outcomes, wall)
        for part in ("latency_s", "first_byte_s", "request_rtf"):
            assert set(figures[part]) == {"all", *kinds}
        for kind, voice in {"speech": "auto", "design": "auto", "clone": "clone"}.items():
            reply = httpx.post(f"{address}/v1/audio/speech", json=body_of(kinds[kind], target), timeout=20)
            assert (reply.status_code, reply.headers["x-polychoir-voice"]) == (200, voice)
            assert reply.headers["x-polychoir-warnings"] == ""
        page = httpx.get(f"{address}/metrics").text
    assert 'polychoir_prompt_cache_misses_total{model="omnivoice"} 1.0' in page.splitlines()


def test_bodies() -> None:
    item = Item("clone", 5.0, 7, steps=16, guidance=3.0)
    body = body_of(item, Target("http://x"))
    assert (body["duration"], body["num_step"], body["guidance_scale"], body["seed"]) == (5.0, 16, 3.0, 7)
    assert body["ref_audio"] == reference_clip()
    assert set(body_of(item, Target("http://x", plain=True))) == {
        "model",
        "input",
        "voice",
        "response_format",
    }
    assert "instructions" in body_of(Item("design", 1.0, 0), Target("http://x", plain=True))


@pytest.mark.parametrize(("channels", "width"), [(1, 2), (2, 2), (1, 4)])
def test_seconds_are_those_of_the_bytes(channels: int, width: int) -> None:
    data = wav_of(1, channels, width)
    assert wav_seconds(data) == 1.0
    streamed = data[:4] + b"\xff" * 4 + data[8:40] + b"\xff" * 4 + data[44:]
    assert wav_seconds(streamed) == 1.0
    assert wav_seconds(b"nothing") == wav_seconds(b"\xff\xfb" * 100) == 0.0


@asynccontextmanager
async def peer(port: int, answer: Any) -> AsyncIterator[Target]:
    """A server that answers every request by `answer`."""
    from aiohttp import web

    app = web.Application()
    app.router.add_post("/v1/audio/speech", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield Target(f"http://127.0.0.1:{port}", plain=True)
    finally:
        await runner.cleanup()


async def test_a_streamed_answer_has_a_first_audio_and_a_header_is_none(unused_tcp_port: int) -> None:
    from aiohttp import web

    pause = 0.05

    async def streamed(request: web.Request) -> web.StreamResponse:
        """A header, then a second of silence in two parts."""
        file = wav_of(1)
        answer = web.StreamResponse(headers={"Content-Type": "audio/wav"})
        await answer.prepare(request)
        for part in (file[:44], file[44:24_000], file[24_000:]):
            await answer.write(part)
            await asyncio.sleep(pause)
        return answer

    async with peer(unused_tcp_port, streamed) as target:
        (outcome,), _, _ = await run_serve(target, NAMED["auto1"].items(1), Arrivals())
    assert outcome.audio_s == 1.0
    assert outcome.first_byte is not None and outcome.first_audio is not None
    assert outcome.first_byte + pause / 2 < outcome.first_audio < outcome.ended - pause / 2


async def test_an_answer_that_is_no_wav_is_no_success(unused_tcp_port: int) -> None:
    from aiohttp import web

    async def mp3(request: web.Request) -> web.Response:
        return web.Response(body=b"\xff\xfb" * 500, content_type="audio/mpeg")

    async with peer(unused_tcp_port, mp3) as target:
        outcomes, _, _ = await run_serve(target, NAMED["clone5"].items(3), Arrivals())
    assert {outcome.error for outcome in outcomes} == {"no wav"}
    assert {outcome.item.kind for outcome in outcomes} == {"speech"}  # without its clip it is no clone


def test_what_the_model_cannot_sing_is_not_counted_as_that() -> None:
    """The fake model knows neither clips nor designs."""
    load = Workload("all", (Share(1.0, 1, 2),), {"speech": 0.4, "design": 0.3, "clone": 0.3})
    _, outcomes = run(Bench("fake", ModelOptions()), load, Arrivals(), count=9)
    assert {outcome.item.kind for outcome in outcomes} == {"speech"}


def test_a_bound_in_flight_hides_no_queue() -> None:
    """Items come faster than one at a time can be made: each waits for those before it, and that counts."""
    options = ModelOptions(extra={"fake_step_ms": 2.0, "fake_us_per_token": 0.0})
    figures, _ = run(Bench("fake", options), NAMED["auto1"], Arrivals(rate=1_000, concurrency=1), count=20)
    assert figures["latency_s"]["all"]["max"] > 0.8 * figures["wall_s"]


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--poisson"], "rate"),
        (["--load", "0.5", "--rate", "3"], "load"),
        (["--json", "/nowhere/x"], "folder"),
        (["--plot", "/nowhere/x.svg"], "folder"),
        (["--plot", "picture.bmp"], "none of .svg"),
        (["--plot", "picture.svg", "--sweep", "1,2"], "one run"),
    ],
)
def test_what_cannot_be_is_said_before_the_load(flags: list[str], word: str) -> None:
    result = CliRunner().invoke(app, ["bench", "engine", "fake", *flags])
    assert isinstance(result.exception, SettingError)
    assert word in str(result.exception)


def test_the_commands_end_with_one_line_of_json(url: str, tmp_path: Path) -> None:
    picture, file = tmp_path / "x.png", tmp_path / "x.json"
    cli = CliRunner()
    served = cli.invoke(app, ["bench", "serve", url, "-n", "5", "-w", "auto1", "--plain", "--json", str(file),
                              "--plot", str(picture)])  # fmt: skip
    assert served.exit_code == 0, served.output
    figures = json.loads(served.output.splitlines()[-1])
    assert json.loads(file.read_text()) == figures
    assert (figures["completed"], figures["command"]) == (5, "serve")
    assert figures["parameters"] | {"url": url, "plain": True, "seed": 1} == figures["parameters"]
    assert "api_key" not in figures["parameters"]
    assert picture.read_bytes()[:4] == b"\x89PNG"
    drawing = tmp_path / "x.svg"
    alone = cli.invoke(app, ["bench", "engine", "fake", "-n", "6", "-w", "auto1", "--load", "0.5",
                             "--plot", str(drawing)])  # fmt: skip
    assert json.loads(alone.output.splitlines()[-1])["completed"] == 6
    assert "</svg>" in drawing.read_text()
    swept = cli.invoke(app, ["bench", "engine", "fake", "-w", "auto1", "--sweep", "1,3"])
    assert [one["n"] for one in json.loads(swept.output.splitlines()[-1])["sweep"]] == [1, 3]
    assert cli.invoke(app, ["bench", "serve", "http://127.0.0.1:9", "-n", "2"]).exit_code == 1
