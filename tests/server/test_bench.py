"""The bench against a real server of ours, and its commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polychoir.bench.serve import Target, body_of, reference_clip, run_serve, wav_seconds
from polychoir.bench.workloads import NAMED, Arrivals, Item
from polychoir.cli import app
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


def test_seconds_are_those_of_the_bytes() -> None:
    header = b"RIFF" + b"\xff" * 4 + b"WAVEfmt " + b"\0" * 8 + (24_000).to_bytes(4, "little") + b"\0" * 16
    assert wav_seconds(header + b"\0" * 48_000) == 1.0
    assert wav_seconds(b"nothing") == 0.0


def test_the_commands_end_with_one_line_of_json(url: str, tmp_path: Path) -> None:
    picture, file = tmp_path / "x.png", tmp_path / "x.json"
    run = CliRunner()
    served = run.invoke(app, ["bench", "serve", url, "-n", "5", "-w", "auto1", "--plain", "--json", str(file),
                              "--plot", str(picture)])  # fmt: skip
    assert served.exit_code == 0, served.output
    figures = json.loads(served.output.splitlines()[-1])
    assert json.loads(file.read_text()) == figures
    assert (figures["completed"], figures["command"]) == (5, "serve")
    assert picture.read_bytes()[:4] == b"\x89PNG"
    alone = run.invoke(app, ["bench", "engine", "fake", "-n", "6", "-w", "auto1", "--load", "0.5"])
    assert json.loads(alone.output.splitlines()[-1])["completed"] == 6
    swept = run.invoke(app, ["bench", "engine", "fake", "-w", "auto1", "--sweep", "1,3"])
    assert [one["n"] for one in json.loads(swept.output.splitlines()[-1])["sweep"]] == [1, 3]
    assert run.invoke(app, ["bench", "serve", "http://127.0.0.1:9", "-n", "2"]).exit_code == 1
