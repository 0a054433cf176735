"""Text functions over any Unicode string."""

from __future__ import annotations

import unicodedata

from hypothesis import example, given, settings
from hypothesis import strategies as st

from polychoir.text import clean, is_speakable, scripts, segment

# Marks, joiners, blanks, terminators and digits crowd together far more often than in random text.
AWKWARD = (
    "\u0301\u0e33\u200d\u200c\u094d\u0915\u0e40\u0e01🇫🇷👨👩🏽ㄱ각\u1100\u1161\u11a8。！，、.,:;!?…—-'\"”)]([@/%$"
    " \n\r\t\u3000\xa0\x1c\x8519aZé你かっ\ud800"
)
TEXT = st.text(max_size=200) | st.text(st.sampled_from(AWKWARD), max_size=200)


def weight(piece: str) -> float:
    """A measure that is not the length: CJK is long, marks are free."""
    return sum(
        3.0 if "\u3000" < c < "\u9fff" else 0.0 if unicodedata.category(c)[0] == "M" else 1.0 for c in piece
    )


def without_blanks(text: str) -> str:
    return "".join(text.split())


@settings(max_examples=400)
@given(TEXT, st.integers(1, 60), st.integers(1, 60), st.sampled_from([len, weight]))
@example("0 \u0300", 1, 1, len)
def test_segment(text: str, limit: int, first: int, measure) -> None:  # type: ignore[no-untyped-def]
    pieces = segment(text, limit, measure, first_limit=first)
    assert without_blanks("".join(pieces)) == without_blanks(text)
    for index, piece in enumerate(pieces):
        assert piece and piece == piece.rstrip()
        assert not piece[0].isspace() or unicodedata.category(piece[1])[0] == "M", "a blank may carry a mark"
        if measure(piece) > (limit if index else first):
            assert len(segment(piece, 0.5, lambda _: 1.0)) == 1, (
                "only one character alone may exceed the limit"
            )
        if index:
            assert unicodedata.category(piece[0])[0] != "M"


@settings(max_examples=400)
@given(TEXT)
def test_clean(text: str) -> None:
    cleaned = clean(text)
    assert clean(cleaned) == cleaned
    assert unicodedata.is_normalized("NFC", cleaned)
    cleaned.encode("utf-8")
    letters = [c for c in unicodedata.normalize("NFC", text) if unicodedata.category(c)[0] in "LN"]
    if not any(c in text for c in "\u115f\u1160\u3164\uffa0"):
        assert is_speakable(cleaned) == any(unicodedata.category(c) != "Lm" for c in letters)


@given(st.text(max_size=50), st.text(max_size=50))
def test_composition_does_not_matter(left: str, right: str) -> None:
    text = left + right
    assert clean(unicodedata.normalize("NFD", text)) == clean(unicodedata.normalize("NFC", text))


@given(TEXT)
def test_scripts_counts_the_letters(text: str) -> None:
    assert sum(scripts(text).values()) == sum(c.isalpha() for c in text)
