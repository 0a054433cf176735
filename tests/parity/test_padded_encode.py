"""The encoder with silence behind the clip beside transformers' own without it: the same codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from polychoir.models.omnivoice import encoder as encoder_module
from polychoir.models.omnivoice.codec import Codec
from polychoir.models.omnivoice.encoder import PaddedEncoder, can_pad
from tests.parity.driving import make_codec

SAMPLES = 960


@pytest.fixture(scope="module")
def codec(checkpoint_dir: Path) -> Codec:
    return make_codec(checkpoint_dir)


def clip(frames: int) -> np.ndarray:
    return np.random.default_rng(frames).standard_normal(SAMPLES * frames).astype(np.float32) * 0.1


def padded_codes(codec: Codec, samples: np.ndarray, frames: int) -> np.ndarray:
    wave = np.zeros(SAMPLES * frames, np.float32)
    wave[: samples.size] = samples
    own = samples.size // SAMPLES
    codes = PaddedEncoder(codec._model).forward(torch.from_numpy(wave)[None, None], torch.tensor(own))
    return codes[:, :own].numpy()


@pytest.mark.parametrize("padding", [0, 1, 14, 40])
@pytest.mark.parametrize("frames", [13, 25, 26, 61])
def test_padding_changes_no_code(codec: Codec, frames: int, padding: int) -> None:
    samples = clip(frames)
    assert (padded_codes(codec, samples, frames + padding) == codec.encode(samples)).all()


@pytest.mark.parametrize("part", ["_kept", "_norm_over_time"])
def test_what_keeps_the_padding_out_is_needed(
    codec: Codec, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = clip(25)
    expected = codec.encode(samples)
    if part == "_kept":
        monkeypatch.setattr(encoder_module, part, lambda x, length: x)
    else:
        whole = encoder_module._norm_over_time
        monkeypatch.setattr(
            encoder_module, part, lambda x, length, norm: whole(x, torch.tensor(x.shape[-1]), norm)
        )
    assert (padded_codes(codec, samples, 65) != expected).any()


def test_another_make_of_the_semantic_model_is_left_alone(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert can_pad(codec._model)
    monkeypatch.setattr(codec._model.config.semantic_model_config, "do_stable_layer_norm", True)
    assert not can_pad(codec._model)
