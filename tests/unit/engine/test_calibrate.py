"""Where an engine's curve comes from: measured, kept, or a default; and that it is the right one."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from polychoir.engine.calibrate import Calibration, calibrated, lanes_of
from polychoir.engine.cost import ASSUMED, StepCost, assumed
from polychoir.engine.engine import LocalEngine
from polychoir.engine.plan import limits_for
from polychoir.models.registry import open_model
from polychoir.types import Device, Measured, ModelInfo, ModelOptions, StepSample
from support.engines import CountingRunner

INFO = ModelInfo("counting", "iterative", 24_000, ("*",), source="/models/a", fingerprint="one")
SHOT = replace(INFO, kind="one_shot", max_rows=1, default_concurrent_plans=3)
TRUE = StepCost(1e-3, 2e-6)
MEASURED = Measured(tuple(StepSample(n, 0, TRUE.seconds(n)) for n in (64, 512, 4_096)), decode_s=0.25)


class Measuring(CountingRunner):
    """Counts how often it was measured."""

    def __init__(self, **fields):
        super().__init__(**({"measured": MEASURED} | fields))
        self.times = 0

    def measure(self):
        self.times += 1
        return self.measured


def get(runner, how, info=INFO):
    return calibrated(runner, info, limits_for(info), how)


def test_it_is_measured_once_and_then_kept(tmp_path, caplog):
    caplog.set_level("INFO")
    how = Calibration(str(tmp_path / "calibration"))
    runner = Measuring(step_tokens=2_048)
    first, second = get(runner, how), get(runner, how)
    assert runner.times == 1
    assert (first.origin, second.origin) == ("measured", "kept")
    assert second.cost == first.cost
    assert (second.measured_at, second.step_tokens) == (first.measured_at, 2_048)
    assert first.measured_at == pytest.approx(time.time(), abs=60)
    assert first.cost.seconds(1_000) == pytest.approx(TRUE.seconds(1_000), rel=1e-6)
    assert first.cost.decode_s == 0.25
    measured, kept = caplog.messages
    assert "counting: step costs measured in 0.0 s: 1 ms and 2 us a token" in measured
    assert "counting: step costs as measured on 20" in kept


def test_recalibration_measures_what_is_older_than_its_start_and_nothing_twice(tmp_path):
    folder = str(tmp_path)
    runner = Measuring()
    get(runner, Calibration(folder))
    again = Calibration(folder, not_before=time.time())
    assert get(runner, again).origin == "measured"
    assert runner.times == 2
    assert get(runner, again).origin == "kept"  # the neighbour on an equal device, or the worker's successor
    assert runner.times == 2


@pytest.mark.parametrize(
    ("info", "device"),
    [
        (replace(INFO, fingerprint="two"), None),
        (replace(INFO, source="/models/b"), None),
        (INFO, Device("cpu", "another processor")),
    ],
)
def test_another_model_or_device_is_measured_for_itself(tmp_path, info, device):
    how = Calibration(str(tmp_path))
    get(Measuring(), how)
    other = Measuring(**({"device": device} if device else {}))
    assert get(other, how, info).origin == "measured"
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_a_damaged_file_is_measured_again_and_mended(tmp_path, caplog):
    how = Calibration(str(tmp_path))
    get(Measuring(), how)
    (file,) = tmp_path.glob("*.json")
    file.write_text("{")
    assert get(Measuring(), how).origin == "measured"
    assert "cannot be used as a calibration" in caplog.text
    assert get(Measuring(), how).origin == "kept"


def test_without_a_folder_every_start_measures():
    runner = Measuring()
    assert [get(runner, Calibration()).origin for _ in range(2)] == ["measured", "measured"]


def test_nobody_asked_for_it_nothing_is_measured():
    runner = Measuring()
    assert (get(runner, None).origin, runner.times) == ("default", 0)


@pytest.mark.parametrize(
    ("info", "kind", "cost"),
    [
        (INFO, "large_gpu", ASSUMED),
        (INFO, "small_gpu", assumed("iterative", "small_gpu")),
        (INFO, "cpu", assumed("iterative", "cpu")),
        (SHOT, "cpu", assumed("one_shot", "cpu", lanes=3)),
    ],
)
@pytest.mark.parametrize("samples", [(), (StepSample(10, 0, 1e-3),), (StepSample(1, 0, 0.0),) * 2])
def test_what_cannot_be_measured_has_the_default_of_its_class(tmp_path, caplog, info, kind, cost, samples):
    runner = Measuring(measured=Measured(samples), device=Device(kind, "it"))
    curve = get(runner, Calibration(str(tmp_path)), info)
    assert (curve.origin, curve.cost) == ("default", cost)
    assert "counting: step costs were not measured" in caplog.text
    assert not list(tmp_path.iterdir())


def test_the_classes_are_in_order_of_speed():
    paces = [assumed("iterative", kind).pace(1_000) for kind in ("large_gpu", "small_gpu", "cpu")]
    assert paces == sorted(paces, reverse=True)


def test_lanes_are_threads_of_a_one_shot_model_alone(tmp_path):
    assert lanes_of(INFO, limits_for(INFO)) == 1
    how = Calibration(str(tmp_path))
    assert get(Measuring(), how, SHOT).cost.lanes == 3
    fewer = calibrated(Measuring(), SHOT, limits_for(SHOT, max_concurrent_plans=2), how)
    assert (fewer.origin, fewer.cost.lanes) == ("kept", 2)


@pytest.mark.parametrize(("step_ms", "us_per_token"), [(2.0, 4.0), (0.5, 20.0)])
def test_the_fake_models_settings_are_found(step_ms, us_per_token):
    """Within a fifth: a sleep takes some tens of microseconds longer than it should, on a quiet machine."""
    extra = {"fake_step_ms": step_ms, "fake_us_per_token": us_per_token}
    model = open_model("fake", ModelOptions(extra=extra))
    runner = model.load(lambda: None)
    curve = get(runner, Calibration(), model.info)
    runner.close()
    assert curve.origin == "measured"
    assert curve.cost.host_s == pytest.approx(step_ms / 1e3, rel=0.2, abs=2e-4)
    assert curve.cost.per_token_s == pytest.approx(us_per_token / 1e6, rel=0.2)


async def test_a_model_that_cannot_be_measured_does_not_load(tmp_path: Path):
    class Breaking(Measuring):
        def measure(self):
            raise RuntimeError("the device is gone")

    class Model:
        info, frontend = INFO, None

        def load(self, wake):
            return Breaking()

    engine = LocalEngine(Model(), limits_for(INFO), calibration=Calibration())
    engine.start()
    with pytest.raises(RuntimeError, match="the device is gone"):
        await engine.wait_ready()
    assert engine.status == "failed"
