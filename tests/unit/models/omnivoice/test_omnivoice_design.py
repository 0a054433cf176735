from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polychoir.errors import InvalidRequest
from polychoir.models.omnivoice.design import ATTRIBUTES, resolve, resolve_strictly
from polychoir.voices.names import STOCK_VOICES

HONOURED = [
    ("female, young adult, british accent", "female, young adult, british accent"),
    ("FEMALE ,  Young Adult", "female, young adult"),
    ("女，中年", "female, middle-aged"),
    (" , male,, ", "male"),
]


@pytest.mark.parametrize(("written", "read"), HONOURED)
def test_attributes_are_normalised(written: str, read: str) -> None:
    assert resolve(written, chinese=False).instruct == read
    assert resolve_strictly(written, chinese=False).instruct == read


def test_language_follows_the_text_unless_an_accent_or_dialect_decides() -> None:
    assert resolve("male, whisper", chinese=True).instruct == "男，耳语"
    assert resolve("male, indian accent", chinese=True).instruct == "male, indian accent"
    assert resolve("男，四川话", chinese=False).instruct == "男，四川话"


def test_what_cannot_be_honoured_is_left_out_and_named() -> None:
    design = resolve("Libyan accent, male, deep and calm, female", chinese=False)
    assert design.instruct == "male"
    assert [note.split("'")[1] for note in design.ignored] == ["Libyan accent", "deep and calm", "female"]


def test_suggestions() -> None:
    (note,) = resolve("brittish accent", chinese=False).ignored
    assert "did you mean 'british accent'" in note


def test_first_of_accent_and_dialect_wins() -> None:
    assert resolve("四川话, british accent", chinese=False).instruct == "四川话"
    assert resolve("british accent, 四川话", chinese=True).instruct == "british accent"


@pytest.mark.parametrize(
    "written",
    ["Libyan accent, male voice, deep and calm", "female, 中年", "male, female", "low pitch, high pitch"],
)
def test_strictly_they_are_refused_with_the_valid_ones(written: str) -> None:
    with pytest.raises(InvalidRequest, match="middle-aged") as caught:
        resolve_strictly(written, chinese=False, param="instruct")
    assert caught.value.param == "instruct"


def test_nothing_asked_is_nothing_said() -> None:
    assert resolve("  ", chinese=False) == resolve(",，", chinese=True)
    assert resolve("", chinese=False).instruct is None


@given(st.text(max_size=3000))
def test_any_text_is_taken(written: str) -> None:
    design = resolve(written, chinese=False)
    assert design.instruct is None or all(word in ATTRIBUTES for word in design.instruct.split(", "))
    assert sum(map(len, design.ignored)) <= 3 * len(written) + 150 * len(design.ignored)


def test_stock_voices_ask_for_nothing_else() -> None:
    for voice in STOCK_VOICES.values():
        assert resolve_strictly(voice.design, chinese=False).instruct
