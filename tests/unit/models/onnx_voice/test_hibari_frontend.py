"""The embedded voice's text side: what it refuses, what it warns of, and the chunks it makes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polychoir.errors import InvalidRequest, UnspeakableText, UnsupportedByModel, VoiceNotFound
from polychoir.models.base import Model
from polychoir.models.onnx_voice.hibari.phonemes import MAX_PHONEMES
from polychoir.models.onnx_voice.plugin import hibari
from polychoir.types import (
    ModelOptions,
    Prepared,
    SpeechRequest,
    VoiceChoice,
    VoicePrompt,
)

HEART = VoiceChoice("heart", "heart")
HELLO = SpeechRequest("r", "Hello there.", seed=7)


@pytest.fixture(scope="module")
def model() -> Model:
    return hibari.open(None, ModelOptions())


def prepare(model: Model, text: str) -> Prepared:
    return model.frontend.prepare(replace(HELLO, text=text), HEART)


@pytest.mark.parametrize(
    "text", ["", "  \n ", "...", "?!", "()", "[]", "😀 🎉", "— ― …", "\u200b\u200b", "***"]
)
def test_nothing_speakable_is_refused(model: Model, text: str) -> None:
    with pytest.raises(UnspeakableText) as caught:
        prepare(model, text)
    assert (caught.value.code, caught.value.param) == ("unspeakable_text", "input")


@pytest.mark.parametrize(
    ("text", "script", "letters"),
    [
        ("Привет", "Cyrillic", "Приве"),
        ("Hello 你好", "Han", "你好"),
        ("see Ωmega", "Greek", "Ω"),
        ("صباح", "Arabic", "صباح"),
        ("สวัสดี", "Thai", "สวด"),
        ("שלום", "Hebrew", "שלום"),
        ("こんにちは", "Hiragana", "こんにちは"),
        ("안녕", "Hangul", "안녕"),
        ("नमस्ते", "Devanagari", "नमसत"),
    ],
)
def test_other_scripts_are_named_and_refused(model: Model, text: str, script: str, letters: str) -> None:
    with pytest.raises(UnspeakableText, match=script) as caught:
        prepare(model, text)
    assert letters in caught.value.message


def test_at_most_ten_foreign_letters_are_shown(model: Model) -> None:
    with pytest.raises(UnspeakableText) as caught:
        prepare(model, "абвгдежзиклмнопрст" * 100)
    assert "абвгдежзик" in caught.value.message
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("Ｈｅｌｌｏ", "Hello"),
        ("𝐇𝐞𝐥𝐥𝐨", "Hello"),
        ("Nắm", "Nam"),
        ("x̂ ray", "x ray"),
        ("Hel\u00adlo \u200bthere", "Hello there"),
        ("Good 😀 morning", "Good  morning"),
        ("caf\u0065\u0301", "café"),
    ],
)
def test_look_alikes_and_ornaments_are_read_as_plain_letters(model: Model, text: str, same_as: str) -> None:
    one, other = prepare(model, text), prepare(model, same_as)
    assert [chunk.payload for chunk in one.chunks] == [chunk.payload for chunk in other.chunks]


def test_a_link_is_read_by_its_words_and_never_as_phonemes(model: Model) -> None:
    linked = prepare(model, "See the [guide](/guide/intro/) now.")
    assert linked.chunks[0].payload == prepare(model, "See the guide now.").chunks[0].payload


def test_codes_are_read_zero_by_zero_and_numbers_are_not(model: Model) -> None:
    def ids(text: str) -> tuple[int, ...]:
        return prepare(model, text).chunks[0].payload.ids

    assert ids("Call 0113 now") == ids("Call 0 1 1 3 now")
    assert ids("It is 3.05 long") != ids("It is 3. 0 5 long")
    assert ids("Pay 1,005 now") == ids("Pay 1005 now")


@pytest.mark.parametrize("language", ["de", "enx", "German", ""])
def test_another_language_is_refused_by_name(model: Model, language: str) -> None:
    with pytest.raises(UnsupportedByModel) as caught:
        model.frontend.prepare(replace(HELLO, language=language), HEART)
    assert caught.value.param == "language"


@pytest.mark.parametrize("language", [None, "en", "EN", "en-US", "en_us", "English", " english "])
def test_english_is_english(model: Model, language: str | None) -> None:
    assert model.frontend.prepare(replace(HELLO, language=language), HEART).warnings == ()


def test_another_accent_is_warned_of(model: Model) -> None:
    warnings = model.frontend.prepare(replace(HELLO, language="en-GB"), HEART).warnings
    assert warnings == ("language_variant_ignored",)


@pytest.mark.parametrize(
    "voice", [VoiceChoice("v", prompt=VoicePrompt(b"", 8, 0, "")), VoiceChoice("v", instruct="male")]
)
def test_a_cloned_or_designed_voice_is_refused(model: Model, voice: VoiceChoice) -> None:
    with pytest.raises(UnsupportedByModel) as caught:
        model.frontend.prepare(HELLO, voice)
    assert caught.value.param == "voice"


def test_a_preset_of_another_model_is_not_found(model: Model) -> None:
    with pytest.raises(VoiceNotFound):
        model.frontend.prepare(HELLO, VoiceChoice("emma", "emma"))


def test_one_chunk_per_sentence_with_its_exact_work(model: Model) -> None:
    prepared = prepare(model, "Dr. Smith has a dog. It barks! \n\n ... \n\nDoes it bite?")
    assert [chunk.text for chunk in prepared.chunks] == [
        "Dr. Smith has a dog.",
        "It barks!",
        "Does it bite?",
    ]
    assert [chunk.index for chunk in prepared.chunks] == [0, 1, 2]
    assert prepared.total_chunks == 3 and prepared.rest is None
    for chunk in prepared.chunks:
        assert chunk.work.tokens == len(chunk.payload.ids) > 2
        assert (chunk.work.steps, chunk.work.bucket) == (1, None)
        assert (chunk.payload.seed, chunk.payload.chunk) == (7, chunk.index)


def test_a_very_long_sentence_is_cut_at_clauses_and_nothing_is_lost(model: Model) -> None:
    text = (
        ", ".join(f"the {word} lamp was lit by hand" for word in ["red", "green", "small", "old"] * 12) + "."
    )
    prepared = prepare(model, text)
    assert prepared.total_chunks > 2
    assert max(chunk.work.tokens for chunk in prepared.chunks) <= MAX_PHONEMES + 2
    assert " ".join(chunk.text for chunk in prepared.chunks) == text
    assert all(chunk.text[-1] in ",." for chunk in prepared.chunks)


def test_the_library_is_not_misled(model: Model) -> None:
    """Word by word the ids are the library's own, wherever nothing had to be tamed."""
    from hibari import Hibari

    library = Hibari()
    text = "The bakery opens at 6:35 p.m. on 21 March. It paid £18.40, in tolls; nobody minded!"
    expected = [tuple(library.ids(phonemes)) for phonemes in library.phonemize(text)]
    assert [chunk.payload.ids for chunk in prepare(model, text).chunks] == expected


