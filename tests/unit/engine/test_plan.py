"""Resolving limits."""

from __future__ import annotations

import pytest

from polychoir.engine.plan import limits_for
from polychoir.errors import SettingError
from polychoir.types import ModelInfo
from support.engines import limits


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
