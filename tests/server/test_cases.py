"""Failures of other servers (tests/data/cases_A.jsonl) that are decided at the HTTP side, as ours."""

from __future__ import annotations

import asyncio
import io
import json
import time
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.listening import CONTENT_TYPES, MAGIC, duration_of, said, samples_of
from support.serving import Served, make_app, served, until

DATA = Path(__file__).parents[1] / "data"


def _lines(name: str) -> dict[str, dict[str, Any]]:
    text = (DATA / name).read_text(encoding="utf-8")
    return {entry["id"]: entry for entry in map(json.loads, text.splitlines())}


CASES = {case: entry["input"] for case, entry in _lines("cases_A.jsonl").items()}
TEXTS = {name: entry["text"] for name, entry in _lines("texts.jsonl").items()}


def bodies(case: str, key: str = "each") -> list[dict[str, Any]]:
    """The case's bodies, for the fake model in place of the model that it names."""
    found = []
    for call in CASES[case][key]:
        body = dict(call["json"])
        if body.get("model") == "omnivoice":
            body["model"] = "fake"
        body["input"] = _text(body.get("input"))
        found.append(body)
    return found


def _text(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("USE texts.jsonl "):
        return TEXTS[value.removeprefix("USE texts.jsonl ")]
    return value


async def post(house: Served, body: dict[str, Any]) -> Any:
    return await house.client.post("/v1/audio/speech", json=body)


def error_of(response: Any) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


async def test_A01_nothing_to_say_is_refused_before_any_step(either: Served) -> None:
    for body in bodies("A01"):
        started = time.monotonic()
        response = await post(either, body)
        assert response.status_code == 400, body
        assert error_of(response)["param"] == "input"
        assert time.monotonic() - started < 1
    assert either.speaker.engine.stats().steps_total == 0
    assert said(await either.speak("Still here.")) == "Still here."


async def test_A31_stock_voices_speak_with_one_voice_each_time(either: Served) -> None:
    sent = [*bodies("A31"), {"input": "Hello there."}, {"input": "Hello there.", "voice": None}]
    for body in sent:
        answers = [await post(either, body | {"seed": 1}) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].headers["x-polychoir-voice"] == answers[1].headers["x-polychoir-voice"] == "tones"
        assert answers[0].content == answers[1].content
    warned = (await post(either, bodies("A31")[0])).headers["x-polychoir-warnings"]
    assert "voice_substituted" in warned


async def test_A32_unknown_voices_and_models_are_named(either: Served) -> None:
    voice, openai, empty, absent = [await post(either, body) for body in bodies("A32")]
    unknown = await post(either, bodies("A32")[1] | {"model": "nobody"})
    assert (voice.status_code, error_of(voice)["param"]) == (400, "voice")
    assert error_of(voice)["code"] == "voice_not_found"
    for response in (unknown, empty):
        assert (response.status_code, error_of(response)["code"]) == (404, "model_not_found")
        assert error_of(response)["param"] == "model"
    assert openai.headers["x-polychoir-model"] == "fake"  # tts-* means the default model, by contract
    assert absent.headers["x-polychoir-model"] == "fake"


async def test_A33_wrong_types_and_ranges_name_their_field(either: Served) -> None:
    ordinary = {"model", "voice", "response_format", "input"}
    for body in bodies("A33"):
        wrong = (set(body) - ordinary) or (
            {"response_format"} if body["response_format"] == "mpeg" else {"input"}
        )
        started = time.monotonic()
        response = await post(either, body)
        assert response.status_code == 400, body
        assert {error_of(response)["param"]} == wrong
        assert time.monotonic() - started < 0.5
    assert either.speaker.engine.stats().batches_dispatched == 0


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (b"{", "application/json"),
        (b"[]", "application/json"),
        (b"", "application/json"),
        (b'"text"', "application/json"),
        (b"\xff\xfe", "application/json"),
        (b'{"input": NaN}', "application/json"),
        (b"[" * 100_000, "application/json"),
        (b'{"seed": ' + b"9" * 5_000 + b"}", "application/json"),
        (b'{"input": "Hi."}', "text/plain"),
        (b'{"input": "Hi."}', "application/x-www-form-urlencoded"),
        (b'{"voice": "auto"}', "application/json"),
        (b'{"input": "Hi.", "input": "Ho."}', "application/json"),
        (b'{"input": "\\ud800"}', "application/json"),
    ],
)
async def test_A33_bodies_that_are_no_request(house: Served, content: bytes, content_type: str) -> None:
    headers = {"content-type": content_type}
    response = await house.client.post("/v1/audio/speech", content=content, headers=headers)
    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"


async def test_A34_speed_divides_the_duration_alone_and_together(either: Served) -> None:
    sent = bodies("A34")
    alone = [await post(either, body) for body in sent]
    together = await asyncio.gather(*(post(either, body) for body in sent))
    lengths = [float(answer.headers["x-audio-duration-s"]) for answer in alone]
    for body, length in zip(sent, lengths, strict=True):
        assert length == pytest.approx(lengths[1] / body["speed"], rel=0.15)
    assert [answer.content for answer in alone] == [answer.content for answer in together]


