"""Loads that can be repeated, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from polychoir.bench.report import Outcome, percentile, summarise, table
from polychoir.bench.workloads import NAMED, Arrivals, Item, Kind, find_workload, parse_workload
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
    nothing = summarise([], 1.0)
    assert (nothing["rtf"], nothing["request_rtf"]) == (None, None)
    assert table(nothing).startswith("0 of 0 completed")


def test_every_kind_has_its_own_figures() -> None:
    """Each kind has a latency, a first byte and a first audio of its own, so that a mix-up shows."""
    kinds: tuple[Kind, ...] = ("speech", "design", "clone")
    outcomes = [
        Outcome(Item(kind, 2.0, n), due=n, ended=n + 4.0 + k, audio_s=2.0, first_byte=n + 1.0 + k,
                first_audio=n + 2.0 + k)
        for k, kind in enumerate(kinds) for n in range(4 + k)
    ]  # fmt: skip
    figures = summarise(outcomes, wall_s=10.0)
    for k, kind in enumerate(kinds):
        assert figures["kinds"][kind] == {"completed": 4 + k, "audio_s_per_s": pytest.approx(0.2 * (4 + k))}
        for name, value in {"latency_s": 4.0, "first_byte_s": 1.0, "ttfa_s": 2.0}.items():
            assert figures[name][kind]["p99"] == pytest.approx(value + k)
        assert figures["request_rtf"][kind]["p50"] == pytest.approx((4.0 + k) / 2.0)
    assert figures["latency_s"]["all"]["max"] == pytest.approx(6.0)
    assert figures["rtf"] == pytest.approx(10.0 / 30.0, abs=1e-5)
    lines = table(figures).splitlines()
    assert "RTF 0.33333" in lines[0]
    assert sum(line.split()[0] == "design" for line in lines[4:]) == 4


def test_answers_that_come_whole_have_no_first_audio() -> None:
    """One that was streamed is told of alone, and not mixed with those that were not."""
    whole = [Outcome(Item("speech", 2.0, n), 0.0, 3.0, 2.0, first_byte=2.9) for n in range(3)]
    figures = summarise(whole, wall_s=3.0)
    assert figures["ttfa_s"] is None
    assert figures["first_byte_s"]["all"]["p50"] == pytest.approx(2.9)
    assert "first audio" not in table(figures)
    streamed = Outcome(Item("clone", 2.0, 9), 0.0, 3.0, 2.0, first_byte=0.4, first_audio=0.5)
    figures = summarise([*whole, streamed], wall_s=3.0)
    assert list(figures["ttfa_s"]) == ["all", "clone"]
    assert figures["ttfa_s"]["all"]["max"] == pytest.approx(0.5)
    assert "first audio" in table(figures)


@pytest.mark.parametrize(
    ("name", "seconds", "kinds"),
    [
        ("older_short", 0.85, {"speech": 0.5, "design": 0.5}),
        ("older_mixed", 2.65, {"speech": 0.9, "design": 0.05, "clone": 0.05}),
    ],
)
def test_the_older_loads_are_what_their_tables_say(
    name: str, seconds: float, kinds: dict[Kind, float]
) -> None:
    items = find_workload(name).items(4_000)
    assert np.mean([item.seconds for item in items]) == pytest.approx(seconds, rel=0.05)
    for kind, share in kinds.items():
        assert np.mean([item.kind == kind for item in items]) == pytest.approx(share, abs=0.025)
