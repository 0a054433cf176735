"""Prompt ids, lengths, timetables and attributes against the published package."""

from __future__ import annotations

import json
import math
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from polychoir.models.omnivoice import design, languages
from polychoir.models.omnivoice.length import estimate_frames
from polychoir.models.omnivoice.prompt import NONVERBAL_TAGS, PromptWriter, end_sentence, has_ideographs
from polychoir.models.omnivoice.timetable import timetable

from . import oracle as published

DATA = Path(__file__).parent.parent / "data"
TEXTS = [json.loads(line) for line in (DATA / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
CASES = {case["id"]: case for case in map(json.loads, (DATA / "cases_A.jsonl").read_text().splitlines())}
GENERATED = 1_000


def _alphabets() -> list[str]:
    spans = [
        (0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x58A), (0x590, 0x5FF),
        (0x600, 0x6FF), (0x900, 0xDFF), (0xE00, 0xEFF), (0xF00, 0xFFF), (0x1000, 0x109F), (0x10A0, 0x10FF),
        (0x1100, 0x11FF), (0x1200, 0x139F), (0x13A0, 0x18FF), (0x1900, 0x1CFF), (0x1D00, 0x1FFF),
        (0x2000, 0x2BFF), (0x2C00, 0x2FFF), (0x3000, 0x318F), (0x3400, 0x9FFF), (0xA000, 0xABFF),
        (0xAC00, 0xD7FF), (0xF900, 0xFFFD), (0x10000, 0x12FFF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF),
    ]  # fmt: skip
    return ["".join(map(chr, range(first, last + 1))) for first, last in spans]


def _generated(count: int = GENERATED, seed: int = 7) -> list[str]:
    """Strings over every script the length rule tells apart, with words, numbers, tags and line breaks."""
    draw = random.Random(seed)
    alphabets = _alphabets()
    words = [
        "Well",
        "and",
        "4417",
        "3.14",
        "£18",
        "（一）",
        "中文 和",
        "\n",
        "\r\n",
        "  ",
        "\t",
        "ـ",
        "<|text_end|",
    ]
    tags = [f"[{tag}]" for tag in NONVERBAL_TAGS] + ["[not_a_tag]", "[laughter", "[[sigh]]"]
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(draw.randint(1, 12)):
            kind = draw.random()
            source = words if kind < 0.3 else tags if kind < 0.4 else draw.sample(alphabets, 1)[0]
            size = 1 if source in (words, tags) else draw.randint(1, 12)
            parts.append("".join(draw.choices(source, k=size)))
        texts.append(unicodedata.normalize("NFC", draw.choice(["", " "]).join(parts)).strip() or "x")
    return texts


STRINGS = [entry["text"] for entry in TEXTS] + _generated()


@pytest.fixture(scope="module")
def writer(checkpoint_dir: Path) -> PromptWriter:
    return PromptWriter(checkpoint_dir / "tokenizer.json")


def _ids_of_package(oracle: Any, text: str, **kwargs: Any) -> tuple[int, ...]:
    import torch

    if kwargs.get("ref_text") is not None:
        kwargs["ref_audio_tokens"] = torch.zeros(8, 3, dtype=torch.long)
    return tuple(published.prompt_ids(oracle, text, **kwargs))


def test_prompt_ids_over_all_strings(writer: PromptWriter, oracle: Any) -> None:
    """Auto, clone and design in turn, with and without denoise, over real and generated texts."""
    references = [None, "Some call me nature.", "今天天气不错。", " Blanks \n around （it） "]
    instructs = [None, "female, low pitch", "女，四川话"]
    identifiers = [None, *sorted(languages.names())]
    for number, text in enumerate(STRINGS):
        ref_text = references[number % 4]
        kwargs: dict[str, Any] = {
            "ref_text": ref_text,
            "instruct": instructs[number % 3],
            "denoise": number % 2 == 0,
        }
        language = identifiers[number % len(identifiers)]
        ours = writer.ids(
            text, language=language, **{**kwargs, "denoise": kwargs["denoise"] and ref_text is not None}
        )
        assert ours == _ids_of_package(oracle, text, lang=language, **kwargs), text


def test_a24_tags_have_their_own_ids(writer: PromptWriter, oracle: Any) -> None:
    texts = CASES["A24"]["input"]["tokenize"]
    assert len(texts) == 5
    for text in texts + [f"窗外{tag}的雪{tag}" for tag in map("[{}]".format, NONVERBAL_TAGS)]:
        assert writer.ids(text) == _ids_of_package(oracle, text)


def test_lengths_over_all_strings(oracle: Any) -> None:
    for number, text in enumerate(STRINGS):
        for speed in (0.5, 0.8, 1.0, 1.37, 2.0):
            ours = estimate_frames(text, speed=speed)
            assert ours == oracle._estimate_target_tokens(text, None, None, speed=speed), text
        ref_text, ref_frames = STRINGS[number - 1], 1 + number % 400
        ours = estimate_frames(text, ref_text=ref_text, ref_frames=ref_frames)
        assert ours == oracle._estimate_target_tokens(text, ref_text, ref_frames), (text, ref_text)


@pytest.mark.parametrize("t_shift", [0.1, 1.0, 0.5, 0.05, 0.37, 2.0, 3.7])
def test_timetables(t_shift: float) -> None:
    package = published.package()
    draw = random.Random(1)
    lengths = [*range(1, 40), *draw.sample(range(40, 2001), 60), 2000]
    for num_step in (1, 2, 4, 5, 8, 16, 17, 25, 32, 33, 64, 100, 128):
        times = package._get_time_steps(num_step=num_step, t_shift=t_shift).tolist()
        for frames in lengths:
            assert list(timetable(frames, num_step, t_shift)) == _live_steps(frames, times), (
                frames,
                num_step,
            )


def _live_steps(frames: int, times: list[float]) -> list[int]:
    """The schedule that the package's decoding loop computes in place, from its own time steps."""
    total = left = 8 * frames
    counts = []
    for step in range(len(times) - 1):
        share = min(math.ceil(total * (times[step + 1] - times[step])), left)
        count = left if step == len(times) - 2 else share
        counts.append(count)
        left -= count
    return [count for count in counts if count > 0]


def test_attributes_that_are_valid() -> None:
    """Random choices of at most one attribute per category, in random order, case and spacing."""
    package = published.package()
    draw = random.Random(3)
    by_category: dict[str, list[str]] = {}
    for word, category in design._CATEGORY.items():
        by_category.setdefault(category, []).append(word)
    for _ in range(500):
        categories = draw.sample(sorted(by_category), draw.randint(1, 4))
        if {"accent", "dialect"} <= set(categories):
            categories.remove("accent")
        words = [draw.choice(by_category[category]) for category in categories]
        written = draw.choice([",", ", ", "，", " ,  "]).join(
            draw.choice([w, w.upper(), w.title()]) for w in words
        )
        for chinese in (False, True):
            found = design.resolve(written, chinese=chinese)
            assert found.ignored == ()
            assert found.instruct == package._resolve_instruct(written, use_zh=chinese)


@pytest.mark.parametrize(
    "written",
    [
        "male, female",
        "male, libyan accent",
        "四川话, british accent",
        "low pitch，高音调",
        "calm",
        "male, 男",
    ],
)
def test_attributes_that_are_not(written: str) -> None:
    with pytest.raises(ValueError, match=r"instruct|dialect"):
        published.package()._resolve_instruct(written)
    assert design.resolve(written, chinese=False).ignored


def test_languages(oracle: Any) -> None:
    package = published.package()
    assert set(languages.names()) == oracle.supported_language_ids()
    assert len(languages.names()) == 646
    for name in oracle.supported_language_names():
        assert languages.find(name) == package._resolve_language(name)
        assert languages.find(name.upper()) == package._resolve_language(name)
    for index in languages.names():
        assert languages.find(index) == index


def test_transcripts_end_like_the_packages() -> None:
    from omnivoice.utils.text import add_punctuation

    for text in STRINGS:
        assert end_sentence(text) == add_punctuation(text)
        assert has_ideographs(text) == any("\u4e00" <= char <= "\u9fff" for char in text)
