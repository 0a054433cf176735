"""Request fields on the wire: what is taken, what is refused by name, what is ignored and said so."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polychoir.errors import InvalidRequest, PolychoirError
from polychoir.server.schemas import MAX_SEED, SpeechBody, parse_body, suggest_field
from support.listening import duration_of, said
from support.serving import Served, make_app, served, until

CONTRACT = {
    *("model", "input", "voice", "instructions", "response_format", "speed", "stream_format"),
    *("stream", "language", "seed", "num_step", "guidance_scale", "t_shift", "position_temperature"),
    *("class_temperature", "layer_penalty_factor", "denoise", "duration", "preprocess_prompt"),
    *("postprocess_output", "chunk_mode", "normalize_text", "ref_audio", "ref_text", "adapter"),
    *("priority", "timeout", "sample_rate", "timestamps", "loudness"),
}


def error_of(response: Any) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    return error


def test_every_field_of_the_contract_is_declared_and_described() -> None:
    assert set(SpeechBody.model_fields) == CONTRACT
    for name, field in SpeechBody.model_fields.items():
        assert field.description, name


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"stream_format": "sse"}, "stream_format"),
        ({"chunk_mode": "sequential"}, "chunk_mode"),
        ({"adapter": "a1"}, "adapter"),
        ({"lora": "a1"}, "adapter"),
        ({"timestamps": True}, "timestamps"),
        ({"loudness": -16}, "loudness"),
        ({"normalize_text": True}, "normalize_text"),
        ({"ref_audio": "https://example.org/a.wav"}, "ref_audio"),
    ],
)
async def test_a_feature_that_is_not_built_is_refused_by_name(
    house: Served, fields: dict[str, Any], param: str
) -> None:
    response = await house.speak(**fields)
    assert response.status_code == 400
    assert (error_of(response)["code"], error_of(response)["param"]) == ("unsupported_by_model", param)


async def test_values_that_ask_for_nothing_are_fine(house: Served) -> None:
    nothing = dict.fromkeys(CONTRACT - {"input", "response_format", "seed"})
    quiet = {"stream": False, "stream_format": "audio", "chunk_mode": "concurrent", "timestamps": False}
    response = await house.speak(**nothing | quiet | {"normalize_text": False, "lora": None, "foo": None})
    assert response.status_code == 200
    assert response.headers["x-polychoir-warnings"] in ("", "voice_substituted")


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ("num_steps", "num_step"),
        ("instruct", "instructions"),
        ("respons_format", "response_format"),
        ("Speed", "speed"),
    ],
)
async def test_a_near_miss_is_refused_with_the_suggestion(house: Served, sent: str, meant: str) -> None:
    response = await house.speak(**{sent: 1})
    assert response.status_code == 400
    assert (error_of(response)["code"], error_of(response)["param"]) == ("unknown_field", sent)
    assert repr(meant) in error_of(response)["message"]


@pytest.mark.parametrize("name", ["user", "top_p", "temperature", "n", "metadata", "extra_fields"])
def test_other_apis_fields_are_no_near_misses(name: str) -> None:
    assert suggest_field(name) is None


async def test_unknown_fields_are_ignored_and_named(house: Served) -> None:
    response = await house.speak(**{"user": "me", "wörld, again": 1})
    assert response.status_code == 200
    warnings = response.headers["x-polychoir-warnings"]
    assert "unknown_field:user" in warnings
    assert "w%C3%B6rld" in warnings


async def test_strict_fields_refuse_them(tmp_path: Path) -> None:
    async with served(make_app(tmp_path, strict_fields=True)) as house:
        response = await house.speak(user="me")
        assert (response.status_code, error_of(response)["param"]) == (400, "user")


async def test_instructions_a_model_cannot_take_are_left_out_or_refused(tmp_path: Path) -> None:
    async with served(make_app(tmp_path)) as house:
        response = await house.speak(instructions="whisper")
        assert response.status_code == 200
        assert "instructions_ignored" in response.headers["x-polychoir-warnings"]
    async with served(make_app(tmp_path, strict_instructions=True)) as house:
        response = await house.speak(instructions="whisper")
        assert (response.status_code, error_of(response)["param"]) == (400, "instructions")


async def test_headers_tell_what_was_done(house: Served) -> None:
    response = await house.speak("Twelve words.", num_step=5, seed=7)
    facts = response.headers
    assert facts["x-polychoir-model"] == "fake"
    assert facts["x-polychoir-voice"] == "tones"
    assert facts["x-polychoir-seed"] == "7"
    assert facts["x-polychoir-chunks"] == "1"
    assert facts["x-polychoir-steps"] == "5"
    assert facts["x-polychoir-retries"] == "0"
    assert float(facts["x-audio-duration-s"]) == pytest.approx(duration_of(response.content, "wav"), abs=6e-4)
    assert facts["x-request-id"].startswith("req_")
    stages = [part.partition(";dur=") for part in facts["server-timing"].split(", ")]
    assert [stage for stage, _, _ in stages] == ["queue", "prepare", "run", "decode", "encode"]
    assert all(float(took) >= 0 for _, _, took in stages)


async def test_a_drawn_seed_is_returned_and_repeats(house: Served) -> None:
    first, second = await house.speak(seed=None), await house.speak(seed=None)
    assert first.headers["x-polychoir-seed"] != second.headers["x-polychoir-seed"]
    again = await house.speak(seed=int(first.headers["x-polychoir-seed"]))
    assert again.content == first.content


@pytest.mark.parametrize("sent", ["a b", "x" * 129, "evil\tid", ""])
async def test_a_strange_request_id_is_replaced(house: Served, sent: str) -> None:
    response = await house.client.get("/v1/models", headers={"x-request-id": sent})
    assert response.headers["x-request-id"].startswith("req_")


async def test_another_sample_rate_is_made(house: Served) -> None:
    text = "Rates."
    native = await house.speak(text)
    for rate in (8_000, 16_000, 44_100, 48_000):
        response = await house.speak(text, sample_rate=rate)
        assert response.headers["x-audio-sample-rate"] == str(rate)
        expected = duration_of(native.content, "wav")
        assert duration_of(response.content, "wav") == pytest.approx(expected, abs=1 / rate)
        assert rate < 16_000 or said(response) == text
    await until(lambda: house.speaker.engine.stats().sequences_finished == 5)
    steps = house.speaker.engine.stats().steps_total
    refused = await house.speak(text, sample_rate=11_111, response_format="opus")
    assert (refused.status_code, error_of(refused)["param"]) == (400, "sample_rate")
    assert house.speaker.engine.stats().steps_total == steps  # refused before it was sung


async def test_a_voice_object_is_its_id(house: Served) -> None:
    assert (await house.speak(voice={"id": "tones"})).status_code == 200
    for voice in ({}, {"id": 3}, {"id": "tones", "more": 1}, 3, ["tones"]):
        response = await house.speak(voice=voice)
        assert (response.status_code, error_of(response)["param"]) == (400, "voice")


@pytest.mark.parametrize(
    "voice", ["../../etc/passwd", "/etc/passwd", "voice\x00.wav", "C:\\win.ini", ".", " ", "v" * 9_000]
)
async def test_voices_that_look_like_paths_are_unknown_voices(house: Served, voice: str) -> None:
    response = await house.speak(voice=voice)
    assert (response.status_code, error_of(response)["code"]) == (400, "voice_not_found")
    assert len(response.content) < 2_000


async def test_a_text_past_the_limit_says_the_limit(house: Served) -> None:
    response = await house.speak("x" * 100_001)
    assert (response.status_code, error_of(response)["code"]) == (400, "text_too_long")
    assert "100000" in error_of(response)["message"]


def test_a_reference_clip_arrives_as_its_bytes() -> None:
    clip = bytes(range(256))
    plain = base64.b64encode(clip).decode()
    forms = [
        plain,
        plain.rstrip("="),
        base64.urlsafe_b64encode(clip).decode(),
        base64.encodebytes(clip).decode(),
        f"data:audio/wav;base64,{plain}",
        f"data:audio/webm;codecs=opus;base64,{plain}",
    ]
    for form in forms:
        request = parse_body({"input": "Hi.", "ref_audio": form, "ref_text": "x"}).to_request(request_id="r")
        assert request.reference is not None
        assert request.reference.audio == clip


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"ref_audio": "no base64 at all!"}, "ref_audio"),
        ({"ref_audio": "data:audio/wav,plain"}, "ref_audio"),
        ({"ref_audio": "data:audio/wav;base64,"}, "ref_audio"),
        ({"ref_text": "words alone"}, "ref_text"),
        ({"adapter": "a", "lora": "b"}, "lora"),
    ],
)
def test_references_that_cannot_be_used(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_body({"input": "Hi."} | fields).to_request(request_id="r")
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "tier"),
    [
        ({}, "standard"),
        ({"response_format": "pcm"}, "interactive"),
        ({"stream_format": "audio"}, "interactive"),
        ({"response_format": "pcm", "priority": "batch"}, "batch"),
    ],
)
def test_the_tier_follows_what_is_asked(fields: dict[str, Any], tier: str) -> None:
    assert parse_body({"input": "Hi."} | fields).tier == tier


@pytest.mark.parametrize("kind", ["wav", "pcm"])
async def test_the_priority_that_everybody_has_may_be_said(house: Served, kind: str) -> None:
    assert (await house.speak(priority="standard", response_format=kind)).status_code == 200


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(CONTRACT | {"lora", "foo", "seeds"})), json_values, max_size=6))
def test_any_object_is_a_request_or_a_named_refusal(fields: dict[str, Any]) -> None:
    try:
        request = parse_body(fields).to_request(request_id="r")
    except PolychoirError as error:
        assert error.param in CONTRACT | {"lora"}
    else:
        assert 0 <= request.seed <= MAX_SEED
        assert 0.25 <= request.speed <= 4


@pytest.mark.parametrize("priority", ["interactive", "standard", "batch"])
async def test_a_request_names_its_tier(house: Served, priority: str) -> None:
    response = await house.speak(priority=priority)
    assert response.status_code == 200
