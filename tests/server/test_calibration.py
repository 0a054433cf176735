"""Calibration behind a server: kept beneath the data folder, shared with workers, and seen by nobody."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support.serving import make_app, served, until

SPEED = {"fake_step_ms": 1.0, "fake_us_per_token": 5.0}


async def start(folder: Path, **settings: Any) -> dict[str, Any]:
    """Start, speak, stop; what /health said in between."""
    async with served(make_app(folder, **(SPEED | settings))) as house:
        await until(lambda: house.speaker.engine.status == "ready")
        assert (await house.speak()).status_code == 200
        health: dict[str, Any] = (await house.client.get("/health")).json()
    return health


def kept(folder: Path) -> dict[str, Any]:
    (file,) = (folder / "calibration").glob("*.json")
    record: dict[str, Any] = json.loads(file.read_text())
    return record


@pytest.mark.parametrize("workers", ["auto", 1, 2])
async def test_the_first_start_measures_the_next_reads_and_recalibrate_measures(
    tmp_path: Path, workers: str | int
) -> None:
    await start(tmp_path, workers=workers)
    first = kept(tmp_path)
    assert first["cost"]["per_token_s"] == pytest.approx(5e-6, rel=0.25)
    assert first["identity"]["model"] == "fake"
    await start(tmp_path, workers=workers)
    assert kept(tmp_path) == first
    await asyncio.sleep(0.01)
    await start(tmp_path, workers=workers, recalibrate=True)
    again = kept(tmp_path)
    assert again["measured_at"] > first["measured_at"]
    assert again["identity"] == first["identity"]


async def test_a_worker_reads_what_an_engine_of_this_process_measured(tmp_path: Path) -> None:
    await start(tmp_path)
    first = kept(tmp_path)
    await start(tmp_path, workers=2)
    assert kept(tmp_path) == first


async def test_other_settings_of_the_model_are_another_curve(tmp_path: Path) -> None:
    await start(tmp_path)
    await start(tmp_path, fake_us_per_token=20.0)
    slopes = sorted(
        json.loads(file.read_text())["cost"]["per_token_s"] for file in (tmp_path / "calibration").iterdir()
    )
    assert slopes == [pytest.approx(5e-6, rel=0.25), pytest.approx(2e-5, rel=0.25)]


async def test_a_damaged_file_does_not_stop_a_start(tmp_path: Path) -> None:
    await start(tmp_path)
    (file,) = (tmp_path / "calibration").glob("*.json")
    file.write_bytes(b"\x00" * 10)
    await start(tmp_path)
    assert kept(tmp_path)["format"] == 1


async def test_health_and_metrics_are_as_before(tmp_path: Path) -> None:
    """What was measured with leaves no trace in the counters."""
    async with served(make_app(tmp_path, **SPEED)) as house:
        told = (await house.client.get("/health")).json()
        assert (told["status"], told["requests_inside"]) == ("ready", 0)
        state = told["models"]["fake"]["state"]
        assert not any(state.values())
        assert told["models"]["fake"]["batching"]["max_num_batched_tokens"] == 8_192
        stats = house.speaker.engine.stats()
        assert (stats.tokens_total, stats.busy_s, stats.steps_total) == (0, 0.0, 0)
        await house.speak("Hi there.")
        assert house.speaker.engine.stats().steps_total == 8
