"""The 13 names: all there, valid, distinct, and the same for ever."""

from __future__ import annotations

from polychoir.text import is_speakable
from polychoir.voices import LOCK_PHRASE, STOCK_VOICES
from polychoir.voices.names import DEFAULT_STOCK_VOICE

OPENAI = [
    "alloy",
    "ash",
    "ballad",
    "coral",
    "echo",
    "fable",
    "onyx",
    "nova",
    "sage",
    "shimmer",
    "verse",
    "marin",
    "cedar",
]

CATEGORIES = [
    {"male", "female"},
    {"child", "teenager", "young adult", "middle-aged", "elderly"},
    {"very low pitch", "low pitch", "moderate pitch", "high pitch", "very high pitch"},
    {"whisper"},
    {f"{who} accent" for who in ("american", "british", "australian", "chinese", "canadian")}
    | {f"{who} accent" for who in ("indian", "korean", "portuguese", "russian", "japanese")},
]


def test_they_are_openais_names() -> None:
    assert list(STOCK_VOICES) == OPENAI
    assert DEFAULT_STOCK_VOICE in STOCK_VOICES


def test_designs_are_valid_and_distinct() -> None:
    for voice in STOCK_VOICES.values():
        items = voice.design.split(", ")
        per_category = [sum(item in category for item in items) for category in CATEGORIES]
        assert sum(per_category) == len(items), f"{voice.name}: an unknown attribute"
        assert max(per_category) == 1
    assert len({frozenset(voice.design.split(", ")) for voice in STOCK_VOICES.values()}) == 13


def test_seeds_never_change() -> None:
    """A changed seed would be a changed speaker: these were drawn once, from the names."""
    seeds = {name: voice.seed for name, voice in STOCK_VOICES.items()}
    assert len(set(seeds.values())) == 13 and all(0 <= seed < 2**32 for seed in seeds.values())
    assert (seeds["alloy"], seeds["onyx"], seeds["cedar"]) == (3018753543, 2681834891, 1106617827)


def test_the_phrase_is_one_good_prompt() -> None:
    assert is_speakable(LOCK_PHRASE) and LOCK_PHRASE.isascii() and LOCK_PHRASE.endswith(".")
    assert 60 < len(LOCK_PHRASE) < 150  # 4 to 10 s of English
