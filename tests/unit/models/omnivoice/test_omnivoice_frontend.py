from __future__ import annotations

import io
import pickle
import subprocess
import sys
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polychoir.errors import (
    InternalError,
    InvalidAudio,
    InvalidRequest,
    MissingValue,
    TextTooLong,
    UnspeakableText,
)
from polychoir.models.omnivoice.frontend import OmniVoiceFrontend
from polychoir.models.omnivoice.pieces import share_frames, split
from polychoir.models.omnivoice.row import OmniVoiceRow
from polychoir.types import (
    ChunkAudio,
    ModelInfo,
    Prepared,
    ReferenceClip,
    SamplingParams,
    SpeechRequest,
    VoiceChoice,
    VoicePrompt,
)

AUTO = VoiceChoice("auto")
LONG = " ".join(
    f"This is sentence number {word} of a text that goes on." for word in "abcdefghijklmnopqrstuvwx"
)
CODES = VoicePrompt(bytes(2 * 8 * 50), 8, 50, "Those are its words.", 0.05)


def _clip(seconds: float = 2.0, rate: int = 24_000) -> bytes:
    samples = np.random.default_rng(1).normal(0, 3_000, int(seconds * rate)).astype("<i2")
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return out.getvalue()


def _prepare(frontend: OmniVoiceFrontend, voice: VoiceChoice = AUTO, **request: Any) -> Prepared:
    return frontend.prepare(
        SpeechRequest(**{"request_id": "r", "seed": 5, "text": "Hello you.", **request}), voice
    )


def _row(frontend: OmniVoiceFrontend, voice: VoiceChoice = AUTO, **request: Any) -> OmniVoiceRow:
    (chunk,) = _prepare(frontend, voice, **request).chunks
    row: OmniVoiceRow = chunk.payload
    return row


def test_a_row_says_what_it_costs(frontend: OmniVoiceFrontend) -> None:
    (chunk,) = _prepare(frontend, VoiceChoice("v", prompt=CODES)).chunks
    row: OmniVoiceRow = chunk.payload
    assert row.cond_len == len(row.text_ids) + 50 + row.target_frames
    assert row.tokens == row.cond_len + row.target_frames == chunk.work.tokens
    assert chunk.work.steps == len(row.timetable) == 8
    assert chunk.estimated_s == row.target_frames / 25
    alone = _row(frontend, sampling=SamplingParams(guidance_scale=0.0))
    assert alone.uncond_len == 0 and alone.tokens == alone.cond_len


def test_a_row_is_plain_values(frontend: OmniVoiceFrontend) -> None:
    row = _row(frontend, reference=ReferenceClip(_clip(), "Those are its words."))
    assert pickle.loads(pickle.dumps(row)) == row
    assert row.clip is not None and len(row.clip) == row.ref_frames * 960 * 4
    assert row.clip_key is not None and row.prompt is None


def test_settings_of_the_request_then_of_the_server_then_of_the_model(frontend: OmniVoiceFrontend) -> None:
    row = _row(frontend, duration=4.0, sampling=SamplingParams(class_temperature=0.7, t_shift=1.0))
    assert (row.class_temperature, row.position_temperature, row.guidance_scale) == (0.7, 5.0, 2.0)
    assert row.timetable == (100,) * 8
    assert len(_row(frontend, sampling=SamplingParams(num_step=4)).timetable) == 4
    assert (row.seed, row.chunk, row.attempt) == (5, 0, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_step", 0),
        ("num_step", 129),
        ("num_step", 1.5),
        ("guidance_scale", -1.0),
        ("guidance_scale", 11.0),
        ("t_shift", 0.0),
        ("t_shift", float("nan")),
        ("position_temperature", float("inf")),
        ("class_temperature", -0.1),
        ("layer_penalty_factor", 101.0),
        ("speed", 0.2),
        ("speed", 4.1),
        ("duration", 0.0),
        ("duration", 3_601.0),
        ("duration", float("nan")),
    ],
)
def test_what_is_out_of_range_is_named(frontend: OmniVoiceFrontend, field: str, value: float) -> None:
    own = field in ("speed", "duration")
    asked = {field: value} if own else {"sampling": SamplingParams(**{field: value})}
    with pytest.raises(InvalidRequest, match=field) as caught:
        _prepare(frontend, **asked)
    assert caught.value.param == field


