"""Every name a client may send, on every kind of model."""

from __future__ import annotations

import builtins
import os
import string
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polychoir.errors import VoiceNotFound
from polychoir.types import ModelInfo, VoiceChoice, VoicePrompt
from polychoir.voices import STOCK_VOICES, VoiceStore, list_voices, resolve

DESIGNER = ModelInfo("omni", "iterative", 24_000, ("*",), fields=frozenset({"instructions", "num_step"}))
SINGER = ModelInfo("hib", "one_shot", 24_000, ("en",), voices=("Heart", "Joe"))
BOTH = ModelInfo(
    "both", "iterative", 24_000, ("*",), voices=("Ann", "alloy"), fields=frozenset({"instructions"})
)
BARE = ModelInfo("bare", "iterative", 24_000, ("*",))
MODELS = [DESIGNER, SINGER, BOTH, BARE]
EMPTY = VoiceStore(None)
PROMPT = VoicePrompt(b"\x01\x00" * 16, 8, 2, "Hello.")


@pytest.mark.parametrize(
    ("info", "name", "choice"),
    [
        (DESIGNER, None, VoiceChoice("auto")),
        (DESIGNER, "AUTO", VoiceChoice("auto")),
        (DESIGNER, "default", VoiceChoice("alloy", instruct=STOCK_VOICES["alloy"].design)),
        (DESIGNER, "Onyx", VoiceChoice("onyx", instruct=STOCK_VOICES["onyx"].design)),
        (SINGER, None, VoiceChoice("Heart", preset="Heart")),
        (SINGER, "auto", VoiceChoice("Heart", preset="Heart")),
        (SINGER, "default", VoiceChoice("Heart", preset="Heart")),
        (SINGER, "joe", VoiceChoice("Joe", preset="Joe")),
        (SINGER, "nova", VoiceChoice("Heart", preset="Heart", warnings=("voice_substituted",))),
        (BOTH, "auto", VoiceChoice("Ann", preset="Ann")),
        (BOTH, "alloy", VoiceChoice("alloy", preset="alloy")),
        (BOTH, "echo", VoiceChoice("echo", instruct=STOCK_VOICES["echo"].design)),
        (BARE, "auto", VoiceChoice("auto")),
        (BARE, "default", VoiceChoice("auto")),
        (BARE, "nova", VoiceChoice("auto", warnings=("voice_substituted",))),
    ],
)
def test_what_a_name_means(info: ModelInfo, name: str | None, choice: VoiceChoice) -> None:
    assert resolve(name, info, EMPTY) == choice


def test_a_locked_voice_is_its_prompt_on_its_model_only() -> None:
    store = VoiceStore(None)
    store.put("omni", "alloy", PROMPT)
    assert resolve("alloy", DESIGNER, store) == VoiceChoice("alloy", prompt=PROMPT)
    assert resolve("default", DESIGNER, store).prompt == PROMPT
    assert resolve("ash", DESIGNER, store).prompt is None


@pytest.mark.parametrize("info", MODELS, ids=lambda info: info.name)
@pytest.mark.parametrize(
    "name", ["", " ", "alls", "../../etc/passwd", "a\0b", "alloy\0", "x" * 1_000_000, "\ud800", "零"]
)
def test_any_other_name_is_not_found(info: ModelInfo, name: str) -> None:
    with pytest.raises(VoiceNotFound) as caught:
        resolve(name, info, EMPTY)
    message = caught.value.message
    assert caught.value.param == "voice" and len(message) < 400
    assert message.isprintable()
    message.encode("utf-8")


def test_near_misses_are_named() -> None:
    with pytest.raises(VoiceNotFound, match="did you mean alloy"):
        resolve("aloy", DESIGNER, EMPTY)
    with pytest.raises(VoiceNotFound, match="did you mean Heart"):
        resolve("hart", SINGER, EMPTY)
    with pytest.raises(VoiceNotFound, match="/v1/audio/voices"):
        resolve("qqqqq", SINGER, EMPTY)


def test_a_model_with_a_thousand_voices_gives_a_short_message() -> None:
    many = ModelInfo("many", "one_shot", 24_000, ("en",), voices=tuple(f"speaker{n}" for n in range(1_000)))
    with pytest.raises(VoiceNotFound) as caught:
        resolve("speaker", many, EMPTY)
    assert len(caught.value.message) < 300


@given(
    st.sampled_from(["auto", "DEFAULT", "Nova", "heart", "ann"])
    | st.text(string.printable + "\0/\\.é零\u202e", max_size=80)
)
def test_no_string_breaks_it(name: str) -> None:
    for info in MODELS:
        listed = {entry.id.casefold() for entry in list_voices(info)}
        try:
            resolve(name, info, EMPTY)
        except VoiceNotFound:
            assert name.casefold() not in listed
        else:
            assert name.casefold() in listed


def test_no_file_is_touched_with_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("the file system was asked")

    opener: Callable[..., Any] = refuse
    monkeypatch.setattr(builtins, "open", opener)
    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(os, "open", refuse)
    for info in MODELS:
        with pytest.raises(VoiceNotFound):
            resolve("../alloy", info, EMPTY)


@pytest.mark.parametrize("info", MODELS, ids=lambda info: info.name)
def test_every_listed_voice_resolves_to_what_the_list_says(info: ModelInfo) -> None:
    entries = list_voices(info)
    ids = [entry.id for entry in entries]
    assert len(ids) == len({voice.casefold() for voice in ids})
    assert {"auto", "default", *STOCK_VOICES} <= set(ids)
    assert ids[: len(info.voices)] == list(info.voices)
    for entry in entries:
        choice = resolve(entry.id, info, EMPTY)
        assert choice.id == (entry.speaks_as or entry.id)
        assert bool(choice.warnings) == (entry.kind == "substitute")