@pytest.mark.parametrize(
    ("text", "measured_s"),
    [
        ("Hello there. Yes. No. Maybe so.", 4.5),
        ("4829501736 " * 60, 328.0),
        ("The old mill stood at the edge of the town, where the river turned north and slowed. " * 4, 19.5),
    ],
)
@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_the_length_is_known_within_a_seventh(
    model: Model, text: str, measured_s: float, speed: float
) -> None:
    chunks = model.frontend.prepare(replace(HELLO, text=text, speed=speed), HEART).chunks
    estimated = sum(chunk.estimated_s for chunk in chunks)
    assert estimated == pytest.approx(measured_s / speed, rel=1 / 7)


def test_threads_read_alike(model: Model) -> None:
    texts = [f"Number {n} is Zorblatt{n % 7}'s, and {n * 37} more xylqu{n % 5}." for n in range(64)]
    alone = [prepare(model, text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda text: prepare(model, text), texts)) == alone


@pytest.mark.parametrize(
    "pattern", ["a-", "aB", "$1", "1:", "1,", "9", "x", "é ", "[a](", "a. ", "v1.", "([{a"]
)
def test_work_grows_in_proportion_to_the_text(model: Model, pattern: str) -> None:
    """Left alone, the phonemiser needs five minutes for 1,000 characters of the first."""
    pattern = pattern.replace("_", " ")
    prepare(model, pattern * 100)
    started = time.thread_time()
    prepared = prepare(model, (pattern * 4_000)[:4_000])
    assert time.thread_time() - started < 4
    assert max(chunk.work.tokens for chunk in prepared.chunks) <= MAX_PHONEMES + 2


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.text(max_size=80),
        st.text("aZé09.,-'$£%:/#()[]“”\n &°½²_~*😀", max_size=80),
        st.from_regex(r"[-$£#]?[0-9.,:/]{1,24}(st|th|s|'s|ed|ing|km|%|am)?", fullmatch=True),
    )
)
def test_any_text_gives_chunks_with_sound_or_a_clear_refusal(model: Model, text: str) -> None:
    try:
        prepared = prepare(model, text)
    except InvalidRequest as error:
        assert error.param == "input"
        return
    assert prepared.chunks
    assert all(2 < chunk.work.tokens <= MAX_PHONEMES + 2 for chunk in prepared.chunks)
