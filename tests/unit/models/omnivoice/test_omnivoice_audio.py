from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polychoir.errors import InvalidAudio
from polychoir.models.omnivoice.postprocess import finish
from polychoir.models.omnivoice.reference import prepare_clip
from polychoir.models.omnivoice.row import FRAME_SAMPLES, SAMPLE_RATE, Shaping
from polychoir.models.omnivoice.silence import Keep, remove_silence


def _noise(seconds: float, level: float = 0.1) -> np.ndarray:
    return np.random.default_rng(0).normal(0, level, int(seconds * SAMPLE_RATE)).astype(np.float32)


@pytest.mark.parametrize(
    "clip", [np.zeros(0, np.float32), np.zeros(48_000, np.float32), np.full(48_000, 1e-6, np.float32)]
)
def test_silent_clips_are_refused(clip: np.ndarray) -> None:
    with pytest.raises(InvalidAudio, match="silent") as caught:
        prepare_clip(clip, transcript="words")
    assert caught.value.param == "ref_audio"


def test_short_clips_are_refused_by_what_is_left_of_them() -> None:
    silence = np.zeros(5 * SAMPLE_RATE, np.float32)
    with pytest.raises(InvalidAudio, match=r"at least 0\.5 s"):
        prepare_clip(np.concatenate([silence, _noise(0.15), silence]), transcript="words")


def test_a_clip_is_whole_frames_at_a_known_level() -> None:
    clip = prepare_clip(_noise(2.013, 0.01), transcript="words")
    assert clip.samples.size == clip.frames * FRAME_SAMPLES
    assert clip.rms == pytest.approx(0.01, rel=0.02)
    assert float(np.sqrt(np.mean(clip.samples**2))) == pytest.approx(0.1, rel=0.02)
    assert len(clip.to_bytes()) == clip.samples.size * 4
    assert clip.key() != prepare_clip(_noise(2.2, 0.01), transcript="words").key()


def test_only_a_clip_without_transcript_is_shortened() -> None:
    clip = np.concatenate([_noise(9), np.zeros(6_000, np.float32), _noise(12)])
    assert prepare_clip(clip, transcript="words").frames > 20 * 25
    assert prepare_clip(clip, transcript=None).frames < 10 * 25


@given(
    st.lists(st.tuples(st.integers(0, 9_000), st.sampled_from([0.0, 1e-3, 4e-3, 0.2])), max_size=8),
    st.sampled_from([Keep(200, 100, 200), Keep(500, 100, 100)]),
)
def test_removing_silence_only_removes(parts: list[tuple[int, float]], keep: Keep) -> None:
    clip = np.concatenate([np.zeros(0), *(level * np.ones(size) for size, level in parts)]).astype(np.float32)
    left = remove_silence(clip, keep)
    assert left.size <= clip.size + 24
    assert not left.size or set(np.unique(left)) <= {0.0, *np.unique((clip * 32768).astype(np.int16) / 32768)}


def test_finished_chunks_are_padded_and_faded() -> None:
    audio = finish(_noise(1.0), Shaping(lead_s=0.1, trail_s=0.05))
    assert not audio[:2400].any() and not audio[-1200:].any()
    assert np.abs(audio).max() <= 0.5
    assert audio[2400] == 0 and abs(audio[2400 + 2399]) > 0


def test_a_silent_chunk_gives_nothing() -> None:
    assert finish(np.zeros(24_000, np.float32), Shaping()).size == 0
    assert finish(np.zeros(24_000, np.float32), Shaping(postprocess_output=False)).size == 24_000 + 4_800


def test_a_quiet_reference_makes_a_quiet_answer() -> None:
    wave = _noise(1.0)
    plain = finish(wave, Shaping(postprocess_output=False, ref_rms=0.3))
    quiet = finish(wave, Shaping(postprocess_output=False, ref_rms=0.02))
    np.testing.assert_allclose(quiet, plain * 0.2, atol=1e-6)
