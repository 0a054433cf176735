"""Every format is decoded back: length, last sample, first bytes, and the slicing that must not show."""

from __future__ import annotations

import gc
import io
import re
import struct
import wave
from typing import Any

import av
import numpy as np
import pytest

from polychoir.audio import writers
from polychoir.audio.encode import CONTENT_TYPES, Encoder, encode
from polychoir.audio.pcm import to_s16
from polychoir.errors import InternalError, InvalidRequest
from polychoir.types import AudioFormat, Samples

RATE = 24_000
LOSSLESS: list[AudioFormat] = ["wav", "pcm", "flac"]
ALL: list[AudioFormat] = [*LOSSLESS, "mp3", "opus", "aac"]
LENGTHS = [1, 577, 1_153, 479, 480, 481, 24_000, 3 * 24_000 + 777]


def speechlike(length: int, seed: int = 0) -> Samples:
    """Harmonics under a moving envelope: no codec's easy case, no codec's worst."""
    time = np.arange(length) / RATE
    tones = sum(np.sin(2 * np.pi * 140 * k * time) / k for k in range(1, 12))
    noise = np.random.default_rng(seed).standard_normal(length) * 0.05
    return ((tones * 0.2 * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * time)) + noise) * 0.5).astype(np.float32)


def decoded(data: bytes, format: AudioFormat) -> tuple[Samples, int]:
    """What a player hears, by FFmpeg, with its rate."""
    if format == "pcm":
        return np.frombuffer(data, "<i2").astype(np.float32) / 32_768, RATE
    # A few frames are too little for FFmpeg to guess aac or mp3 from; a client knows them by their type.
    with av.open(io.BytesIO(data), format=format if format in ("aac", "mp3") else None) as container:
        assert len(container.streams) == 1
        frames = list(container.decode(audio=0))
    to_float = av.AudioResampler(format="flt")
    pieces = [out.to_ndarray()[0] for frame in frames for out in to_float.resample(frame)]
    return np.concatenate(pieces), frames[0].sample_rate


def in_slices(samples: Samples, format: AudioFormat, seed: int, *, streamed: bool) -> bytes:
    random = np.random.default_rng(seed)
    encoder = Encoder(format, RATE, streamed=streamed)
    cuts = np.sort(random.integers(0, len(samples) + 1, 40))
    return b"".join([*(encoder.feed(piece) for piece in np.split(samples, cuts)), encoder.finish()])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("format", LOSSLESS)
