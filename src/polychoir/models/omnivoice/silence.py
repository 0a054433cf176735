"""Finding and removing silence the way the model's own tools do, in numpy.

The published model was trained and is used with pydub's rules, so its answers are kept: 16-bit samples,
positions in whole milliseconds, loudness as the root mean square of a window cut to an integer, a window
every 10 ms. Here each window's energy comes from one running sum instead of a slice and a loop.

Times are milliseconds, samples float32 mono at 24 kHz.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from polychoir.models.omnivoice.row import SAMPLE_RATE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polychoir.types import Samples

    Pcm = NDArray[np.int16]

_PER_MS = SAMPLE_RATE // 1000
_FULL_SCALE = 32_768.0
_SEEK_MS = 10
_EDGE_WINDOW_MS = 10
SILENCE_DB = -50.0


@dataclass(frozen=True, slots=True)
class Keep:
    """How much silence stays: longer pauses lose their middle, longer edges their outside."""

    pause_ms: int
    lead_ms: int
    trail_ms: int


def remove_silence(samples: Samples, keep: Keep) -> Samples:
    """Shorten long pauses and both edges. Empty if there is nothing but silence."""
    pcm = _quantise(samples)
    spoken = _ranges_around_speech(pcm, keep.pause_ms)
    joined = np.concatenate([_cut(pcm, start, end) for start, end in spoken]) if spoken else pcm[:0]
    return _restore(_trim_edges(joined, keep))


def cut_at_pause(samples: Samples, *, over_s: float, most_s: float, least_s: float) -> Samples:
    """Shorten a clip of more than `over_s` seconds to at most `most_s`, before the last speech that begins
    by then, or at `most_s` if that would leave less than `least_s`."""
    if samples.shape[-1] / SAMPLE_RATE <= over_s:
        return samples
    pcm = _quantise(samples)
    speech = _speech(pcm, window_ms=100, threshold_db=-40.0)
    if not speech:
        return samples
    most, least = int(most_s * 1000), int(least_s * 1000)
    cut = max((start for start, _ in speech if start <= most), default=0)
    return _restore(_cut(pcm, 0, cut if cut >= least else min(most, _length_ms(pcm))))


def _ranges_around_speech(pcm: Pcm, pause_ms: int) -> list[tuple[int, int]]:
    """Speech with up to `pause_ms` of silence on either side; what two neighbours both claim is shared."""
    speech = _speech(pcm, window_ms=pause_ms, threshold_db=SILENCE_DB)
    starts = [start - pause_ms for start, _ in speech]
    ends = [end + pause_ms for _, end in speech]
    for i in range(len(speech) - 1):
        if starts[i + 1] < ends[i]:
            ends[i] = starts[i + 1] = (ends[i] + starts[i + 1]) // 2
    length = _length_ms(pcm)
    return [(max(start, 0), min(end, length)) for start, end in zip(starts, ends, strict=True)]


def _speech(pcm: Pcm, *, window_ms: int, threshold_db: float) -> list[tuple[int, int]]:
    """Stretches between silences of at least one window, in ms."""
    length = _length_ms(pcm)
    silences = _silences(pcm, window_ms, threshold_db)
    edges = [0, *(edge for silence in silences for edge in silence), length]
    speech = list(zip(edges[::2], edges[1::2], strict=True))
    return [(start, end) for start, end in speech if (start, end) != (0, 0) and start != length]


def _silences(pcm: Pcm, window_ms: int, threshold_db: float) -> list[tuple[int, int]]:
    last = _length_ms(pcm) - window_ms
    if last < 0:
        return []
    starts = np.unique(np.append(np.arange(0, last + 1, _SEEK_MS), last))
    quiet = starts[_rms(pcm, starts, window_ms) <= _amplitude(threshold_db)]
    if quiet.size == 0:
        return []
    # Neighbouring windows are one silence, and so are overlapping ones with a blip between them.
    steps = np.diff(quiet)
    breaks = np.flatnonzero((steps != _SEEK_MS) & (steps > window_ms))
    firsts = quiet[np.concatenate([[0], breaks + 1])]
    lasts = quiet[np.concatenate([breaks, [quiet.size - 1]])]
    return [(int(first), int(end) + window_ms) for first, end in zip(firsts, lasts, strict=True)]


def _trim_edges(pcm: Pcm, keep: Keep) -> Pcm:
    """Cut the front, then the same from behind: the end of the first cut is a whole millisecond."""
    front = max(0, _leading_silence(pcm) - keep.lead_ms)
    pcm = _cut(pcm, front, _length_ms(pcm))[::-1]
    back = max(0, _leading_silence(pcm) - keep.trail_ms)
    return _cut(pcm, back, _length_ms(pcm))[::-1]


def _leading_silence(pcm: Pcm) -> int:
    length = _length_ms(pcm)
    starts = np.arange(0, length, _EDGE_WINDOW_MS)
    loud = np.flatnonzero(_rms(pcm, starts, _EDGE_WINDOW_MS) >= _amplitude(SILENCE_DB))
    return int(starts[loud[0]]) if loud.size else length


def _rms(pcm: Pcm, starts: NDArray[np.int64], window_ms: int) -> NDArray[np.int64]:
    """Integer root mean square of the windows that begin at `starts`; the part past the end does not count
    but for the last millisecond, which is filled up with zeros."""
    energy = np.concatenate([[0], np.cumsum(pcm.astype(np.int64) ** 2)])
    length = _length_ms(pcm)
    first = starts * _PER_MS
    end = np.minimum(starts + window_ms, length) * _PER_MS
    total = energy[np.minimum(end, pcm.size)] - energy[np.minimum(first, pcm.size)]
    mean: NDArray[np.float64] = total / np.maximum(end - first, 1)
    return np.sqrt(mean).astype(np.int64)


def _cut(pcm: Pcm, start_ms: int, end_ms: int) -> Pcm:
    """Samples between two times; a last millisecond that is not all there is filled up with zeros."""
    piece = pcm[start_ms * _PER_MS : end_ms * _PER_MS]
    missing = (end_ms - start_ms) * _PER_MS - piece.size
    return np.concatenate([piece, np.zeros(missing, np.int16)]) if piece.size and missing > 0 else piece


def _length_ms(pcm: Pcm) -> int:
    return round(1000 * (pcm.size / SAMPLE_RATE))


def _amplitude(decibel: float) -> float:
    return float(10 ** (decibel / 20)) * _FULL_SCALE


def _quantise(samples: Samples) -> Pcm:
    return (samples * _FULL_SCALE).clip(-32_768, 32_767).astype(np.int16)


def _restore(pcm: Pcm) -> Samples:
    return pcm.astype(np.float32) / np.float32(_FULL_SCALE)
