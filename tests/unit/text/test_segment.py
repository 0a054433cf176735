"""Where real texts are cut, and where they must not be."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from polychoir.text import segment

DATA = Path(__file__).parents[2] / "data"
TEXTS = [json.loads(line) for line in (DATA / "texts.jsonl").read_text().splitlines()]


def without_blanks(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("limit", [12, 60, 220, 10_000])
@pytest.mark.parametrize("record", TEXTS, ids=lambda record: record["id"])
def test_the_corpus_survives(record: dict[str, str], limit: int) -> None:
    pieces = segment(record["text"], limit, len)
    assert without_blanks("".join(pieces)) == without_blanks(record["text"])
    assert max(map(len, pieces)) <= limit


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Dr. Fox left. He ran!", ["Dr. Fox left.", "He ran!"]),
        ("It cost $3.14 at 6:35 p.m. today. Fine.", ["It cost $3.14 at 6:35 p.m. today.", "Fine."]),
        ("“Really?” she said. “Yes.” Then rain.", ["“Really?” she said.", "“Yes.”", "Then rain."]),
        ("你好。你在吗？很好！", ["你好。", "你在吗？", "很好！"]),
        ("彼は「行く。」と言った。終わり", ["彼は「行く。」", "と言った。", "終わり"]),
        ("यह है। वह था॥ ठीक", ["यह है।", "वह था॥", "ठीक"]),
        ("هل أنت بخير؟ نعم۔ شكرا", ["هل أنت بخير؟", "نعم۔", "شكرا"]),
        ("សួស្តី។ អរគុណ។", ["សួស្តី។", "អរគុណ។"]),
        ("ሰላም። ደህና።", ["ሰላም።", "ደህና።"]),
        ("Title without a stop\n\nThe text", ["Title without a stop", "The text"]),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    """A limit that only the longest sentence reaches: no two fit together, none is torn."""
    limit = max(map(len, sentences))
    pieces = segment(text, limit, len)
    assert without_blanks("".join(pieces)) == without_blanks(text)
    ends = {without_blanks("".join(sentences[:n])) for n in range(1, len(sentences) + 1)}
    assert {without_blanks("".join(pieces[:n])) for n in range(1, len(pieces) + 1)} <= ends


def test_whole_sentences_are_packed() -> None:
    assert segment("One is. Two is. Three is. Four is.", 16, len) == [
        "One is. Two is.",
        "Three is.",
        "Four is.",
    ]


def test_a_long_sentence_is_cut_after_a_clause_then_after_a_word() -> None:
    text = "When the tide came in at last, the boats rose and the bell on the pier began to sound"
    assert segment(text, 40, len) == [
        "When the tide came in at last,",
        "the boats rose and the bell on the pier",
        "began to sound",
    ]


def test_a_short_clause_is_no_place_to_stop() -> None:
    assert segment("Well, the boats rose and the bell rang", 26, len)[0] == "Well, the boats rose and"


def test_scripts_without_blanks_are_cut_between_characters() -> None:
    assert segment("今天天气不错我们去公园吧好不好", 6, len) == ["今天天气不错", "我们去公园吧", "好不好"]
    assert segment("ゆっくりまってください", 3, len)[1][0] not in "っゃゅょ"


def test_thai_pauses_at_blanks_and_never_tears_a_syllable() -> None:
    assert segment("สวัสดีครับ วันนี้อากาศดี", 14, len) == ["สวัสดีครับ", "วันนี้อากาศดี"]
    for piece in segment("เด็กเล่นไม้ในแม่น้ำ", 3, len):
        assert piece[-1] not in "เแโใไ" and piece[0] not in "็้่ำ"


@pytest.mark.parametrize(
    "atom",
    [
        "3.14159",
        "1,234,567",
        "12:30:15",
        "2026-11-30",
        "0113 496 0999",
        "10 000 000",
        "£18.40",
        "99.5%",
        "bob.lee@mail.example.org",
        "https://example.org/a,b;c?d=e.f",
        "parcels.example.org/t/4417",
        "[laughter]",
        "[question-ah]",
        "[pause 2 s]",
    ],
)
def test_an_atom_is_never_torn(atom: str) -> None:
    text = f"aaa bbb {atom}, ccc {atom} ddd. {atom}"
    for limit in range(len(atom) + 1, 60):
        pieces = segment(text, limit, len)
        assert sum(piece.count(atom) for piece in pieces) == 3, pieces


def test_an_atom_beyond_the_limit_gives_way() -> None:
    assert segment("1234567890123", 5, len) == ["12345", "67890", "123"]


def test_the_first_piece_may_be_smaller() -> None:
    text = "A first one. A second one. A third one. A fourth one."
    assert segment(text, 100, len, first_limit=15) == [
        "A first one.",
        "A second one. A third one. A fourth one.",
    ]


def test_one_character_is_never_torn_even_beyond_the_limit() -> None:
    family = "👨\u200d👩\u200d👧"
    assert segment(family * 2, 2, len) == [family, family]
    assert segment("🇫🇷🇩🇪🇯🇵", 3, len) == ["🇫🇷", "🇩🇪", "🇯🇵"]
    assert segment("e\u0301\u0302" * 3, 4, len) == ["e\u0301\u0302"] * 3
    jamo = "\u1100\u1161\u11a8"
    assert segment(jamo * 2, 4, len) == [jamo] * 2
    assert segment("क्षक्ष", 4, len) == ["क्ष", "क्ष"]


def test_any_measure_will_do() -> None:
    pieces = segment("aa aa aa bbbb bbbb", 6.0, lambda piece: 2.5 * piece.count("b") + piece.count("a"))
    assert pieces[0] == "aa aa aa" and all("a" not in piece for piece in pieces[1:])


@pytest.mark.parametrize("text", ["", " ", "\n\n \u3000"])
def test_nothing_gives_nothing(text: str) -> None:
    assert segment(text, 10, len) == []


@pytest.mark.parametrize("limit", [0, -1.0, float("nan")])
def test_a_limit_must_be_positive(limit: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        segment("text", limit, len)
    with pytest.raises(ValueError, match="positive"):
        segment("text", 10, len, first_limit=limit)


@pytest.mark.parametrize(
    "unit",
    [
        "This is Mr. Fox, who lives at 12 Mill Lane. ",
        "今天天气不错，我们去公园吧。",
        "สวัสดีครับ ",
        "a",
        "(",
        "“ab. ",
        "1 ",
        "1,",
        "[a ",
        "a@",
        ".",
        "\n",
        "\u0301",
        "🇫",
        "- ",
        "https://a ",
        "e.g. ",
    ],
)
def test_time_is_linear(unit: str) -> None:
    """Four times the text takes no more than about four times as long, whatever it repeats."""

    def seconds(size: int) -> float:
        text = (unit * (size // len(unit) + 1))[:size]
        best = float("inf")
        for _ in range(3):
            began = time.process_time()
            segment(text, 220, len)
            best = min(best, time.process_time() - began)
        return best

    assert seconds(80_000) < 9 * max(seconds(20_000), 0.003)


def test_a_mark_that_stands_on_nothing_is_not_lost() -> None:
    """There is no blank in front of it that it could belong to."""
    assert segment("\u0300\r", 1, len) == ["\u0300"]
    assert segment("\u0300 b", 1, len) == ["\u0300", "b"]
    assert segment("\r\u0300", 5, len) == ["\r\u0300"]
