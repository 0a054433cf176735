"""Text as tones and back: the fake model's voice.

Every UTF-8 byte is two tones of 20 ms, one for each half, so that a test can read what a waveform says
after any codec. Sixteen tones from 600 to 5,100 Hz lie inside what every codec keeps.
"""

from __future__ import annotations

import numpy as np

from polychoir.types import Samples

RATE = 24_000
TONE_S = 0.02
BASE_HZ, STEP_HZ = 600, 300


def say(text: str, seed: int, speed: float = 1.0) -> Samples:
    """The waveform of a text; the seed only sets its level, so other seeds give other samples."""
    halves = [half for byte in text.encode() for half in (byte >> 4, byte & 15)]
    t = np.arange(_tone_samples(speed)) / RATE
    level = 0.3 + 0.2 * np.random.default_rng(seed).random()
    tones = [level * np.sin(2 * np.pi * (BASE_HZ + STEP_HZ * half) * t) for half in halves]
    return np.concatenate(tones).astype(np.float32)


def duration_s(text: str, speed: float = 1.0) -> float:
    """Seconds that `say` takes."""
    return 2 * len(text.encode()) * _tone_samples(speed) / RATE


def heard(samples: Samples, speed: float = 1.0) -> str:
    """Read a waveform of `say` back into its text. A codec may have cut or padded up to half a tone."""
    size = _tone_samples(speed)
    tones = round(len(samples) / size) // 2 * 2
    framed = np.pad(samples, (0, size))[: tones * size].reshape(tones, size)
    peaks = np.abs(np.fft.rfft(framed, n=RATE)).argmax(axis=1)  # bins of 1 Hz
    halves = np.clip(np.rint((peaks - BASE_HZ) / STEP_HZ), 0, 15).astype(int)
    return bytes((halves[::2] << 4 | halves[1::2]).tolist()).decode(errors="replace")


def _tone_samples(speed: float) -> int:
    return round(RATE * TONE_S / speed)
