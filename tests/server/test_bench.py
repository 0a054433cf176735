"""The bench against a real server of ours, and its commands."""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polychoir.bench.engine import Bench, run
from polychoir.bench.serve import Target, body_of, reference_clip, run_serve, wav_seconds
from polychoir.bench.workloads import NAMED, Arrivals, Item
from polychoir.cli import app
from polychoir.errors import SettingError
from polychoir.types import ModelOptions
from support.serving import listening, make_app

pytest.importorskip("aiohttp", reason="bench serve needs the extra [bench]")


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
        assert outcome.first is not None
        assert outcome.due <= outcome.first <= outcome.ended <= wall


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
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(width)
        out.setframerate(24_000)
        out.writeframes(bytes(24_000 * channels * width))
    data = file.getvalue()
    assert wav_seconds(data) == 1.0
    streamed = data[:4] + b"\xff" * 4 + data[8:40] + b"\xff" * 4 + data[44:]
    assert wav_seconds(streamed) == 1.0
    assert wav_seconds(b"nothing") == wav_seconds(b"\xff\xfb" * 100) == 0.0


async def test_an_answer_that_is_no_wav_is_no_success(unused_tcp_port: int) -> None:
    from aiohttp import web

    async def mp3(request: web.Request) -> web.Response:
        return web.Response(body=b"\xff\xfb" * 500, content_type="audio/mpeg")

    peer = web.Application()
    peer.router.add_post("/v1/audio/speech", mp3)
    runner = web.AppRunner(peer)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    try:
        target = Target(f"http://127.0.0.1:{unused_tcp_port}", plain=True)
        outcomes, _, _ = await run_serve(target, NAMED["clone5"].items(3), Arrivals())
    finally:
        await runner.cleanup()
    assert {outcome.error for outcome in outcomes} == {"no wav"}
    assert {outcome.item.kind for outcome in outcomes} == {"speech"}  # without its clip it is no clone


def test_a_bound_in_flight_hides_no_queue() -> None:
    """Items come faster than one at a time can be made: each waits for those before it, and that counts."""
    options = ModelOptions(extra={"fake_step_ms": 2.0, "fake_us_per_token": 0.0})
    figures = run(Bench("fake", options), NAMED["auto1"], Arrivals(rate=1_000, concurrency=1), count=20)
    assert figures["latency_s"]["all"]["max"] > 0.8 * figures["wall_s"]


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--poisson"], "rate"),
        (["--load", "0.5", "--rate", "3"], "load"),
        (["--json", "/nowhere/x"], "folder"),
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
    alone = cli.invoke(app, ["bench", "engine", "fake", "-n", "6", "-w", "auto1", "--load", "0.5"])
    assert json.loads(alone.output.splitlines()[-1])["completed"] == 6
    swept = cli.invoke(app, ["bench", "engine", "fake", "-w", "auto1", "--sweep", "1,3"])
    assert [one["n"] for one in json.loads(swept.output.splitlines()[-1])["sweep"]] == [1, 3]
    assert cli.invoke(app, ["bench", "serve", "http://127.0.0.1:9", "-n", "2"]).exit_code == 1
