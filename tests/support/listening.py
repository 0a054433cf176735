"""Reading answers: any of the six formats back to samples, and what the fake model said in them."""

from __future__ import annotations

import io
from collections.abc import Mapping

import av
import httpx
import numpy as np

from polychoir.audio.resample import resample
from polychoir.models.tones import RATE, heard
from polychoir.types import Samples

MAGIC: Mapping[str, tuple[bytes, ...]] = {
    "mp3": (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2"),
    "opus": (b"OggS",),
    "aac": (b"\xff\xf1", b"\xff\xf9"),
    "flac": (b"fLaC",),
    "wav": (b"RIFF",),
}
CONTENT_TYPES: Mapping[str, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}

AAC_DELAY = 1_024


def samples_of(data: bytes, kind: str) -> tuple[Samples, int]:
    """float32 mono and its rate. pcm says no rate: it is taken for 24 kHz."""
    if kind == "pcm":
        return np.frombuffer(data, "<i2").astype(np.float32) / 32_768, RATE
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.audio[0]
        resampler = av.AudioResampler("flt", "mono")
        frames = [
            out.to_ndarray()[0]
            for frame in [*container.decode(stream), None]
            for out in resampler.resample(frame)
        ]
        return np.concatenate(frames), stream.rate


def duration_of(data: bytes, kind: str) -> float:
    samples, rate = samples_of(data, kind)
    return len(samples) / rate


def said(response: httpx.Response, kind: str = "wav", speed: float = 1.0) -> str:
    """The text that the fake model put into this answer."""
    assert response.status_code == 200, response.text
    samples, rate = samples_of(response.content, kind)
    if kind == "aac":  # ADTS cannot say that its first frame is the encoder's delay
        samples = samples[AAC_DELAY:]
    return heard(resample(samples, rate, RATE), speed)
