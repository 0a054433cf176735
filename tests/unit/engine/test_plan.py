"""Filling a step and resolving limits."""

from __future__ import annotations

import pytest

from polychoir.engine.plan import Room, fill, limits_for
from polychoir.errors import SettingError
from polychoir.types import ModelInfo
from support.engines import limits, row


def ids(rows):
    return [one.seq_id for one in rows]


def test_rows_are_taken_in_order_until_the_tokens_are_spent():
    rows = [row(0, 40), row(1, 40), row(2, 40), row(3, 20)]
    assert ids(fill(rows, limits(), Room(8))) == [0, 1, 3]


def test_a_row_larger_than_the_budget_runs_alone_and_is_not_starved():
    rows = [row(0, 1_000), row(1, 10)]
    assert ids(fill(rows, limits(), Room(8))) == [0]
    assert ids(fill(reversed(rows), limits(), Room(8))) == [1]


def test_max_num_seqs_bounds_the_rows():
    assert ids(fill([row(i, 1) for i in range(9)], limits(max_num_seqs=3), Room(9))) == [0, 1, 2]


def test_only_rows_that_start_need_a_slot():
    started = row(0)
    started.next_step = 1
    again = row(1)
    again.epoch = 1
    assert ids(fill([started, again, row(2), row(3)], limits(), Room(1))) == [0, 1, 2]


def test_a_plan_holds_one_bucket():
    rows = [row(0, bucket=32), row(1, bucket=64), row(2, bucket=32)]
    assert ids(fill(rows, limits(), Room(8))) == [0, 2]


def test_a_suspect_runs_by_itself():
    suspect = row(1)
    suspect.alone = True
    assert ids(fill([row(0), suspect, row(2)], limits(), Room(8))) == [0, 2]
    assert ids(fill([suspect, row(2)], limits(), Room(8))) == [1]


def info(**changes):
    return ModelInfo(
        **{"name": "m", "kind": "iterative", "sample_rate": 24_000, "languages": ("*",), **changes}
    )


def test_defaults_follow_the_kind_of_model():
    iterative = limits_for(info())
    assert (iterative.max_num_seqs, iterative.max_resident_seqs) == (256, 1_024)
    one_shot = limits_for(info(kind="one_shot"))
    assert (one_shot.max_num_seqs, one_shot.max_concurrent_plans) == (8, 2)


def test_an_iterative_model_never_splits_into_batches_that_do_not_meet():
    assert limits_for(info(steps_ahead=1, default_concurrent_plans=4)).max_concurrent_plans == 1
    assert limits_for(info(steps_ahead=2)).max_concurrent_plans == 2
    assert limits_for(info(steps_ahead=2), max_concurrent_plans=1).max_concurrent_plans == 1
    assert limits_for(info(steps_ahead=2), max_concurrent_plans=9).max_concurrent_plans == 2


def test_a_graph_that_takes_one_item_gets_plans_of_one_row():
    resolved = limits_for(info(kind="one_shot", max_rows=1, default_concurrent_plans=6), max_num_seqs=8)
    assert (resolved.max_num_seqs, resolved.max_concurrent_plans) == (1, 6)
    assert resolved.max_resident_seqs >= 6


def test_no_batch_runs_one_row_at_a_time():
    resolved = limits_for(info(steps_ahead=2), batch=False)
    assert (resolved.max_num_seqs, resolved.max_resident_seqs, resolved.max_concurrent_plans) == (1, 1, 1)


@pytest.mark.parametrize(
    "name", ["max_num_seqs", "max_num_batched_tokens", "max_concurrent_plans", "queue_limit"]
)
def test_a_limit_below_one_names_itself(name):
    with pytest.raises(SettingError) as caught:
        limits(**{name: 0})
    assert caught.value.param == name


def test_fewer_slots_than_rows_is_refused():
    with pytest.raises(SettingError) as caught:
        limits(max_resident_seqs=3)
    assert caught.value.param == "max_resident_seqs"
