"""Samples beside those of the package's own `generate`, from text to waveform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.parity.driving import (
    Case,
    make_codec,
    make_network,
    open_model,
)
from tests.support.driving import Driver, run_together

QUIET = {"position_temperature": 0.0, "num_step": 8}
CASES = {
    "auto": Case(config=QUIET),
    "auto raw": Case(config={**QUIET, "postprocess_output": False}),
    "design": Case(instruct="male, low pitch", language="en", config=QUIET),
    "clone": Case(clone=True, config=QUIET),
    "clone raw": Case(clone=True, config={**QUIET, "postprocess_output": False}),
}


@pytest.fixture(scope="module")
def runner(checkpoint_dir: Path) -> Driver:
    return Driver(make_network(checkpoint_dir, torch.float64), make_codec(checkpoint_dir))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_waveform_equals_the_package(checkpoint_dir: Path, oracle64: Any, runner: Driver, case: Case) -> None:
    (output,) = run_together(runner, [case.chunk(open_model(checkpoint_dir))])
    (theirs,) = oracle64.generate(**case.task(oracle64), **case.config)
    assert output.error is None
    assert output.samples is not None
    assert output.samples.dtype == np.float32
    assert output.samples.shape == theirs.shape
    assert np.abs(theirs).max() > 0.05
    assert np.abs(output.samples - theirs).max() < 1e-3