@pytest.mark.parametrize("text", ["", "  \n ", "...", "!?", "🎉", "\u200b", "、。", "(—)"])
def test_what_nobody_can_say_is_refused(frontend: OmniVoiceFrontend, text: str) -> None:
    with pytest.raises(UnspeakableText):
        _prepare(frontend, text=text)


def test_a_tag_alone_can_be_said(frontend: OmniVoiceFrontend) -> None:
    assert _row(frontend, text="[laughter]").target_frames > 1


def test_a_line_break_parts_two_words(frontend: OmniVoiceFrontend) -> None:
    assert _row(frontend, text="one\r\n two").text_ids == _row(frontend, text="one two").text_ids


def test_what_is_not_honoured_is_said(frontend: OmniVoiceFrontend) -> None:
    assert _prepare(frontend, language="klingon").warnings == ("language_unknown",)
    assert _prepare(frontend, instructions="sing, male").warnings == ("instructions_ignored",)
    assert _prepare(frontend, language="de", instructions="male").warnings == ()
    assert _prepare(frontend, language="auto").warnings == ()
    assert _row(frontend, language="klingon") == _row(frontend)


def test_a_voice_keeps_its_own_attributes(frontend: OmniVoiceFrontend) -> None:
    stock = VoiceChoice("alloy", instruct="female, low pitch")
    more = _prepare(frontend, stock, instructions="male, whisper")
    assert more.warnings == ("instructions_ignored",)
    assert more.chunks[0].payload == _row(frontend, instructions="female, low pitch, whisper")


def test_a_clip_needs_its_words(frontend: OmniVoiceFrontend) -> None:
    for text in (None, "", "  ", "..."):
        with pytest.raises(MissingValue, match="transcript") as caught:
            _prepare(frontend, reference=ReferenceClip(_clip(), text))
        assert caught.value.param == "ref_text"


def test_words_that_cannot_be_those_of_the_clip(frontend: OmniVoiceFrontend) -> None:
    for text in ("x " * 600, "x" * 2_001):
        with pytest.raises(InvalidRequest) as caught:
            _prepare(frontend, reference=ReferenceClip(_clip(), text))
        assert caught.value.param == "ref_text"


@pytest.mark.parametrize(
    ("audio", "words"), [(b"noise", "read"), (_clip(31.0, 8_000), "30"), (_clip(0.2), "0.5")]
)
def test_clips_that_cannot_be_used(frontend: OmniVoiceFrontend, audio: bytes, words: str) -> None:
    with pytest.raises(InvalidAudio, match=words) as caught:
        _prepare(frontend, reference=ReferenceClip(audio, "Those are its words."))
    assert caught.value.param == "ref_audio"


def test_two_speakers_are_one_too_many(frontend: OmniVoiceFrontend) -> None:
    for voice in (VoiceChoice("alloy", instruct="male"), VoiceChoice("alloy", prompt=CODES)):
        with pytest.raises(InvalidRequest, match="two speakers"):
            _prepare(frontend, voice, reference=ReferenceClip(_clip(), "Those are its words."))


