"""The six response formats, mono 16-bit, one container however often samples are fed.

Equal samples give equal bytes, whatever slices they come in: frames are cut here to the codec's own size,
and nothing dated or random (Ogg serial number, encoder name) is written.

Two shapes. A *streamed* answer leaves as it is made, so nothing written can be changed later: a wav header
says "unknown size", an mp3 has no gapless header, a flac no total. A *buffered* answer has all three, exact.
opus and aac are the same both ways.

Lengths once decoded: wav, pcm and flac to the sample; opus and buffered mp3 too (their headers say what to
trim); aac and streamed mp3 carry the codec's delay and the padding of the last frame (<= 100 ms at 24 kHz).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from polychoir.audio.pcm import UNKNOWN_SIZE, to_s16, wav_header
from polychoir.audio.writers import CODECS, CodecWriter, PcmWriter, WavWriter, Writer
from polychoir.errors import InternalError, InvalidRequest

if TYPE_CHECKING:
    from polychoir.types import AudioFormat, Samples

CONTENT_TYPES: Mapping[AudioFormat, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}

MIN_RATE, MAX_RATE = 8_000, 48_000
"""Hz. The codecs below allow fewer: see `writers.CODECS`."""


class Encoder:
    """One answer's encoder: `feed` any number of times, then `finish` once; the bytes joined are the file.

    samples: float32 mono at `sample_rate` (Hz), any length; louder than 1.0 saturates.
    Not safe for use by two threads at the same time; encoding releases the interpreter's lock.

    Raises InvalidRequest (param `sample_rate` or `response_format`) for a rate the format cannot carry or
    a codec this installation lacks; InternalError if fed after the end or fed NaN.
    """

    def __init__(self, format: AudioFormat, sample_rate: int, *, streamed: bool = False) -> None:
        _check_rate(format, sample_rate)
        self._writer = _writer(format, sample_rate, streamed)
        self._finished = False

    def feed(self, samples: Samples) -> bytes:
        """Encode more; returns what is ready, which is nothing until the end where a header waits for it."""
        if self._finished:
            raise InternalError("samples fed to an encoder that has finished")
        return self._writer.write(to_s16(samples))

    def finish(self) -> bytes:
        """The rest: every sample fed is in the bytes once these are out."""
        if self._finished:
            raise InternalError("an encoder was finished twice")
        self._finished = True
        return self._writer.close()


def encode(samples: Samples, format: AudioFormat, sample_rate: int) -> bytes:
    """A whole file with exact sizes; errors as `Encoder`."""
    encoder = Encoder(format, sample_rate)
    head = encoder.feed(samples)
    return head + encoder.finish()


def _check_rate(format: AudioFormat, sample_rate: int) -> None:
    allowed = CODECS[format].rates if format in CODECS else ()
    if not MIN_RATE <= sample_rate <= MAX_RATE:
        raise InvalidRequest(
            f"sample_rate must be {MIN_RATE} to {MAX_RATE} Hz, not {sample_rate}", param="sample_rate"
        )
    if allowed and sample_rate not in allowed:
        names = ", ".join(map(str, allowed))
        raise InvalidRequest(f"{format} carries {names} Hz, not {sample_rate}", param="sample_rate")


def _writer(format: AudioFormat, sample_rate: int, streamed: bool) -> Writer:
    if format == "pcm":
        return PcmWriter()
    if format == "wav":
        return PcmWriter(wav_header(sample_rate, UNKNOWN_SIZE)) if streamed else WavWriter(sample_rate)
    return CodecWriter(CODECS[format], format, sample_rate, streamed)
