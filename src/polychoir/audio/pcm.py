"""Float samples to 16-bit ones, and the 44 bytes that make them a wav file."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from polychoir.errors import InternalError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polychoir.types import Samples

UNKNOWN_SIZE = 0xFFFFFFFF
"""What a wav header says when its end is not known yet; players read on until the stream ends."""


def to_s16(samples: Samples) -> NDArray[np.int16]:
    """float [-1, 1] -> int16, rounded to nearest; louder samples saturate, they never wrap around.

    The scale is 32,768, as decoders use: a 16-bit recording survives the way out and back unchanged.
    Raises InternalError for NaN, which is no sound but a broken model.
    """
    held = np.clip(np.asarray(samples, dtype=np.float32), -1.0, 1.0)
    scaled = np.rint(held * np.float32(32_768.0))
    if np.isnan(scaled).any():
        raise InternalError("samples hold NaN")
    whole: NDArray[np.int16] = np.minimum(scaled, 32_767).astype("<i2")
    return whole


def wav_header(sample_rate: int, data_size: int) -> bytes:
    """RIFF header of mono 16-bit PCM; `data_size` in bytes, or UNKNOWN_SIZE for a stream."""
    size = min(data_size, UNKNOWN_SIZE)
    riff_size = min(size + 36, UNKNOWN_SIZE)
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", riff_size, b"WAVE"),
        *(b"fmt ", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16),
        *(b"data", size),
    )
