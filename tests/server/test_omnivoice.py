"""OmniVoice behind the server, on the small random checkpoint: what it says is noise, how it is said is not.

The backbone runs in float64 here, so that equal tokens are demanded and not hoped for.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import subprocess
import sys
import time
import unicodedata
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from support.listening import duration_of, samples_of
from support.serving import Served, make_app, served

DATA = Path(__file__).parents[1] / "data"
CLOSE = 1e-3
"""Largest difference of two decodings of equal codes, in float32 and batches of other sizes."""


@pytest.fixture(params=[True, False], ids=["batch", "no-batch"])
async def omni(request: pytest.FixtureRequest, tmp_path: Path, checkpoint_dir: Path) -> AsyncIterator[Served]:
    model = (f"omnivoice={checkpoint_dir}",)
    app = make_app(tmp_path, model=model, batch=request.param, device="cpu", dtype="float64", num_step=4)
    async with served(app) as running:
        yield running


def sound(response: httpx.Response) -> np.ndarray:
    assert response.status_code == 200, response.text
    return samples_of(response.content, "wav")[0]


def same(one: httpx.Response, other: httpx.Response) -> bool:
    a, b = sound(one), sound(other)
    return len(a) == len(b) and float(np.abs(a - b).max()) < CLOSE


def case(name: str) -> Any:
    lines = (DATA / "cases_A.jsonl").read_text().splitlines()
    return next(found for line in lines if (found := json.loads(line))["id"] == name)["input"]


def text_of(name: str) -> str:
    lines = (DATA / "texts.jsonl").read_text().splitlines()
    return next(found["text"] for line in lines if (found := json.loads(line))["id"] == name)


async def test_A19_composed_and_decomposed_text_are_one(omni: Served) -> None:
    body = case("A19")["pair"][0]["json"]
    forms = [unicodedata.normalize(form, body["input"]) for form in ("NFC", "NFD")]
    assert forms[0] != forms[1]
    one, other = [await omni.speak(text, language="vi", seed=7) for text in forms]
    assert one.content == other.content


async def test_A31_stock_names_are_speakers_that_stay(omni: Served) -> None:
    first = await omni.speak("Hello there.", voice="nova")
    assert first.headers["x-polychoir-voice"] == "nova"
    assert first.content == (await omni.speak("Hello there.", voice="nova")).content
    assert not same(first, await omni.speak("Hello there.", voice="ash"))
    for voice in (None, "auto", "default"):
        assert (await omni.speak("Hello there.", voice=voice)).status_code == 200


async def test_A34_speed_divides_the_duration(omni: Served) -> None:
    async def seconds(speed: float) -> float:
        body = {"speed": speed, "seed": 3, "postprocess_output": False}
        answer = await omni.speak("The quick grey heron stands beside the frozen canal.", **body)
        return duration_of(answer.content, "wav")

    speeds = (0.5, 1.0, 1.5, 2.0)
    alone = [await seconds(speed) for speed in speeds]
    together = await asyncio.gather(*map(seconds, speeds))
    assert alone == together == sorted(alone, reverse=True)
    for speed, took in zip(speeds, alone, strict=True):
        assert took == pytest.approx(alone[1] / speed, rel=0.15)


async def test_A35_other_step_counts_share_batches_and_equal_their_solo_runs(omni: Served) -> None:
    bodies = [call["json"] for call in case("A35")["concurrent"]]
    before = omni.speaker.engine.stats()

    async def ask(body: dict[str, Any]) -> httpx.Response:
        return await omni.speak(body["input"], num_step=body["num_step"], seed=body["seed"])

    alone = [await ask(body) for body in bodies]
    middle = omni.speaker.engine.stats()
    together = await asyncio.gather(*map(ask, bodies))
    after = omni.speaker.engine.stats()
    assert all(map(same, alone, together))
    wanted = sum(body["num_step"] for body in bodies)
    assert middle.steps_total - before.steps_total == after.steps_total - middle.steps_total == wanted
    batches = after.batches_dispatched - middle.batches_dispatched
    assert (batches < wanted) == (omni.speaker.engine.limits.max_num_seqs > 1)


async def test_A36_a_seed_repeats_alone_and_under_load(omni: Served) -> None:
    text = case("A36")["http"]["json"]["input"]
    alone = await omni.speak(text, seed=42)
    noise = [omni.speak(f"Another listener, number {i}.", seed=i, num_step=8) for i in range(8)]
    crowd = await asyncio.gather(*noise, *(omni.speak(text, seed=42) for _ in range(3)))
    assert all(same(alone, answer) for answer in crowd[8:])
    assert not same(alone, await omni.speak(text, seed=43))


async def test_A45_neighbours_do_not_leak(omni: Served) -> None:
    bodies = [call["json"] for call in case("A45")["concurrent"]]
    together = await asyncio.gather(*(omni.speak(body["input"], seed=body["seed"]) for body in bodies))
    for i in (0, 7, 15):
        assert same(together[i], await omni.speak(bodies[i]["input"], seed=bodies[i]["seed"]))
    assert not any(same(together[0], other) for other in together[1:])


async def test_A46_joining_and_leaving_at_other_steps_changes_nothing(omni: Served) -> None:
    sent = [
        "Short.",
        text_of("en-60"),
        "A middling line of about ten words, nothing more.",
        text_of("en-120"),
    ]

    async def ask(i: int, delay: float = 0.0) -> httpx.Response:
        await asyncio.sleep(delay)
        return await omni.speak(sent[i], seed=i + 1, num_step=2 + 2 * i)

    together = await asyncio.gather(*(ask(i, 0.03 * i) for i in range(4)))
    for i, answer in enumerate(together):
        assert same(answer, await ask(i))


async def test_a_clip_is_cloned_and_what_is_missing_is_named(omni: Served) -> None:
    clip = base64.b64encode(spoken_wav()).decode()
    text = "A calm sample sentence."
    cloned = await omni.speak("The ferry leaves at noon.", ref_audio=clip, ref_text=text)
    assert cloned.headers["x-polychoir-voice"] == "clone"
    assert same(cloned, await omni.speak("The ferry leaves at noon.", ref_audio=clip, ref_text=text))
    assert not same(cloned, await omni.speak("The ferry leaves at noon."))
    silent = base64.b64encode(spoken_wav(level=0.0)).decode()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"ref_audio": clip}, "ref_text"),
        ({"ref_audio": clip, "ref_text": text, "voice": "nova"}, "voice"),
        ({"ref_audio": base64.b64encode(b"no audio").decode(), "ref_text": text}, "ref_audio"),
        ({"ref_audio": silent, "ref_text": text}, "ref_audio"),
    ]
    for fields, param in wrong:
        answer = await omni.speak("Hi there.", **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), fields


async def test_design_by_instructions(omni: Served) -> None:
    designed = await omni.speak("Hi there.", instructions="female, british accent")
    assert designed.status_code == 200 and designed.headers["x-polychoir-warnings"] == ""
    assert not same(designed, await omni.speak("Hi there.", instructions="male, british accent"))
    partly = await omni.speak("Hi there.", instructions="female, cheerful")
    assert "instructions_ignored" in partly.headers["x-polychoir-warnings"]


async def test_every_sampling_field_acts(omni: Served) -> None:
    plain = await omni.speak("One sentence for every field.", num_step=6)
    for field, value in {
        "guidance_scale": 0.0,
        "t_shift": 1.0,
        "position_temperature": 0.0,
        "class_temperature": 0.7,
        "layer_penalty_factor": 0.0,
        "num_step": 3,
        "language": "de",
        "duration": 1.2,
        "speed": 1.3,
    }.items():
        answer = await omni.speak("One sentence for every field.", **{"num_step": 6, field: value})
        assert not same(plain, answer), field
    exact = await omni.speak("One sentence.", duration=1.2, postprocess_output=False)
    assert duration_of(exact.content, "wav") == pytest.approx(1.2 + 0.2)  # 0.1 s of silence at either end


def spoken_wav(seconds: float = 3.0, level: float = 0.3) -> bytes:
    """Something with the level and the pauses of speech, 16 bit mono at 24 kHz."""
    t = np.arange(int(24_000 * seconds)) / 24_000
    tone = level * np.sin(2 * np.pi * 180 * t) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * t))
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 24_000, 0, "NONE", ""))
        out.writeframes((tone * 32_767).astype("<i2").tobytes())
    return file.getvalue()


def test_A56_without_a_cache_the_start_fails_fast_and_says_what_is_missing(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="hub ids need the extra [omnivoice]")
    env = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "hub"),
        "http_proxy": "http://127.0.0.1:9",
        "POLYCHOIR_DATA_DIR": str(tmp_path / "data"),
    }
    started = time.monotonic()
    command = [sys.executable, "-m", "polychoir", "serve", "k2-fsa/OmniVoice", "--port", "0"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert time.monotonic() - started < 10
    (line,) = done.stderr.strip().splitlines()
    assert "k2-fsa/OmniVoice" in line and str(tmp_path / "hub") in line
