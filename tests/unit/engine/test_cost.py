"""Cost curves: what a step costs, how large one must be, and what is fitted to measured ones."""

from __future__ import annotations

import random

import pytest

from polychoir.engine.calibration import fit
from polychoir.engine.cost import KNEE_SHARE, StepCost
from polychoir.types import StepSample, Work

CURVE = StepCost(host_s=1e-3, per_token_s=2e-6, per_square_s=1e-9, floor_s=5e-4)


def test_a_step_costs_its_floor_or_its_tokens():
    assert CURVE.seconds(0) == pytest.approx(1.5e-3)
    assert CURVE.seconds(250) == pytest.approx(1.5e-3)
    assert CURVE.seconds(1_000) == pytest.approx(3e-3)
    assert CURVE.seconds(1_000, squares=500_000) == pytest.approx(3.5e-3)


def test_attention_counts_as_the_tokens_it_costs_as_much_as():
    assert CURVE.weight(Work(100, 4, squares=10_000)) == pytest.approx(105)
    assert StepCost(1e-3, 2e-6).weight(Work(100, 4, squares=10_000)) == 100


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_step_of_the_size_for_a_pace_has_it_and_no_smaller_one(share):
    pace = share / CURVE.per_token_s
    size = CURVE.size_for(pace)
    assert CURVE.pace(size) == pytest.approx(pace)
    assert CURVE.pace(0.99 * size) < pace


def test_no_step_keeps_up_with_more_than_the_limit():
    assert CURVE.size_for(500_000) == float("inf")
    assert CURVE.size_for(0) == 0


def test_the_knee_has_its_share_of_the_limit():
    assert CURVE.pace(CURVE.knee) == pytest.approx(KNEE_SHARE / CURVE.per_token_s, rel=1e-3)


def test_lanes_multiply_the_pace():
    assert StepCost(1e-3, 2e-6, lanes=3).pace(500) == pytest.approx(3 * StepCost(1e-3, 2e-6).pace(500))


def test_a_slower_device_keeps_the_shape():
    assert CURVE.scaled(2).seconds(3_000, 10**6) == pytest.approx(2 * CURVE.seconds(3_000, 10**6))
    assert CURVE.scaled(2).knee == CURVE.knee


def samples(curve, sizes, squares_a_token=(130, 240), noise=0.0):
    rng = random.Random(5)
    return [
        StepSample(size, size * a, curve.seconds(size, size * a) * (1 + noise * rng.uniform(-1, 1)))
        for size in sizes
        for a in squares_a_token
    ]


SIZES = (128, 274, 548, 1_096, 2_192, 4_384, 8_192)


@pytest.mark.parametrize(
    "curve",
    [CURVE, StepCost(9e-4, 1.7e-6), StepCost(0.0, 1e-5), StepCost(1e-4, 2e-6, 0.0, floor_s=2e-3)],
    ids=["all terms", "no floor", "slope alone", "mostly floor"],
)
def test_the_curve_behind_samples_is_found(curve):
    found = fit(samples(curve, SIZES))
    for tokens in (200, 700, 3_000, 8_000):
        assert found.seconds(tokens, 150 * tokens) == pytest.approx(
            curve.seconds(tokens, 150 * tokens), rel=0.01
        )


def test_noise_of_five_percent_costs_no_more_than_that():
    found = fit(samples(CURVE, SIZES, noise=0.05))
    for tokens in (300, 3_000, 8_000):
        assert found.seconds(tokens, 150 * tokens) == pytest.approx(
            CURVE.seconds(tokens, 150 * tokens), rel=0.05
        )


def test_terms_are_never_negative():
    falling = [StepSample(100, 0, 2e-3), StepSample(1_000, 0, 1e-3), StepSample(4_000, 0, 9e-4)]
    found = fit(falling)
    assert min(found.host_s, found.floor_s, found.per_square_s) >= 0
    assert found.per_token_s > 0


@pytest.mark.parametrize(
    "bad", [[], [StepSample(100, 0, 1e-3)] * 3, [StepSample(100, 0, 1e-3), StepSample(200, 0, 0.0)]]
)
def test_too_little_to_fit_is_said(bad):
    with pytest.raises(ValueError, match=r"sizes|no time"):
        fit(bad)
