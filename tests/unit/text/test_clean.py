"""Texts that look the same become the same; what is read stays."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest

from polychoir.text import clean, is_speakable

DATA = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("cafe\u0301", "café"),
        ("e\u200b\u0301", "é"),  # the zero-width blank kept the accent apart
        ("so\u00adft hy\u00adphen", "soft hyphen"),
        ("a\u00a0b\u2009c\u3000d\te", "a b c d e"),
        ("\ufefffirst", "first"),
        ("left\u200e\u202bright\u202c\u2066!\u2069", "leftright!"),
        ("bell\x07 nul\x00 esc\x1b[0m", "bell nul esc[0m"),
        ("one\r\ntwo\rthree\u2028four\x0bfive\x85six", "one\ntwo\nthree\nfour\nfive\nsix"),
        ("half \ud83d of an emoji", "half  of an emoji"),
        ("👨\u200d👩\u200d👧 ❤\ufe0f", "👨👩👧 ❤"),
        ("tag \U000e0041\U000e007f end", "tag  end"),
        ("word\u2060joined", "wordjoined"),
        ("葛\U000e0100飾", "葛飾"),
    ],
)
def test_what_nobody_sees_is_gone(raw: str, cleaned: str) -> None:
    assert clean(raw) == cleaned


@pytest.mark.parametrize(
    "text",
    [
        "می\u200cخواهم",  # Persian: two stems in one word
        "क्\u200dष",  # Devanagari half form
        "ന്\u200d",  # Malayalam chillu at the end of a word
        "ක්\u200dෂ",  # Sinhala
        'Line one\n\nLine  two, [laughter] <b>"x"</b> 3½ — “q”…',
        "٣٫١٤ \u0601",
    ],
)
def test_what_is_read_stays(text: str) -> None:
    assert clean(text) == unicodedata.normalize("NFC", text)


def test_a_joiner_twice_is_a_joiner_once() -> None:
    assert clean("می\u200c\u200cخواهم") == "می\u200cخواهم"


def test_composed_and_decomposed_are_one_text() -> None:
    text = "Buổi sáng hôm ấy trời rất tròn vẹn, 한국어도"
    assert clean(unicodedata.normalize("NFD", text)) == clean(text) == text


def test_a_tower_of_marks_is_cut() -> None:
    assert clean("z" + "\u0335" * 500 + "a") == "z" + "\u0335" * 30 + "a"
    assert clean("." * 100) == "." * 100


def test_every_text_of_the_corpus_is_clean_but_for_what_should_go() -> None:
    for line in (DATA / "texts.jsonl").read_text().splitlines():
        text = json.loads(line)["text"]
        visible = [c for c in unicodedata.normalize("NFC", text) if unicodedata.category(c)[0] in "LNPS"]
        kept = [c for c in clean(text) if unicodedata.category(c)[0] in "LNPS"]
        assert kept == visible


@pytest.mark.parametrize("text", ["a", "5", "①", "½", "你", "ก", "٣", "x!", "[laughter]", "ª", "1️⃣"])
def test_speakable(text: str) -> None:
    assert is_speakable(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "...",
        "?!",
        "——",
        "。。。！？",
        "[]()",
        "👍🏽🎉",
        "🇫🇷",
        "$€+=",
        "ー",
        "\u0301",
        "『』",
        "…",
        "#*_`",
    ],
)
def test_silence(text: str) -> None:
    assert not is_speakable(text)