def test_lossless_formats_keep_every_sample(format: AudioFormat, length: int) -> None:
    samples = speechlike(length)
    heard, rate = decoded(encode(samples, format, RATE), format)
    assert rate == RATE
    np.testing.assert_array_equal(to_s16(heard), to_s16(samples))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("format", "tolerance_ms"), [("opus", 1.0), ("mp3", 1.0), ("aac", 100.0), ("flac", 0.0)]
)
def test_length_once_decoded(format: AudioFormat, tolerance_ms: float, streamed: bool, length: int) -> None:
    if format == "mp3" and (streamed or length == 1):
        tolerance_ms = 100.0  # no gapless header in a stream; below 47 samples it cannot say so little
    heard, rate = decoded(in_slices(speechlike(length), format, 1, streamed=streamed), format)
    extra_ms = 1_000 * (len(heard) / rate - length / RATE)
    assert 0 <= round(extra_ms, 6) <= tolerance_ms


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("format", ["mp3", "opus", "aac"])
def test_the_last_sound_is_heard(format: AudioFormat, streamed: bool) -> None:
    """A burst in the last 30 ms comes back with its energy, at its place."""
    burst = 720
    samples = np.zeros(RATE + 123, dtype=np.float32)
    samples[-burst:] = 0.5 * np.sin(2 * np.pi * 900 * np.arange(burst) / RATE)
    encoder = Encoder(format, RATE, streamed=streamed)
    heard, rate = decoded(encoder.feed(samples) + encoder.finish(), format)
    energy = np.sum(heard**2) * RATE / rate
    assert energy == pytest.approx(np.sum(samples**2), rel=0.2)
    loudest = np.argmax(np.convolve(heard**2, np.ones(burst * rate // RATE), "valid")) / rate
    delay = loudest - (len(samples) - burst) / RATE
    assert -0.002 <= delay <= 0.1


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("format", ALL)
def test_slices_do_not_show(format: AudioFormat, streamed: bool) -> None:
    samples = speechlike(2 * RATE + 31)
    encoder = Encoder(format, RATE, streamed=streamed)
    at_once = encoder.feed(samples) + encoder.finish()
    assert in_slices(samples, format, 1, streamed=streamed) == at_once
    assert in_slices(samples, format, 2, streamed=streamed) == at_once


@pytest.mark.parametrize("format", ALL)
def test_no_version_of_a_library_is_written(format: AudioFormat) -> None:
    """Else an upgrade would change the bytes of equal audio."""
    assert re.search(rb"Lav[fc]\d", encode(speechlike(RATE), format, RATE)) is None


@pytest.mark.parametrize(
    ("format", "magic"),
    [("mp3", b"\xff\xf3"), ("opus", b"OggS"), ("aac", b"\xff\xf1"), ("flac", b"fLaC"), ("wav", b"RIFF")],
)
def test_first_bytes(format: AudioFormat, magic: bytes) -> None:
    assert encode(speechlike(5_000), format, RATE).startswith(magic)


@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac", "pcm", "wav"])
def test_a_stream_gives_bytes_while_it_is_fed(format: AudioFormat) -> None:
    """After 0.3 s of samples there is something to send, and later feeds each bring more."""
    encoder = Encoder(format, RATE, streamed=True)
    piece = speechlike(RATE * 3 // 10)
    sizes = [len(encoder.feed(piece)) for _ in range(5)]
    assert min(sizes) > 0


def test_opus_pages_hold_20_ms() -> None:
    data = encode(speechlike(RATE), "opus", RATE)
    assert data.count(b"OggS") == 2 + 51  # two header pages; 1 s and the encoder's look-ahead


def test_wav_is_exact_when_buffered() -> None:
    samples = speechlike(1_001)
    data = encode(samples, "wav", 8_000)
    with wave.open(io.BytesIO(data)) as file:
        assert file.getparams()[:4] == (1, 2, 8_000, 1_001)
    assert struct.unpack("<I", data[4:8])[0] == len(data) - 8
    assert struct.unpack("<I", data[40:44])[0] == 2_002


def test_wav_has_one_header_with_unknown_sizes_when_streamed() -> None:
    data = in_slices(speechlike(1_001), "wav", 3, streamed=True)
    assert data[4:8] == data[40:44] == b"\xff\xff\xff\xff"
    assert data.count(b"RIFF") == 1 and len(data) == 44 + 2_002


def test_flac_says_its_length_when_buffered_only() -> None:
    def total(data: bytes) -> int:
        return int.from_bytes(data[21:26], "big") & (2**36 - 1)

    samples = speechlike(10_007)
    assert total(encode(samples, "flac", RATE)) == 10_007
    assert total(in_slices(samples, "flac", 1, streamed=True)) == 0


@pytest.mark.parametrize("format", ALL)
def test_no_samples_at_all_is_no_error(format: AudioFormat) -> None:
    data = Encoder(format, RATE).finish()
    assert len(data) in {0, 44} or format == "flac"


def test_loud_samples_saturate() -> None:
    loud = np.array([1.0, 1.5, -1.0, -1.5, np.inf, -np.inf, 0.99999], dtype=np.float32)
    assert to_s16(loud).tolist() == [32767, 32767, -32768, -32768, 32767, -32768, 32767]


def test_rounding_is_to_nearest_and_returns_what_decoders_read() -> None:
    every = np.arange(-32_768, 32_768, dtype=np.int32)
    np.testing.assert_array_equal(to_s16((every / 32_768).astype(np.float32)), every)
    np.testing.assert_array_equal(to_s16(((every[1:-1] + 0.4) / 32_768).astype(np.float32)), every[1:-1])


def test_nan_is_a_bug_and_says_so() -> None:
    with pytest.raises(InternalError, match="NaN"):
        Encoder("pcm", RATE).feed(np.array([0.0, np.nan], dtype=np.float32))


@pytest.mark.parametrize("format", ALL)
@pytest.mark.parametrize("rate", [8_000, 16_000, 48_000])
def test_other_rates(format: AudioFormat, rate: int) -> None:
    samples = speechlike(rate // 2)
    data = encode(samples, format, rate)
    if format == "pcm":
        assert len(data) == rate
        return
    heard, heard_rate = decoded(data, format)
    extra = len(heard) / heard_rate - 0.5
    assert 0 <= extra <= (2_048 / rate if format == "aac" else 0.001)


@pytest.mark.parametrize(
    ("format", "rate"), [("opus", 22_050), ("mp3", 9_000), ("aac", 9_000), ("wav", 7_999), ("pcm", 48_001)]
)
def test_a_rate_the_format_cannot_carry_is_named(format: AudioFormat, rate: int) -> None:
    with pytest.raises(InvalidRequest, match=str(rate)) as caught:
        Encoder(format, rate)
    assert caught.value.param == "sample_rate"


def test_a_codec_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = writers.Codec(container="ogg", codec="no_such_codec", sample_format="s16")
    monkeypatch.setitem(writers.CODECS, "opus", missing)  # type: ignore[misc]
    with pytest.raises(InvalidRequest, match="no_such_codec") as caught:
        Encoder("opus", RATE)
    assert caught.value.param == "response_format"


def test_an_ended_encoder_takes_no_more() -> None:
    encoder = Encoder("mp3", RATE)
    encoder.finish()
    with pytest.raises(InternalError):
        encoder.feed(speechlike(10))
    with pytest.raises(InternalError):
        encoder.finish()


@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac"])
def test_an_abandoned_encoder_is_closed_without_the_collector(
    format: AudioFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    real = writers.av.open

    class Watched:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._container = real(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._container, name)

        def close(self) -> None:
            closed.append(format)
            self._container.close()

    monkeypatch.setattr(writers.av, "open", Watched)
    gc.disable()
    try:
        encoder = Encoder(format, RATE, streamed=True)
        encoder.feed(speechlike(RATE))
        assert closed == []
        del encoder
        assert closed == [format]
    finally:
        gc.enable()


def test_content_types_cover_the_formats() -> None:
    assert set(CONTENT_TYPES) == set(ALL)
