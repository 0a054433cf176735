"""The sweep of step sizes: exact sizes, two shapes, within its budget, and enough to find a curve."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from polychoir.engine.calibration import fit
from polychoir.engine.cost import StepCost
from polychoir.models.omnivoice.row import CODEBOOKS, OmniVoiceRow
from polychoir.runner.measuring import LONG, Sweep

GPU = Sweep(tokens=8_192, rows=256, longest=40_960, budget_s=3.0)
CURVE = StepCost(host_s=1e-3, per_token_s=1.5e-6, per_square_s=1e-9, floor_s=5e-4)


class Device:
    """Steps take what a curve says, on a clock of their own."""

    def __init__(self, curve: StepCost, hiccup: int = 0) -> None:
        self.curve = curve
        self.hiccup = hiccup
        self.now = 0.0
        self.calls = 0

    def __call__(self, rows: Sequence[OmniVoiceRow], steps: int) -> float:
        self.calls += 1
        seconds = self.curve.seconds(sum(row.tokens for row in rows), sum(row.squares for row in rows))
        slow = 10.0 if self.hiccup and self.calls % self.hiccup == 0 else 1.0
        self.now += slow * steps * seconds
        return slow * seconds

    def clock(self) -> float:
        return self.now


@pytest.mark.parametrize("tokens", [32, 33, 160, 1_001, 4_096, 8_191])
def test_shapes_have_exactly_the_tokens_asked_for(tokens: int) -> None:
    for rows in GPU.shapes(tokens):
        assert sum(row.tokens for row in rows) == tokens
        assert all(sum(row.timetable) == CODEBOOKS * row.target_frames for row in rows)
        assert max(row.tokens for row in rows) - min(row.tokens for row in rows) <= 1


def test_a_large_step_comes_in_many_short_rows_and_in_few_long_ones() -> None:
    short, long = GPU.shapes(8_192)
    assert (len(short), len(long)) == (51, 5)
    assert sum(row.squares for row in long) > 5 * sum(row.squares for row in short)
    assert len(GPU.shapes(160)) == 1  # one row is both


def test_rows_fit_where_they_are_seated() -> None:
    small = Sweep(tokens=8_192, rows=3, longest=512, budget_s=3.0)
    assert max(small.sizes()) == 3 * 2 * (512 - 40)
    for size in small.sizes():
        for rows in small.shapes(size):
            assert len(rows) <= 3
            assert all(row.cond_len <= 512 for row in rows)


def test_one_row_at_a_time_is_measured_one_row_at_a_time() -> None:
    alone = Sweep(tokens=8_192, rows=1, longest=40_960, budget_s=3.0)
    assert all([len(rows) for rows in alone.shapes(size)] == [1] for size in alone.sizes())
    assert max(row.tokens for rows in GPU.shapes(8_192) for row in rows) <= LONG


def test_a_large_device_is_measured_at_every_size_and_its_curve_found() -> None:
    device = Device(CURVE)
    samples = GPU.run(device, device.clock)
    assert sorted({sample.tokens for sample in samples}) == [32 * 2**n for n in range(9)]
    assert device.now < GPU.budget_s
    found = fit(samples)
    for tokens, length in ((300, 150), (3_000, 150), (3_000, 900), (8_000, 900)):
        expected = CURVE.seconds(tokens, tokens * length)
        assert found.seconds(tokens, tokens * length) == pytest.approx(expected, rel=0.01)
    assert found.per_square_s == pytest.approx(CURVE.per_square_s, rel=0.05)


def test_a_hiccup_in_a_block_is_not_what_is_found() -> None:
    device = Device(CURVE, hiccup=9)
    found = fit(GPU.run(device, device.clock))
    assert device.calls >= 5 * 9
    assert found.seconds(3_000, 3_000 * 150) == pytest.approx(CURVE.seconds(3_000, 3_000 * 150), rel=0.01)


def test_a_slow_device_is_measured_at_two_sizes_and_no_longer() -> None:
    """As the published sizes on two cores: 0.4 s for 32 tokens, 0.65 s for 64."""
    device = Device(StepCost(0.16, 7.7e-3))
    samples = Sweep(tokens=8_192, rows=256, longest=40_960, budget_s=1.5).run(device, device.clock)
    assert [sample.tokens for sample in samples] == [32, 64]
    assert device.now < 2.0
    assert fit(samples).seconds(300) == pytest.approx(0.16 + 7.7e-3 * 300, rel=0.01)


def test_a_quick_device_stays_within_its_budget() -> None:
    device = Device(StepCost(2e-3, 5e-5))
    sweep = Sweep(tokens=8_192, rows=256, longest=40_960, budget_s=1.5)
    sweep.run(device, device.clock)
    assert device.now < 1.1 * sweep.budget_s