def test_a_long_text_with_a_reference_runs_at_once(frontend: OmniVoiceFrontend) -> None:
    prepared = _prepare(frontend, VoiceChoice("v", prompt=CODES), text=LONG)
    assert prepared.rest is None
    assert len(prepared.chunks) == prepared.total_chunks > 3
    rows = [chunk.payload for chunk in prepared.chunks]
    assert [row.chunk for row in rows] == list(range(len(rows)))
    assert {row.prompt for row in rows} == {CODES}
    assert max(row.target_frames for row in rows) <= 15.5 * 25
    assert " ".join(chunk.text for chunk in prepared.chunks) == LONG
    edges = [(row.shaping.lead_s, row.shaping.trail_s) for row in rows]
    assert edges == [(0.1, 0.05), *[(0.05, 0.05)] * (len(rows) - 2), (0.05, 0.1)]


def test_a_long_text_of_a_made_up_voice_is_carried_on(frontend: OmniVoiceFrontend) -> None:
    prepared = _prepare(frontend, text=LONG, instructions="male")
    assert prepared.rest is not None and len(prepared.chunks) == 1
    first = prepared.chunks[0]
    codes = VoicePrompt(bytes(2 * 8 * first.payload.target_frames), 8, first.payload.target_frames, "", 0.2)
    audio = ChunkAudio(0, np.zeros(10, np.float32), 24_000, 8, 0.0, 0.0, 0.0, codes)
    others = prepared.rest(audio)
    assert [chunk.index for chunk in others] == list(range(1, prepared.total_chunks))
    for chunk in others:
        assert chunk.payload.prompt == replace(codes, text=first.text, rms=None)
        assert chunk.payload.shaping.ref_rms is None
        assert chunk.payload.text_ids[0] != first.payload.text_ids[0]
    with pytest.raises(InternalError):
        prepared.rest(replace(audio, codes=None))


def test_a_duration_is_kept_over_all_pieces(frontend: OmniVoiceFrontend) -> None:
    prepared = _prepare(frontend, VoiceChoice("v", prompt=CODES), text=LONG, duration=90.0)
    assert sum(chunk.payload.target_frames for chunk in prepared.chunks) == 90 * 25


@pytest.mark.parametrize(
    ("request_", "param"), [({"duration": 600.0}, "duration"), ({"speed": 0.25}, "ref_text")]
)
def test_a_word_is_not_stretched_over_minutes(
    frontend: OmniVoiceFrontend, request_: dict[str, float], param: str
) -> None:
    slow = VoiceChoice("v", prompt=replace(CODES, text="A.", frames=700, codes=bytes(2 * 8 * 700)))
    with pytest.raises(InvalidRequest, match="stretch") as caught:
        _prepare(frontend, slow, text="Hello.", **request_)
    assert caught.value.param == param


def test_a_row_longer_than_the_model_holds_is_refused(tokenizer_file: Path) -> None:
    info = ModelInfo(name="omnivoice", kind="iterative", sample_rate=24_000, languages=("*",))
    small = OmniVoiceFrontend(tokenizer_file, info, context=60)
    assert _prepare(small, text="Hi.").chunks
    with pytest.raises(TextTooLong):
        _prepare(small, text="This sentence needs more than the sixty tokens that are left to it.")


TEXTS = st.lists(
    st.sampled_from(["word", "3.14", "中文字", "[sigh]", "…", ".", "。", "عربي", "\n", "long" * 40]),
    min_size=1,
)


@settings(max_examples=60, deadline=None)
@given(parts=TEXTS, repeat=st.integers(1, 60), seconds=st.integers(1, 300))
def test_frames_are_shared_out_exactly(parts: list[str], repeat: int, seconds: int) -> None:
    text = " ".join(parts * repeat)
    frames = seconds * 25
    try:
        pieces = split(text, frames, language=None, pace_from="duration")
    except InvalidRequest as error:
        assert error.param == "duration"
        return
    assert "".join("".join(pieces).split()) == "".join(text.split())
    shares = share_frames(pieces, frames)
    assert min(shares) >= 1
    assert abs(sum(shares) - frames) <= sum(share == 1 for share in shares)


def test_the_text_side_needs_no_torch() -> None:
    code = "import sys, polychoir.models.omnivoice.frontend; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
