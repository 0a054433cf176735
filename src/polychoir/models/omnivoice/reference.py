"""A recording to clone from, made ready for the codec: level, silences, whole frames.

numpy only, float32 mono at 24 kHz. Decoding of containers and resampling happen before.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from polychoir.errors import InvalidAudio
from polychoir.models.omnivoice.row import FRAME_SAMPLES, SAMPLE_RATE
from polychoir.models.omnivoice.silence import Keep, cut_at_pause, remove_silence

if TYPE_CHECKING:
    from polychoir.types import Samples

SHORTEST_S = 0.5
"""Least speech that is left to clone from; below it the model has nothing to hold on to."""
QUIET_RMS = 0.1
"""Clips below this level are raised to it, and what is made from them is lowered again."""

_KEEP = Keep(pause_ms=200, lead_ms=100, trail_ms=200)
_SILENT_RMS = 1e-5


@dataclass(frozen=True, slots=True)
class PreparedClip:
    """samples: whole frames, ready to encode. rms: level of the clip as it came."""

    samples: Samples
    rms: float

    @property
    def frames(self) -> int:
        return self.samples.size // FRAME_SAMPLES

    def to_bytes(self) -> bytes:
        """Little-endian float32, as a row carries it."""
        return self.samples.astype("<f4").tobytes()

    def key(self) -> str:
        """Hash of the content, for caches of encoded prompts."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def prepare_clip(samples: Samples, *, transcript: str | None, preprocess: bool = True) -> PreparedClip:
    """Level a clip, take its silences out if `preprocess`, and cut it to whole frames.

    Without a transcript a long clip is shortened at a pause; with one it is left whole, since the words have
    to match. Raises InvalidAudio for a clip that is silent or too short; the
    decoder has refused one that is too long.
    """
    rms = float(np.sqrt(np.mean(samples**2))) if samples.size else 0.0
    if not np.isfinite(rms) or rms < _SILENT_RMS:
        raise InvalidAudio("ref_audio is silent or empty")
    if rms < QUIET_RMS:
        samples = samples * QUIET_RMS / rms
    if preprocess:
        if transcript is None:
            samples = cut_at_pause(samples, over_s=20.0, most_s=15.0, least_s=3.0)
        samples = remove_silence(samples, _KEEP)
    if samples.size < SHORTEST_S * SAMPLE_RATE:
        raise InvalidAudio(
            f"ref_audio holds {samples.size / SAMPLE_RATE:.1f} s of speech once silences are removed; "
            f"at least {SHORTEST_S:g} s are needed, 3 to 10 s are best"
        )
    whole = samples.size - samples.size % FRAME_SAMPLES
    return PreparedClip(np.ascontiguousarray(samples[:whole], dtype=np.float32), rms)
