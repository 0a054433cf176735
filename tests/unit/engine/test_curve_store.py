"""Kept curves: they come back as they were, and what is no curve of this model here is measured again."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from polychoir.engine.cost import StepCost
from polychoir.engine.curve import Curve, Identity, from_json, to_json
from polychoir.engine.curve_store import MOST_BYTES, MOST_FILES, CurveStore
from polychoir.types import StepSample

IDENTITY = Identity("/models/a", "shapes 1", "a card, bfloat16, hybrid steps", "0.1.0")
CURVE = Curve(
    StepCost(1e-3, 2e-6, 1e-9, 5e-4, 0.02),
    "kept",
    IDENTITY,
    measured_at=1_700_000_000.5,
    step_tokens=8_192,
    samples=(StepSample(128, 9_000, 1.5e-3), StepSample(8_192, 10**6, 2e-2)),
)


@pytest.fixture
def store(tmp_path: Path) -> CurveStore:
    return CurveStore(tmp_path / "calibration")


def test_a_curve_comes_back_as_it_was(store):
    assert store.read(IDENTITY) is None
    assert store.all() == []
    store.write(replace(CURVE, origin="measured"))
    assert store.read(IDENTITY) == CURVE
    assert store.all() == [CURVE]
    assert [path.suffix for path in store.path(IDENTITY).parent.iterdir()] == [".json"]


def test_lanes_are_not_kept(store):
    store.write(replace(CURVE, cost=replace(CURVE.cost, lanes=8)))
    assert store.read(IDENTITY).cost.lanes == 1


@pytest.mark.parametrize("field", ["model", "fingerprint", "device", "version"])
def test_every_part_of_the_identity_has_a_file_of_its_own(store, field):
    other = replace(IDENTITY, **{field: "another"})
    assert other.key != IDENTITY.key
    store.write(CURVE)
    assert store.read(other) is None
    store.write(replace(CURVE, identity=other, step_tokens=512))
    assert store.read(IDENTITY).step_tokens == 8_192
    assert store.read(other).step_tokens == 512


def test_a_name_that_is_no_unicode_has_a_key():
    assert len(replace(IDENTITY, model="/models/\udcff").key) == 20


def damaged(**changes: object) -> bytes:
    record = json.loads(to_json(CURVE))
    return json.dumps(record | changes).encode()


COST = json.loads(to_json(CURVE))["cost"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"[" * 5_000,
        b"x" * (MOST_BYTES + 1),
        damaged(format=2),
        damaged(identity={"model": "a"}),
        damaged(samples=None),
        damaged(samples=[{"tokens": 1}]),
        damaged(measured_at="now"),
        damaged(cost=COST | {"per_token_s": 0}),
        damaged(cost=COST | {"host_s": -1}),
        damaged(cost=COST | {"host_s": True}),
        damaged(cost=COST | {"host_s": float("nan")}),
        damaged(cost=COST | {"floor_s": float("inf")}),
        damaged(cost={"host_s": 1e-3}),
    ],
    ids=range(17),
)
def test_a_file_that_is_no_curve_is_one_line_in_the_log(store, caplog, data):
    store.write(CURVE)
    store.path(IDENTITY).write_bytes(data)
    assert store.read(IDENTITY) is None
    (line,) = caplog.messages
    assert "cannot be used as a calibration" in line and IDENTITY.key in line and "\n" not in line


def test_a_file_under_a_foreign_name_is_not_believed(store, caplog):
    store.write(CURVE)
    other = replace(IDENTITY, device="another")
    store.path(IDENTITY).rename(store.path(other))
    assert store.read(other) is None
    assert "is the calibration of something else" in caplog.text


def test_the_newest_comes_first(store):
    for number in range(3):
        identity = replace(IDENTITY, device=str(number))
        store.write(replace(CURVE, identity=identity, measured_at=float(number)))
    assert [curve.measured_at for curve in store.all()] == [2.0, 1.0, 0.0]


def test_the_folder_is_bounded_and_the_oldest_goes(store):
    for number in range(MOST_FILES + 3):
        one = replace(CURVE, identity=replace(IDENTITY, device=str(number)))
        store.write(one)
        os.utime(store.path(one.identity), (number, number))
    assert len(store.all()) == MOST_FILES
    assert store.read(replace(IDENTITY, device="0")) is None
    assert store.read(replace(IDENTITY, device=str(MOST_FILES + 2))) is not None


def test_a_folder_that_cannot_be_made_is_logged_and_harmless(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    store = CurveStore(tmp_path / "file" / "calibration")
    store.write(CURVE)
    assert "cannot be kept" in caplog.text
    assert store.read(IDENTITY) is None


def test_what_is_written_is_what_is_read():
    assert from_json(to_json(CURVE)) == CURVE
