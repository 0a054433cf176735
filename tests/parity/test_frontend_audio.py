"""Preparing reference clips and finishing chunks: sample by sample against the published package."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polychoir.models.omnivoice.postprocess import finish
from polychoir.models.omnivoice.reference import prepare_clip
from polychoir.models.omnivoice.row import Shaping
from polychoir.models.omnivoice.silence import Keep, cut_at_pause, remove_silence

from . import oracle as published

RATE = 24_000


def _speech(seed: int) -> np.ndarray:
    """Bursts of noise and tone between silences of random length and depth; odd lengths on purpose."""
    draw = np.random.default_rng(seed)
    parts = []
    for _ in range(int(draw.integers(1, 9))):
        size = int(draw.integers(1, 40_000))
        level = 10 ** draw.uniform(-3.2, -0.1)
        tone = np.sin(2 * np.pi * draw.uniform(80, 400) * np.arange(size) / RATE)
        parts.append(level * (tone + 0.3 * draw.standard_normal(size)))
        parts.append(10 ** draw.uniform(-6, -2.2) * draw.standard_normal(int(draw.integers(0, 60_000))))
    return np.concatenate(parts).clip(-1.2, 1.2).astype(np.float32)


CLIPS = {f"speech-{seed}": _speech(seed) for seed in range(40)} | {
    "silence": np.zeros(48_000, np.float32),
    "nearly-silent": np.full(30_011, 2e-4, np.float32),
    "at-the-threshold": np.tile(np.array([103.4, -104.0], np.float32) / 32768, 40_000),
    "loud": np.sign(np.random.default_rng(1).standard_normal(36_005)).astype(np.float32),
    "short": 0.3 * np.ones(7, np.float32),
    "one-ms-less": 0.3 * np.ones(24 * 200 - 13, np.float32),
}


@pytest.fixture(scope="module")
def tools() -> Any:
    published.package()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from omnivoice.utils import audio
    return audio


@pytest.mark.parametrize("keep", [Keep(200, 100, 200), Keep(500, 100, 100), Keep(300, 0, 40)], ids=str)
@pytest.mark.parametrize("name", CLIPS)
def test_silence_is_removed_alike(tools: Any, name: str, keep: Keep) -> None:
    clip = CLIPS[name]
    expected = tools.remove_silence(clip[None], RATE, keep.pause_ms, keep.lead_ms, keep.trail_ms)[0]
    np.testing.assert_array_equal(remove_silence(clip, keep), expected)


@pytest.mark.parametrize("seed", range(12))
def test_long_clips_are_cut_alike(tools: Any, seed: int) -> None:
    clip = np.concatenate([_speech(100 * seed + i) for i in range(8)])
    least = 3.0 if seed % 2 else 9.0
    expected = tools.trim_long_audio(clip[None], RATE, 15.0, least, 20.0)[0]
    np.testing.assert_array_equal(cut_at_pause(clip, over_s=20.0, most_s=15.0, least_s=least), expected)


@pytest.mark.parametrize("preprocess", [True, False])
@pytest.mark.parametrize("gain", [1.0, 0.05])
def test_clips_are_prepared_alike(oracle: Any, monkeypatch: Any, gain: float, preprocess: bool) -> None:
    """Everything up to the codec's input, for loud and quiet clips; encoding itself is tested elsewhere."""
    heard: list[np.ndarray] = []

    def listen(wave: Any) -> Any:
        heard.append(wave[0, 0].numpy())
        return SimpleNamespace(audio_codes=wave.new_zeros(1, 8, wave.shape[-1] // 960))

    monkeypatch.setattr(oracle.audio_tokenizer, "encode", listen)
    for seed in range(12):
        clip = np.concatenate([_speech(seed), _speech(seed + 50)]) * np.float32(gain)
        theirs = published.clone_prompt(oracle, clip, "Some words.", preprocess)
        ours = prepare_clip(clip, transcript="Some words.", preprocess=preprocess)
        np.testing.assert_array_equal(ours.samples, heard[-1])
        assert ours.rms == theirs.ref_rms


def test_frames_are_those_the_codec_gives(oracle: Any) -> None:
    clip = np.random.default_rng(4).normal(0, 0.1, 24_000 * 3 + 777).astype(np.float32)
    theirs = published.clone_prompt(oracle, clip, "Some words.")
    assert prepare_clip(clip, transcript="Some words.").frames == theirs.ref_audio_tokens.shape[1]


@pytest.mark.parametrize("postprocess", [True, False])
@pytest.mark.parametrize("ref_rms", [None, 0.03, 0.1, 0.4])
@pytest.mark.parametrize(("edge", "fade"), [(0.1, 0.1), (0.0, 0.3), (0.25, 0.0)])
def test_chunks_are_finished_alike(
    oracle: Any, postprocess: bool, ref_rms: float | None, edge: float, fade: float
) -> None:
    config = published.package().OmniVoiceGenerationConfig(
        postprocess_output=postprocess, pad_duration=edge, fade_duration=fade
    )
    shaping = Shaping(postprocess, ref_rms, lead_s=edge, trail_s=edge, fade_s=fade)
    for name, clip in CLIPS.items():
        if postprocess and remove_silence(clip, Keep(500, 100, 100)).size == 0:
            continue  # the package divides by the peak of nothing here
        expected = oracle._post_process_audio(clip[None], ref_rms, config)[0]
        np.testing.assert_allclose(finish(clip, shaping), expected, atol=1e-6, err_msg=name)
