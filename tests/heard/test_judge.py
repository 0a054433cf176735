"""The judge itself, and what it hears of the embedded voice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from polychoir.models.base import Model
from polychoir.models.onnx_voice.plugin import hibari
from polychoir.types import ModelOptions, Samples, SpeechRequest, VoiceChoice
from tests.support.judge import transcribe, word_error_rate, words

TEXTS = Path(__file__).parents[1] / "data" / "texts.jsonl"
SENTENCES = (
    "Hello there, and welcome to the concert.",
    "The quick brown fox jumps over the lazy dog.",
    "Please call me back before seven tomorrow morning.",
)


@pytest.mark.parametrize(
    ("written", "heard"),
    [
        ("Twenty-seven days.", "27 days"),
        ("Order 4417", "order forty-four seventeen"),
        ("two hundred and six people", "206 people"),
        ("three thousand four hundred", "3400"),
        ("It cost £18.40.", "it cost eighteen pounds and forty pence"),
        ("at 6:35 p.m.", "At 6.35 PM,"),
        ("on 21 March;", "on the twenty-first of March"),
        ("Dr. O'Neill's grey harbour", "doctor ONeills gray harbor"),
        ("3.14 kg, plus 2%", "three point one four kilograms plus two percent"),
        ("1,250 books, 'and' so on", "1250 books and so on"),
        ("every tenth, then the twentieth", "Every 10th then the 20th"),
        ("call 0113 496 0999", "call 0-113-496-0999"),
    ],
)
def test_two_ways_to_write_the_same_speech_are_no_errors(written: str, heard: str) -> None:
    assert words(written) == words(heard)


@pytest.mark.parametrize(
    ("heard", "rate"),
    [
        ("the cat sat down", 0.0),
        ("the cat sat", 0.25),
        ("the the cat sat down", 0.25),
        ("the hat sat down", 0.25),
        ("", 1.0),
        ("a b c d e f g h", 2.0),
    ],
)
def test_every_missing_added_or_changed_word_counts(heard: str, rate: float) -> None:
    assert word_error_rate("The cat sat down.", heard) == rate


def test_different_words_stay_different() -> None:
    for one, other in [("flour", "flower"), ("seventeen", "seventy"), ("March", "May"), ("can", "cannot")]:
        assert words(one) != words(other)


def test_a_reference_without_words_is_an_error_of_the_test() -> None:
    with pytest.raises(ValueError, match="no words"):
        word_error_rate("...", "hello")


@pytest.fixture(scope="module")
def voice() -> Model:
    return hibari.open(None, ModelOptions())


@pytest.fixture(scope="module")
def say(voice: Model):  # type: ignore[no-untyped-def]
    from polychoir.models.onnx_voice.hibari.stage import load_stage

    stage = load_stage()

    def said(text: str) -> Samples:
        request = SpeechRequest("r", text, seed=7)
        prepared = voice.frontend.prepare(request, VoiceChoice("heart", "heart"))
        return np.concatenate([stage.sing(chunk.payload) for chunk in prepared.chunks])

    return said


@pytest.mark.heard
@pytest.mark.parametrize("text", SENTENCES)
def test_every_word_of_a_plain_sentence_is_heard(say, text: str) -> None:  # type: ignore[no-untyped-def]
    assert word_error_rate(text, transcribe(say(text), 24_000)) == 0


@pytest.mark.heard
def test_the_judge_does_not_hear_what_was_not_said(say) -> None:  # type: ignore[no-untyped-def]
    assert word_error_rate(SENTENCES[0], transcribe(say(SENTENCES[1]), 24_000)) > 0.5


@pytest.mark.heard
def test_short_english_texts_are_heard_with_at_most_five_percent_errors(say) -> None:  # type: ignore[no-untyped-def]
    """Over all words together: one text holds a price, an address, a telephone number and units."""
    entries = [json.loads(line) for line in TEXTS.read_text(encoding="utf-8").splitlines()]
    texts = [entry["text"] for entry in entries if entry["lang"] == "en" and entry["words"] <= 62]
    assert len(texts) == 3
    sizes = [len(words(text)) for text in texts]
    rates = [word_error_rate(text, transcribe(say(text), 24_000)) for text in texts]
    errors = sum(rate * size for rate, size in zip(rates, sizes, strict=True))
    assert errors / sum(sizes) <= 0.05, rates
