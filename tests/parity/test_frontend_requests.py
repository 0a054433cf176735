"""Whole requests: the row the frontend makes against what the published package would run."""

from __future__ import annotations

import io
import json
import unicodedata
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polychoir.models.omnivoice.frontend import OmniVoiceFrontend
from polychoir.models.omnivoice.row import OmniVoiceRow
from polychoir.types import ModelInfo, ReferenceClip, SamplingParams, SpeechRequest, VoiceChoice, VoicePrompt

from . import oracle as published

DATA = Path(__file__).parent.parent / "data"
CASES = {case["id"]: case for case in map(json.loads, (DATA / "cases_A.jsonl").read_text().splitlines())}
SHORT = [
    entry
    for entry in map(json.loads, (DATA / "texts.jsonl").read_text(encoding="utf-8").splitlines())
    if entry["words"] <= 60 and "\n" not in entry["text"]
]
AUTO = VoiceChoice("auto")


@pytest.fixture(scope="module")
def frontend(checkpoint_dir: Path) -> OmniVoiceFrontend:
    info = ModelInfo(name="omnivoice", kind="iterative", sample_rate=24_000, languages=("*",))
    return OmniVoiceFrontend(checkpoint_dir / "tokenizer.json", info)


def _one_row(frontend: OmniVoiceFrontend, voice: VoiceChoice = AUTO, **request: Any) -> OmniVoiceRow:
    prepared = frontend.prepare(SpeechRequest(request_id="r", seed=1, **request), voice)
    (chunk,) = prepared.chunks
    assert prepared.total_chunks == 1
    return chunk.payload


def _frames_in_pieces(frontend: OmniVoiceFrontend, **request: Any) -> int:
    """A clone's pieces are all there at once; how the text is cut is ours, how long it is in all is not."""
    codes = VoicePrompt(bytes(2 * 8 * 25), 8, 25, "Nice to meet you.", 0.2)
    prepared = frontend.prepare(
        SpeechRequest(request_id="r", seed=1, **request), VoiceChoice("v", prompt=codes)
    )
    assert len(prepared.chunks) == prepared.total_chunks > 1
    return sum(chunk.payload.target_frames for chunk in prepared.chunks)


def _assert_same(oracle: Any, row: OmniVoiceRow, denoise: bool = True, **task: Any) -> None:
    package_task = oracle._preprocess_all(**task)
    (length,), (codes,) = package_task.target_lens, package_task.ref_audio_tokens
    ids = published.prompt_ids(
        oracle,
        package_task.texts[0],
        ref_text=package_task.ref_texts[0],
        ref_audio_tokens=codes,
        lang=package_task.langs[0],
        instruct=package_task.instructs[0],
        denoise=denoise,
    )
    assert list(row.text_ids) == ids
    assert row.target_frames == length
    assert row.ref_frames == (0 if codes is None else codes.shape[1])
    assert row.cond_len == len(ids) + row.ref_frames + length


@pytest.mark.parametrize("entry", SHORT, ids=lambda entry: entry["id"])
def test_auto_voice(frontend: OmniVoiceFrontend, oracle: Any, entry: dict[str, Any]) -> None:
    text = entry["text"]
    language = {"ar": "arb"}.get(entry["lang"], entry["lang"])
    for extra in ({}, {"speed": 0.5}, {"speed": 1.7}, {"duration": 3.3}, {"duration": 0.7, "speed": 2.0}):
        frames = oracle._preprocess_all(text=text, **extra).target_lens[0]
        if frames <= 30 * 25:
            row = _one_row(frontend, text=text, language=language, **extra)
            _assert_same(oracle, row, text=text, language=language, **extra)
        else:
            assert _frames_in_pieces(frontend, text=text, language=language, **extra) == frames


@pytest.mark.parametrize("instruct", ["female, british accent, low pitch", "男，四川话", "Whisper,  Elderly"])
def test_designed_voice(frontend: OmniVoiceFrontend, oracle: Any, instruct: str) -> None:
    for text in ("Door is open.", "窗外的雪下了一整夜。", "Mixed 中文 text [sigh]"):
        row = _one_row(frontend, text=text, instructions=instruct)
        _assert_same(oracle, row, text=text, instruct=instruct)
        by_voice = _one_row(frontend, VoiceChoice("stock", instruct=instruct), text=text)
        assert by_voice == row


@pytest.mark.parametrize("denoise", [True, False])
@pytest.mark.parametrize("preprocess", [True, False])
def test_cloned_voice(frontend: OmniVoiceFrontend, oracle: Any, preprocess: bool, denoise: bool) -> None:
    samples = np.random.default_rng(2).normal(0, 0.05, 24_000 * 2 + 501)
    samples[20_000:34_000] = 0
    pcm = (samples * 32_767).astype("<i2")
    heard = pcm.astype(np.float32) / np.float32(32_768)
    text, words = "And this is said by the same voice.", "These are the words of the clip"
    row = _one_row(
        frontend,
        text=text,
        speed=0.8,
        reference=ReferenceClip(_wav(pcm), words),
        sampling=SamplingParams(denoise=denoise, preprocess_prompt=preprocess),
    )
    prompt = published.clone_prompt(oracle, heard, words, preprocess)
    _assert_same(oracle, row, denoise, text=text, speed=0.8, voice_clone_prompt=prompt)
    assert row.clip is not None and len(row.clip) == row.ref_frames * 960 * 4
    assert row.shaping.ref_rms == pytest.approx(prompt.ref_rms, abs=1e-6)

    codes = prompt.ref_audio_tokens.numpy().astype(np.int16)
    stored = VoicePrompt(codes.tobytes(), 8, codes.shape[1], prompt.ref_text, prompt.ref_rms)
    again = _one_row(
        frontend,
        VoiceChoice("voice_1", prompt=stored),
        text=text,
        speed=0.8,
        sampling=SamplingParams(denoise=denoise, preprocess_prompt=preprocess),
    )
    assert again.text_ids == row.text_ids and again.target_frames == row.target_frames
    assert again.prompt == stored and again.clip is None


def test_a19_composed_and_decomposed_text_are_one(frontend: OmniVoiceFrontend, oracle: Any) -> None:
    texts = [call["json"]["input"] for call in CASES["A19"]["input"]["pair"]]
    forms = {unicodedata.normalize(form, text) for text in texts for form in ("NFC", "NFD")}
    assert len(forms) == 2
    first, second = (_one_row(frontend, text=text, language="vi") for text in sorted(forms))
    assert first == second
    _assert_same(oracle, first, text=unicodedata.normalize("NFC", texts[0]), language="vi")


def _wav(pcm: np.ndarray) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24_000)
        file.writeframes(pcm.tobytes())
    return out.getvalue()
