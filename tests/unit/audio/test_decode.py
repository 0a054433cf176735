"""Clips: any container, rate and channel count; and strangers' bytes that must not get far."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path

import av
import numpy as np
import pytest

from polychoir.audio.decode import decode_clip
from polychoir.audio.encode import encode
from polychoir.errors import InvalidAudio
from polychoir.types import OUTPUT_SAMPLE_RATE, AudioFormat, Samples

TONE_HZ = 440.0


def tone(rate: int, seconds: float) -> Samples:
    return (0.5 * np.sin(2 * np.pi * TONE_HZ * np.arange(round(rate * seconds)) / rate)).astype(np.float32)


def clip(container: str, codec: str, rate: int, layout: str, seconds: float = 1.0) -> bytes:
    """A tone on every channel, as FFmpeg writes it."""
    sink = io.BytesIO()
    with av.open(sink, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate, layout=layout)
        context = stream.codec_context
        rows = np.repeat(tone(rate, seconds)[:, None], context.layout.nb_channels, axis=1).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(rows, "flt", layout)
        frame.sample_rate = rate
        for part in av.AudioResampler(context.format.name, layout, rate).resample(frame):
            output.mux(stream.encode(part))
        output.mux(stream.encode(None))
    return sink.getvalue()


@pytest.mark.parametrize(
    ("container", "codec", "rate", "layout"),
    [
        ("wav", "pcm_s16le", 8_000, "mono"),
        ("wav", "pcm_s24le", 44_100, "5.1"),
        ("wav", "pcm_f32le", 96_000, "stereo"),
        ("wav", "pcm_mulaw", 8_000, "mono"),
        ("aiff", "pcm_s16be", 44_100, "stereo"),
        ("caf", "pcm_s16le", 22_050, "mono"),
        ("flac", "flac", 48_000, "stereo"),
        ("ogg", "libopus", 48_000, "stereo"),
        ("webm", "libopus", 48_000, "mono"),
        ("matroska", "aac", 44_100, "stereo"),
        ("ipod", "aac", 44_100, "stereo"),
        ("adts", "aac", 24_000, "mono"),
        ("mp3", "libmp3lame", 44_100, "stereo"),
    ],
)
def test_any_container_becomes_mono_24_khz(container: str, codec: str, rate: int, layout: str) -> None:
    samples = decode_clip(clip(container, codec, rate, layout), max_seconds=10)
    assert samples.dtype == np.float32 and samples.ndim == 1
    assert len(samples) == pytest.approx(OUTPUT_SAMPLE_RATE, abs=0.12 * OUTPUT_SAMPLE_RATE)
    middle = samples[6_000:18_000] * np.hanning(12_000)
    peak_hz = np.argmax(np.abs(np.fft.rfft(middle))) * OUTPUT_SAMPLE_RATE / 12_000
    assert peak_hz == pytest.approx(TONE_HZ, abs=2)
    assert np.abs(samples[6_000:18_000]).max() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("format", ["wav", "flac"])
def test_our_own_lossless_files_come_back(format: AudioFormat) -> None:
    samples = tone(OUTPUT_SAMPLE_RATE, 0.7)
    np.testing.assert_allclose(
        decode_clip(encode(samples, format, OUTPUT_SAMPLE_RATE), max_seconds=1), samples, atol=2**-15
    )


def test_channels_are_averaged() -> None:
    left_only = np.zeros((1, 2 * 2_400), dtype=np.int16)
    left_only[0, ::2] = 16_384
    sink = io.BytesIO()
    with av.open(sink, "w", format="wav") as output:
        stream = output.add_stream("pcm_s16le", rate=24_000, layout="stereo")
        frame = av.AudioFrame.from_ndarray(left_only, "s16", "stereo")
        frame.sample_rate = 24_000
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    np.testing.assert_allclose(decode_clip(sink.getvalue(), max_seconds=1), 0.25, atol=1e-6)


def test_the_name_does_not_matter_but_the_bytes_do() -> None:
    assert len(decode_clip(clip("mp3", "libmp3lame", 24_000, "mono"), max_seconds=2)) == 24_000


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"not audio at all. " * 100, "cannot be read"),
        (bytes(5_000), "cannot be read"),
        (encode(np.zeros(0, np.float32), "wav", 24_000), "no sound"),
    ],
)
def test_what_is_no_clip_is_said_clearly(data: bytes, words: str) -> None:
    with pytest.raises(InvalidAudio, match=words) as caught:
        decode_clip(data, max_seconds=5)
    assert caught.value.param == "ref_audio"


def test_a_film_without_sound() -> None:
    sink = io.BytesIO()
    with av.open(sink, "w", format="matroska") as output:
        stream = output.add_stream("mpeg4", rate=25)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        output.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), "rgb24")))
        output.mux(stream.encode(None))
    with pytest.raises(InvalidAudio, match="no audio stream"):
        decode_clip(sink.getvalue(), max_seconds=5)


def test_too_many_bytes() -> None:
    with pytest.raises(InvalidAudio, match="limit is 1,000"):
        decode_clip(bytes(1_001), max_seconds=5, max_bytes=1_000)


def test_a_long_clip_is_refused_early_and_cheaply() -> None:
    """Half an hour of silence in 330 kB: refused at the bound, not after unfolding 170 MB."""
    data = encode(np.zeros(1_800 * 8_000, np.float32), "flac", 8_000)
    assert len(data) < 400_000
    tracemalloc.start()
    with pytest.raises(InvalidAudio, match="longer than 30 s"):
        decode_clip(data, max_seconds=30)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6


def test_exactly_the_limit_is_allowed() -> None:
    assert len(decode_clip(encode(tone(24_000, 2), "wav", 24_000), max_seconds=2)) == 48_000


@pytest.mark.parametrize("kind", ["hls", "hls_http", "concat", "sdp"])
def test_a_playlist_opens_nothing(kind: str, tmp_path: Path) -> None:
    """A text that names a readable file or a host is refused like any other text."""
    secret = tmp_path / "secret.wav"
    secret.write_bytes(encode(tone(24_000, 1), "wav", 24_000))
    texts = {
        "hls": f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{secret}\n#EXT-X-ENDLIST\n",
        "hls_http": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n",
        "concat": f"ffconcat version 1.0\nfile '{secret}'\n",
        "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
    }
    with pytest.raises(InvalidAudio, match="cannot be read"):
        decode_clip(texts[kind].encode(), max_seconds=5)


def test_a_cut_off_clip_gives_what_is_there() -> None:
    data = clip("mp3", "libmp3lame", 24_000, "mono", seconds=2)
    assert len(decode_clip(data[: len(data) * 3 // 4], max_seconds=5)) > 24_000


def test_a_clip_full_of_damage_is_refused() -> None:
    data = bytearray(clip("matroska", "aac", 24_000, "mono", seconds=4))
    random = np.random.default_rng(0)
    for at in random.integers(2_000, len(data), len(data) // 20):
        data[at] ^= 0xFF
    with pytest.raises(InvalidAudio, match="damaged"):
        decode_clip(bytes(data), max_seconds=10)


def test_a_wav_of_nan_is_refused() -> None:
    data = bytearray(clip("wav", "pcm_f32le", 24_000, "mono", seconds=0.2))
    data[-4_000:] = np.full(1_000, np.nan, dtype="<f4").tobytes()
    with pytest.raises(InvalidAudio, match="not numbers"):
        decode_clip(bytes(data), max_seconds=5)


def test_a_title_in_an_odd_encoding_spoils_nothing() -> None:
    plain = clip("wav", "pcm_s16le", 24_000, "mono")
    title = b"INFOINAM" + (6).to_bytes(4, "little") + b"caf\xe9\xff\xfe"
    tail = b"LIST" + len(title).to_bytes(4, "little") + title
    size = (len(plain) + len(tail) - 8).to_bytes(4, "little")
    titled = plain[:4] + size + plain[8:36] + tail + plain[36:]
    if plain[36:40] != b"data":  # FFmpeg's own list stands there: ours goes to the end
        titled = plain[:4] + size + plain[8:] + tail
    assert np.array_equal(decode_clip(titled, max_seconds=10), decode_clip(plain, max_seconds=10))