async def test_A35_rows_with_other_step_counts_share_batches_and_keep_theirs(either: Served) -> None:
    sent = bodies("A35", "concurrent")
    alone = [await post(either, body) for body in sent]
    await until(lambda: either.speaker.engine.stats().steps_total == 141)
    before = either.speaker.engine.stats()
    together = await asyncio.gather(*(post(either, body) for body in sent))
    await until(lambda: either.speaker.engine.stats().steps_total == 282)
    after = either.speaker.engine.stats()
    assert [answer.content for answer in alone] == [answer.content for answer in together]
    assert [answer.headers["x-polychoir-steps"] for answer in together] == ["4", "8", "16", "17", "32", "64"]
    batches = after.batches_dispatched - before.batches_dispatched
    batching = either.speaker.engine.limits.max_num_seqs > 1
    assert (batches < 141) == batching


async def test_A36_a_seed_repeats_alone_and_under_load(either: Served) -> None:
    text = CASES["A36"]["http"]["json"]["input"]
    alone = [(await either.speak(text, seed=42)).content for _ in range(3)]
    noise = [either.speak(f"Noise number {i}.", seed=i) for i in range(8)]
    *_, loaded = await asyncio.gather(*noise, either.speak(text, seed=42))
    assert len({*alone, loaded.content}) == 1
    assert (await either.speak(text, seed=43)).content != alone[0]


async def test_A38_six_formats_have_their_type_and_magic(either: Served) -> None:
    for body in bodies("A38"):
        kind = body["response_format"]
        answer = await post(either, body)
        assert answer.headers["content-type"] == CONTENT_TYPES[kind]
        assert said(answer, kind) == body["input"]
        assert kind == "pcm" or answer.content.startswith(MAGIC[kind])
    plain = await either.client.post("/v1/audio/speech", json={"input": "Six formats, one voice."})
    assert plain.headers["content-type"] == "audio/mpeg"


async def test_A39_samples_are_16_bit_mono_24_kHz_without_wrap_around(either: Served) -> None:
    wav, pcm = [await post(either, body | {"seed": 1}) for body in bodies("A39")]
    with wave.open(io.BytesIO(wav.content)) as file:
        assert (file.getsampwidth(), file.getnchannels(), file.getframerate()) == (2, 1, 24_000)
        assert file.readframes(file.getnframes()) == pcm.content
    assert wav.content[20:22] == b"\x01\x00"  # the format tag of plain PCM
    assert len(pcm.content) % 2 == 0
    assert pcm.headers["x-audio-sample-rate"] == "24000"
    samples, _ = samples_of(pcm.content, "pcm")
    assert np.abs(np.diff(samples)).max() < 1.0  # a wrap is a jump of nearly 2


async def test_A40_every_format_ends_with_the_last_word(either: Served) -> None:
    expected = (await post(either, bodies("A40")[-1])).headers["x-audio-duration-s"]
    for body in bodies("A40"):
        kind = body["response_format"]
        answer = await post(either, body)
        allowed = 0.1 if kind == "aac" else 0.002
        assert duration_of(answer.content, kind) == pytest.approx(float(expected), abs=allowed)
        assert said(answer, kind).endswith("Constantinople.")


async def test_A41_a_buffered_wav_has_exact_sizes(either: Served) -> None:
    answer = await either.speak("Hello header.")
    data = answer.content
    assert int(answer.headers["content-length"]) == len(data)
    assert int.from_bytes(data[4:8], "little") == len(data) - 8
    with wave.open(io.BytesIO(data)) as file:
        assert file.getnframes() * 2 == len(data) - 44


async def test_A45_every_listener_hears_their_own_text(either: Served) -> None:
    sent = bodies("A45", "concurrent")
    answers = await asyncio.gather(*(post(either, body) for body in sent))
    assert [said(answer) for answer in answers] == [body["input"] for body in sent]
    assert min(len(answer.content) for answer in answers) > 5_000


async def test_A46_joining_late_changes_nothing(either: Served) -> None:
    sent = bodies("A46", "concurrent")
    alone = [await post(either, body) for body in sent]

    async def late(body: dict[str, Any], delay_ms: int) -> Any:
        await asyncio.sleep(delay_ms / 1e3)
        return await post(either, body)

    delays = CASES["A46"]["join_delay_ms"]
    together = await asyncio.gather(*map(late, sent, delays))
    assert [answer.content for answer in alone] == [answer.content for answer in together]


async def test_A52_addresses_that_clients_probe(house: Served) -> None:
    listed = await house.client.get("/v1/models")
    assert listed.json()["object"] == "list"
    assert [model["id"] for model in listed.json()["data"]] == ["fake"]
    assert (await house.client.get("/v1/models/fake")).json()["id"] == "fake"
    head = await house.client.head("/v1/models")
    assert (head.status_code, head.content) == (200, b"")
    wrong = await house.client.get("/v1/audio/speech")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert error_of(wrong)["code"] == "method_not_allowed"
    assert (await house.client.get("/")).status_code == 200


async def test_A53_preflight_needs_no_key_and_errors_carry_cors_headers(tmp_path: Path) -> None:
    preflight, call = CASES["A53"]["each"]
    origin = preflight["headers"]["Origin"]
    app = make_app(tmp_path, api_key="secret", allowed_origins=(origin,))
    async with served(app) as house:
        asked = await house.client.options("/v1/audio/speech", headers=preflight["headers"])
        assert asked.status_code in (200, 204)
        assert asked.headers["access-control-allow-origin"] == origin
        assert "authorization" in asked.headers["access-control-allow-headers"]
        refused = await house.client.post("/v1/audio/speech", json=call["json"], headers=call["headers"])
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == origin
