"""Loads that can be repeated, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from polychoir.bench.report import Outcome, percentile, summarise, table
from polychoir.bench.workloads import NAMED, Arrivals, Item, find_workload, parse_workload
from polychoir.errors import SettingError


@pytest.mark.parametrize("name", NAMED)
def test_the_same_seed_gives_the_same_items(name: str) -> None:
    load = NAMED[name]
    assert load.items(20, seed=3) == load.items(20, seed=3)
    assert load.items(20, seed=3)[:5] == load.items(5, seed=3)
    low, high = min(part.low for part in load.lengths), max(part.high for part in load.lengths)
    for item in load.items(50):
        assert low <= item.seconds <= high
        assert item.kind in load.kinds


def test_a_text_is_as_long_as_it_takes_to_say() -> None:
    for seconds in (0.5, 5.0, 60.0):
        texts = {Item("speech", seconds, seed).text for seed in range(3)}
        assert len(texts) == 3
        assert all(abs(len(text) - max(10, seconds * 15)) <= 2 for text in texts)


def test_shares_are_kept() -> None:
    load = parse_workload(
        {
            "name": "x",
            "kinds": {"speech": 0.5, "design": 0.5},
            "audio_s": [{"share": 0.25, "uniform": [1, 2]}, {"share": 0.75, "uniform": [8, 9]}],
            "steps": 16,
            "guidance": 2.0,
        }
    )
    items = load.items(2_000)
    assert abs(np.mean([item.kind == "design" for item in items]) - 0.5) < 0.05
    assert abs(np.mean([item.seconds > 5 for item in items]) - 0.75) < 0.05
    assert {(item.steps, item.guidance) for item in items} == {(16, 2.0)}


def test_a_workload_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "load.json"
    file.write_text(
        json.dumps({"name": "y", "clone_share": 1.0, "audio_s": [{"share": 1, "uniform": [2, 3]}]})
    )
    assert {item.kind for item in find_workload(str(file)).items(9)} == {"clone"}
    file.write_text('{"name": "y"}')
    with pytest.raises(SettingError, match="is no workload"):
        find_workload(str(file))
    file.write_text(json.dumps({"name": "y", "kinds": {"song": 1}, "audio_s": []}))
    with pytest.raises(SettingError, match="song"):
        find_workload(str(file))
    with pytest.raises(SettingError, match="no workload is called 'auto7'"):
        find_workload("auto7")


def test_arrivals() -> None:
    items = NAMED["auto1"].items(4_000)
    even = list(Arrivals(rate=50).times(items))
    assert np.allclose(np.diff(even), 0.02)
    gaps = np.diff(list(Arrivals(rate=50, poisson=True).times(items)))
    assert abs(gaps.mean() - 0.02) < 0.002
    assert abs(gaps.std() - gaps.mean()) < 0.003
    assert set(Arrivals().times(items)) == {0.0}


@pytest.mark.parametrize("count", [1, 2, 9, 100])
def test_percentiles_are_numpys(count: int) -> None:
    values = list(np.random.default_rng(count).random(count))
    for percent in (0, 50, 95, 99, 100):
        assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))
    assert percentile([], 50) == 0.0


def test_a_summary_counts_what_succeeded_and_names_what_did_not() -> None:
    good = [Outcome(Item("speech", 2.0, n), due=n, ended=n + 1.0 + n / 10, audio_s=2.2) for n in range(3)]
    figures = summarise([*good, Outcome(Item("clone", 5.0, 9), 0.0, 1.0, error="429")], wall_s=4.0)
    assert (figures["requests"], figures["completed"], figures["errors"]) == (4, 3, {"429": 1})
    assert figures["audio_s_per_s"] == pytest.approx(1.65)
    assert figures["asked_s_per_s"] == pytest.approx(1.5)
    assert figures["latency_s"]["speech"]["p50"] == pytest.approx(1.1)
    assert "clone" not in figures["latency_s"]
    assert "failed, 429: 1" in table(figures)
    assert summarise([], 1.0)["rtf"] is None
