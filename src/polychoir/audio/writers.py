"""What turns 16-bit samples into the bytes of one container; `encode` chooses among them."""

from __future__ import annotations

import io
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import av
import numpy as np
from av.codec.codec import UnknownCodecError

from polychoir.audio.gapless import with_exact_padding
from polychoir.audio.pcm import wav_header
from polychoir.errors import InvalidRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polychoir.types import AudioFormat

    S16 = NDArray[np.int16]


class Writer(Protocol):
    def write(self, samples: S16) -> bytes: ...
    def close(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Codec:
    container: str
    codec: str
    sample_format: str
    bit_rate: int = 0
    """Bits per second at 16 kHz and above; 0 for lossless."""
    bits_per_sample: float = 8.0
    """Ceiling by rate: what the format can carry of a narrow band."""
    rates: tuple[int, ...] = ()
    """Hz; empty for any."""
    seeks: bool = False
    """Its header is completed at the end, where the sink can seek."""
    corrected: Callable[[bytes, int, int], bytes] | None = None
    """Last touch to a buffered file: (file, samples, frame size) -> file."""
    container_options: Mapping[str, str] = field(default_factory=dict)
    streamed_options: Mapping[str, str] = field(default_factory=dict)
    codec_options: Mapping[str, str] = field(default_factory=dict)


# Bit rates: speech in mono is transparent, or close, from about 64 kb/s (mp3), 32 kb/s (opus) and 64 kb/s
# (this aac encoder) on; each gets half as much again, because a cloned voice is judged by its finest detail
# and even so a minute is below 1 MB. mp3 below 16 kHz (MPEG-2.5) ends at 64 kb/s, aac at 6 bits a sample.
#
# Effort: the encoders' defaults cost as much as a small voice model does. Over 12 s of a neural voice at
# 24 kHz, audio seconds per core second and signal-to-noise ratio, default -> chosen: mp3 82 -> 151
# (22.9 -> 23.1 dB), opus 85 -> 234 (17.8 -> 18.4 dB), aac 44 -> 159 (35.1 -> 34.2 dB).
CODECS: Mapping[str, Codec] = {
    "mp3": Codec(
        container="mp3",
        codec="libmp3lame",
        sample_format="s16p",
        bit_rate=96_000,
        bits_per_sample=5.0,
        rates=(8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000),
        seeks=True,
        corrected=with_exact_padding,
        container_options={"id3v2_version": "0", "write_xing": "1"},
        streamed_options={"write_xing": "0"},
        codec_options={"compression_level": "7"},
    ),
    "opus": Codec(
        container="ogg",
        codec="libopus",
        sample_format="s16",
        bit_rate=48_000,
        rates=(8_000, 12_000, 16_000, 24_000, 48_000),
        container_options={"serial_offset": "1", "page_duration": "20000"},
        codec_options={"frame_duration": "20", "compression_level": "5"},
    ),
    "aac": Codec(
        container="adts",
        codec="aac",
        sample_format="fltp",
        bit_rate=96_000,
        bits_per_sample=6.0,
        codec_options={"aac_coder": "fast"},
        rates=(8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000),
    ),
    "flac": Codec(container="flac", codec="flac", sample_format="s16", seeks=True),
}


class PcmWriter:
    """Bare little-endian samples, after a header if there is one."""

    def __init__(self, header: bytes = b"") -> None:
        self._header = header

    def write(self, samples: S16) -> bytes:
        header, self._header = self._header, b""
        return header + samples.tobytes()

    def close(self) -> bytes:
        return self._header


class WavWriter:
    """A wav whose sizes are exact, hence known only at the end.

    Hours of it are hundreds of megabytes, so they are held once: a BytesIO hands its block over as it is.
    """

    def __init__(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self._file = io.BytesIO()
        self._header_size = self._file.write(wav_header(sample_rate, 0))

    def write(self, samples: S16) -> bytes:
        self._file.write(samples.data)
        return b""

    def close(self) -> bytes:
        size = self._file.tell() - self._header_size
        self._file.seek(0)
        self._file.write(wav_header(self._sample_rate, size))
        return self._file.getvalue()


class _Pipe:
    """A sink that cannot seek: hands over what was written since the last look."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)

    def rest(self) -> bytes:
        return self.take()


class _Shelf(io.BytesIO):
    """A sink that can seek, so that a header may be completed at the end: nothing leaves before."""

    def take(self) -> bytes:
        return b""

    def rest(self) -> bytes:
        return self.getvalue()


class CodecWriter:
    """PyAV's encoder and muxer, fed in frames of the codec's own size."""

    def __init__(self, spec: Codec, format: AudioFormat, sample_rate: int, streamed: bool) -> None:
        self._spec = spec
        self._rate = sample_rate
        self._sink = _Shelf() if spec.seeks and not streamed else _Pipe()
        options = {"fflags": "+bitexact", "flush_packets": "1", **spec.container_options}
        if streamed:
            options |= spec.streamed_options
        self._container, self._stream = _open(spec, format, sample_rate, self._sink, options)
        # PyAV's container and stream refer to each other, and an open one may hold megabytes: an encoder
        # whose listener went away must not wait for the garbage collector.
        self._close = weakref.finalize(self, self._container.close)
        self._close.atexit = False
        self._frame_size: int = self._stream.codec_context.frame_size
        self._held: S16 = np.empty(0, dtype=np.int16)
        self._position = 0

    def write(self, samples: S16) -> bytes:
        joined = np.concatenate([self._held, samples])
        whole = len(joined) - len(joined) % self._frame_size
        for start in range(0, whole, self._frame_size):
            self._encode(joined[start : start + self._frame_size])
        self._held = joined[whole:]
        return self._sink.take()

    def close(self) -> bytes:
        if len(self._held):
            self._encode(self._held)
        self._container.mux(self._stream.encode(None))
        self._close()
        file = self._sink.rest()
        if self._spec.corrected is not None and isinstance(self._sink, _Shelf):
            return self._spec.corrected(file, self._position, self._frame_size)
        return file

    def _encode(self, samples: S16) -> None:
        row: NDArray[Any] = samples[np.newaxis]
        if self._spec.sample_format == "fltp":
            row = row.astype(np.float32) / np.float32(32_768.0)
        frame = av.AudioFrame.from_ndarray(row, self._spec.sample_format, "mono")
        frame.sample_rate = self._rate
        frame.pts = self._position
        self._position += len(samples)
        self._container.mux(self._stream.encode(frame))


def _open(
    spec: Codec, format: AudioFormat, sample_rate: int, sink: _Pipe | _Shelf, options: Mapping[str, str]
) -> tuple[Any, Any]:
    """Container and stream, ready for frames; InvalidRequest if this build of FFmpeg lacks the codec."""
    try:
        av.Codec(spec.codec, "w")
    except UnknownCodecError as error:
        raise InvalidRequest(
            f"response_format {format} is not available here: this FFmpeg has no {spec.codec} encoder",
            param="response_format",
        ) from error
    container = av.open(sink, "w", format=spec.container, container_options=dict(options))
    stream: Any = container.add_stream(
        spec.codec, rate=sample_rate, options={"flags": "+bitexact", **spec.codec_options}
    )
    context = stream.codec_context
    context.format = spec.sample_format
    context.layout = "mono"
    context.thread_count = 1
    if spec.bit_rate:
        context.bit_rate = min(spec.bit_rate, int(spec.bits_per_sample * sample_rate))
    context.open()
    return container, stream
