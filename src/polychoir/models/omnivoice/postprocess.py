"""From a decoded chunk to one that can be played: silences, level, fades, silence around it.

numpy only, float32 mono at 24 kHz; called on the device side, beside the steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polychoir.models.omnivoice.reference import QUIET_RMS
from polychoir.models.omnivoice.row import SAMPLE_RATE, Shaping
from polychoir.models.omnivoice.silence import Keep, remove_silence

if TYPE_CHECKING:
    from polychoir.types import Samples

_KEEP = Keep(pause_ms=500, lead_ms=100, trail_ms=100)
_PEAK = 0.5
_NOTHING = 1e-6


def finish(samples: Samples, shaping: Shaping) -> Samples:
    """The chunk as it is heard. Empty if it was nothing but silence and silence is removed."""
    if shaping.postprocess_output:
        samples = remove_silence(samples, _KEEP)
    if samples.size == 0:
        return samples
    lead, trail = int(shaping.lead_s * SAMPLE_RATE), int(shaping.trail_s * SAMPLE_RATE)
    out = np.zeros(lead + samples.size + trail, np.float32)
    heard = out[lead : lead + samples.size]
    _level(samples, shaping.ref_rms, heard)
    _fade(heard, shaping.fade_s)
    return out


def _level(samples: Samples, ref_rms: float | None, out: Samples) -> None:
    """A quiet reference was raised before it was encoded, so what was made from it is lowered again; a voice
    without a reference is brought to half of full scale."""
    if ref_rms is None:
        peak = max(samples.max(), -samples.min())
        np.divide(samples, peak / _PEAK if peak > _NOTHING else np.float32(1), out=out)
    elif ref_rms < QUIET_RMS:
        np.multiply(samples, np.float32(ref_rms), out=out)
        np.divide(out, np.float32(QUIET_RMS), out=out)
    else:
        out[:] = samples


def _fade(samples: Samples, seconds: float) -> None:
    length = min(int(seconds * SAMPLE_RATE), samples.size // 2)
    if length:
        samples[:length] *= np.linspace(0, 1, length, dtype=np.float32)
        samples[-length:] *= np.linspace(1, 0, length, dtype=np.float32)
