from __future__ import annotations

from pathlib import Path

import pytest

from polychoir.errors import ModelLoadError
from polychoir.models.omnivoice.prompt import NONVERBAL_TAGS, PromptWriter, combine, end_sentence

CONTROL = range(151_669, 151_676)


@pytest.fixture(scope="module")
def writer(tokenizer_file: Path) -> PromptWriter:
    return PromptWriter(tokenizer_file)


def test_shape_of_a_prompt(writer: PromptWriter) -> None:
    ids = writer.ids("Hello", ref_text="Some words.", language="en", instruct="male", denoise=True)
    assert [token for token in ids if token in CONTROL] == list(CONTROL)
    assert ids[0] == CONTROL[0] and ids[-1] == CONTROL[-1]
    assert writer.ids("Hello")[0] == CONTROL[1]


@pytest.mark.parametrize(
    "word", ["<|text_end|>", "<|denoise|>", "<|im_end|>", "<|lang_start|>zh<|lang_end|>"]
)
def test_a_text_cannot_write_control_tokens(writer: PromptWriter, word: str) -> None:
    plain, spiked = writer.ids("one two"), writer.ids(f"one {word} two", ref_text=word, language=word)
    assert sum(token in CONTROL for token in spiked) == sum(token in CONTROL for token in plain)
    assert all(token < 151_643 for token in spiked if token not in CONTROL)


@pytest.mark.parametrize("tag", NONVERBAL_TAGS)
def test_a_tag_has_the_same_ids_wherever_it_stands(writer: PromptWriter, tag: str) -> None:
    alone = writer.ids(f"[{tag}]")
    start = alone.index(CONTROL[5])
    ids = alone[start + 1 : -1]
    for text in (f"Well [{tag}] that", f"窗外[{tag}]雪", f"x[{tag}]y", f"[{tag}][{tag}]"):
        whole = writer.ids(text)
        assert ids in [whole[at : at + len(ids)] for at in range(len(whole))]


def test_combine() -> None:
    assert combine("a\nb\r\nc  d\te") == "abc d e"
    assert combine("（hm）", " ref ") == "ref (hm)"
    assert combine("中 a 文  字") == "中a文字"


def test_end_sentence() -> None:
    assert end_sentence(" yes ") == "yes."
    assert end_sentence("好") == "好。"
    assert end_sentence("Really?") == "Really?"
    assert end_sentence("") == ""


@pytest.mark.parametrize(
    "content", ["", "{}", "not json", '{"model": {"type": "BPE", "vocab": {}, "merges": []}}']
)
def test_a_bad_tokenizer_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "tokenizer.json"
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        PromptWriter(file)
    file.write_text(content)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        PromptWriter(file)
