"""A reference clip as a client sends it, made into samples.

Clips are strangers' bytes: the content decides what they are (never a name), only self-contained formats are
opened (a playlist could name other files or hosts), and decoding stops as soon as a bound is passed.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import av
import numpy as np

from polychoir.audio.resample import Resampler
from polychoir.errors import InvalidAudio
from polychoir.types import OUTPUT_SAMPLE_RATE

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.container import InputContainer

    from polychoir.types import Samples

MAX_BYTES = 50 * 1024 * 1024

FORMATS = (
    "wav,w64,aiff,au,caf,flac,mp3,ogg,aac,mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,asf,amr,ac3,eac3,wv,tta,ape"
)
"""FFmpeg demuxers a clip may be read by: sound in one file that refers to nothing outside itself."""

_DAMAGE_TOLERATED = 0.05
"""Share of packets that may be unreadable (a cut-off last packet is common) before the clip is refused."""


def decode_clip(data: bytes, *, max_seconds: float, max_bytes: int = MAX_BYTES) -> Samples:
    """float32 mono at 24 kHz from a clip in any container, rate and number of channels (they are mixed).

    Raises InvalidAudio for a clip that is empty, too large, longer than `max_seconds` (what is decoded
    counts, not what the header claims), holds no sound, or cannot be read. Memory stays near that of
    `max_seconds` of samples, whatever the clip would unfold to.
    """
    if not data:
        raise InvalidAudio("the clip is empty")
    if len(data) > max_bytes:
        raise InvalidAudio(f"the clip has {len(data):,} bytes; the limit is {max_bytes:,}")
    try:
        with _open(data) as container:
            samples = _mono(container, max_seconds)
    except av.error.FFmpegError as error:
        raise InvalidAudio("the clip cannot be read: it is damaged or no audio file") from error
    if not len(samples):
        raise InvalidAudio("the clip holds no sound")
    if not np.isfinite(samples).all():
        raise InvalidAudio("the clip holds samples that are not numbers")
    return samples


_LENIENT: dict[str, Any] = {"metadata_errors": "ignore"} if int(av.__version__.split(".")[0]) < 19 else {}
"""A title in an odd encoding must not spoil a clip. PyAV 19 has no such word: opening reads no titles."""


def _open(data: bytes) -> InputContainer:
    options = {"format_whitelist": FORMATS, "protocol_whitelist": ""}
    container: InputContainer = av.open(io.BytesIO(data), "r", container_options=options, **_LENIENT)
    return container


def _mono(container: InputContainer, max_seconds: float) -> Samples:
    """Decode, mix and resample frame by frame, counting what comes out.

    The mix is the mean of the channels: it cannot clip, and is what OmniVoice's own package does.
    """
    planes = av.AudioResampler(format="fltp")
    resampler: Resampler | None = None
    shape: tuple[int, str, str] | None = None
    pieces: list[Samples] = []
    heard = 0
    for frame in _frames(container):
        now = (frame.sample_rate, frame.layout.name, frame.format.name)
        if resampler is None:
            shape, resampler = now, Resampler(frame.sample_rate, OUTPUT_SAMPLE_RATE)
        elif now != shape:
            raise InvalidAudio(f"the clip changes its format midway, from {shape} to {now}")
        heard += frame.samples
        if heard > max_seconds * frame.sample_rate:
            raise InvalidAudio(f"the clip is longer than {max_seconds:g} s")
        for plane in planes.resample(frame):
            pieces.append(resampler.feed(plane.to_ndarray().mean(axis=0, dtype=np.float32)))
    if resampler is not None:
        pieces.append(resampler.finish())
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.float32)


def _frames(container: InputContainer) -> Iterator[AudioFrame]:
    """Decoded frames of the first audio stream; a few damaged packets are passed over, as players do."""
    if not container.streams.audio:
        raise InvalidAudio("the file has no audio stream")
    stream = container.streams.audio[0]
    stream.codec_context.thread_count = 1
    packets = damaged = 0
    for packet in container.demux(stream):
        packets += 1
        try:
            frames = packet.decode()
        except av.error.FFmpegError:
            damaged += 1
            continue
        yield from frames
    if damaged > 1 + _DAMAGE_TOLERATED * packets:
        raise InvalidAudio(f"the clip is damaged: {damaged} of {packets} packets cannot be read")
