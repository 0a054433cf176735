"""The codec beside the published package's, and its resampler beside torchaudio's stored outputs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polychoir.errors import ModelLoadError
from polychoir.models.omnivoice.codec import Codec
from polychoir.models.omnivoice.resample import resample
from tests.parity.driving import CLIP_TEXT, Case, clip_samples, make_codec, open_model
from tests.parity.oracle import clone_prompt
from tests.support.torchaudio_shim import windowed_sinc

DECODE_TOLERANCE = 1e-4
"""Float32 convolutions of another batch size sum in another order."""
VECTORS = json.loads((Path(__file__).parent.parent / "data" / "resample_vectors.json").read_text())["cases"]


@pytest.fixture(scope="module")
def codec(checkpoint_dir: Path) -> Codec:
    return make_codec(checkpoint_dir)


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: f"{case['src']}-{case['dst']}")
def test_resampler_equals_torchaudio(case: dict[str, Any]) -> None:
    out = resample(torch.tensor(case["input"], dtype=torch.float64), case["src"], case["dst"])
    assert out.shape == (len(case["output"]),)
    np.testing.assert_allclose(out.numpy(), case["output"], atol=1e-8)


@pytest.mark.parametrize(("src", "dst"), [(24_000, 16_000), (16_000, 24_000), (44_100, 24_000)])
def test_resampler_equals_the_formula(src: int, dst: int) -> None:
    wave = np.random.default_rng(1).standard_normal((2, 1, 5_003))
    ours = resample(torch.from_numpy(wave), src, dst).numpy()
    np.testing.assert_allclose(ours, windowed_sinc(wave, src, dst), atol=1e-11)


@pytest.mark.parametrize("frames", [25, 26, 61])
def test_reference_codes_equal_the_package(codec: Codec, oracle: Any, frames: int) -> None:
    wave = np.random.default_rng(frames).standard_normal(960 * frames).astype(np.float32) * 0.1
    with torch.inference_mode():
        theirs = oracle.audio_tokenizer.encode(torch.from_numpy(wave)[None, None]).audio_codes[0]
    (ours,) = codec.encode([np.concatenate((wave, wave[:100]))])
    assert ours.shape == (8, frames)
    assert (ours == theirs.numpy()).all()


def test_prepared_clip_has_the_packages_codes(codec: Codec, oracle: Any, checkpoint_dir: Path) -> None:
    """From the uploaded file to codes: level, silences, whole frames, encoder."""
    row = Case(clone=True).chunk(open_model(checkpoint_dir)).payload
    (ours,) = codec.encode([np.frombuffer(row.clip, "<f4")])
    theirs = clone_prompt(oracle, clip_samples(), CLIP_TEXT)
    assert (ours == theirs.ref_audio_tokens.numpy()).all()
    assert row.ref_frames == ours.shape[1]
    assert row.shaping.ref_rms == pytest.approx(theirs.ref_rms, rel=1e-6)


def test_decoded_together_as_alone_and_as_the_package(codec: Codec, oracle: Any) -> None:
    draw = np.random.default_rng(5)
    items = [draw.integers(0, 1_024, (8, frames)).astype(np.int16) for frames in (7, 20, 7, 1, 20)]
    together = codec.decode(items)
    for codes, wave in zip(items, together, strict=True):
        assert wave.shape == (960 * codes.shape[1],)
        with torch.inference_mode():
            theirs = oracle.audio_tokenizer.decode(torch.from_numpy(codes)[None].long()).audio_values[0, 0]
        np.testing.assert_allclose(wave, codec.decode([codes])[0], atol=DECODE_TOLERANCE)
        np.testing.assert_allclose(wave, theirs.numpy(), atol=DECODE_TOLERANCE)


def test_needs_no_torchaudio_and_leaves_none_behind(checkpoint_dir: Path) -> None:
    script = (
        "import sys, torch, pathlib, transformers\n"
        "from transformers.models.higgs_audio_v2_tokenizer import HiggsAudioV2TokenizerConfig\n"
        "from polychoir.models.omnivoice.codec import Codec\n"
        "Codec(pathlib.Path(sys.argv[1]), torch.device('cpu'))\n"
        "from importlib.util import find_spec\n"
        "sys.exit('torchaudio' in sys.modules and find_spec('torchaudio') is None)\n"
    )
    folder = str(checkpoint_dir / "audio_tokenizer")
    subprocess.run([sys.executable, "-c", script, folder], check=True, timeout=120, capture_output=True)


def test_weights_that_do_not_fit_are_a_load_error(tmp_path: Path, checkpoint_dir: Path) -> None:
    (tmp_path / "config.json").write_text((checkpoint_dir / "audio_tokenizer" / "config.json").read_text())
    with pytest.raises(ModelLoadError, match="audio tokenizer cannot be loaded"):
        Codec(tmp_path, torch.device("cpu"))


def test_on_a_cpu_company_changes_no_bit(codec: Codec) -> None:
    draw = np.random.default_rng(3)
    items = [draw.integers(0, 1_000, (8, 40)).astype(np.int16) for _ in range(5)]
    for together, item in zip(codec.decode(items), items, strict=True):
        np.testing.assert_array_equal(together, codec.decode([item])[0])
    clips = [draw.standard_normal(9_600).astype(np.float32) * 0.1 for _ in range(3)]
    for codes, samples in zip(codec.encode(clips), clips, strict=True):
        np.testing.assert_array_equal(codes, codec.encode([samples])[0])
