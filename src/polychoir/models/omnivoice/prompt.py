"""The text tokens in front of a sequence's audio: style, then reference text and text.

    <|denoise|>  <|lang_start|> en <|lang_end|>  <|instruct_start|> ... <|instruct_end|>
    <|text_start|> reference text, text <|text_end|>

Only this module writes control tokens. What a user wrote is data: a text that spells `<|text_end|>` is
tokenised letter by letter and ends nothing. Words in square brackets that are no tag of the model's are
read like any other text.
"""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from polychoir.errors import ModelLoadError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NONVERBAL_TAGS = (
    "laughter", "sigh", "confirmation-en", "question-en", "question-ah", "question-oh", "question-ei",
    "question-yi", "surprise-ah", "surprise-oh", "surprise-wa", "surprise-yo", "dissatisfaction-hnn",
)  # fmt: skip

_TAG = re.compile(r"(\[(?:" + "|".join(map(re.escape, NONVERBAL_TAGS)) + r")\])")
_LINE_BREAKS = re.compile(r"[\r\n]+")
_BLANKS = re.compile(r"[ \t]+")
_IDEOGRAPH = "[\u4e00-\u9fff]"
_BLANKS_AT_IDEOGRAPHS = re.compile(rf"(?<={_IDEOGRAPH})\s+|\s+(?={_IDEOGRAPH})")
_PARENTHESES = str.maketrans("（）", "()")

_CHINESE = re.compile(_IDEOGRAPH)
_ENDINGS = frozenset(";:,.!?…)]}\"'“”‘’；：，。！？、）】")

_CONTROL = ("denoise", "lang_start", "lang_end", "instruct_start", "instruct_end", "text_start", "text_end")
_NOTHING = "None"
"""What the model was taught to read where no language or no attributes are given."""


class PromptWriter:
    """Turns texts into prompt ids with the checkpoint's own tokenizer. Safe to use from several threads."""

    def __init__(self, tokenizer_file: Path) -> None:
        """Raises ModelLoadError if the file cannot be read or is no OmniVoice tokenizer."""
        self._tokenizer = _load(tokenizer_file)
        self._control = {name: self._control_id(name, tokenizer_file) for name in _CONTROL}

    def ids(
        self,
        text: str,
        *,
        ref_text: str | None = None,
        language: str | None = None,
        instruct: str | None = None,
        denoise: bool = False,
    ) -> tuple[int, ...]:
        """All text tokens of one sequence. `denoise` asks for a clean voice and needs a reference."""
        control = self._control
        return (
            *((control["denoise"],) if denoise else ()),
            control["lang_start"], *self._plain(language or _NOTHING), control["lang_end"],
            control["instruct_start"], *self._plain(instruct or _NOTHING), control["instruct_end"],
            control["text_start"], *self._spoken(combine(text, ref_text)), control["text_end"],
        )  # fmt: skip

    def _spoken(self, text: str) -> list[int]:
        """A tag is tokenised by itself, so that it has the same ids whatever stands beside it."""
        return list(chain.from_iterable(self._plain(part) for part in _TAG.split(text) if part))

    def _plain(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _control_id(self, name: str, file: Path) -> int:
        index = self._tokenizer.token_to_id(f"<|{name}|>")
        if index is None:
            raise ModelLoadError(
                f"{file} has no token <|{name}|>: it is not the tokenizer of an OmniVoice model"
            )
        return index


def combine(text: str, ref_text: str | None = None) -> str:
    """Reference text and text as the model reads them: on one line, single blanks, none beside ideographs."""
    full = f"{ref_text.strip()} {text.strip()}" if ref_text else text.strip()
    full = _LINE_BREAKS.sub("", full).translate(_PARENTHESES)
    return _BLANKS_AT_IDEOGRAPHS.sub("", _BLANKS.sub(" ", full))


def end_sentence(text: str) -> str:
    """The transcript with a full stop at its end if it has no mark there: else it runs into the text."""
    text = text.strip()
    if not text or text[-1] in _ENDINGS:
        return text
    return text + ("。" if has_ideographs(text) else ".")


def has_ideographs(text: str) -> bool:
    """True if some of the text is written in Chinese characters."""
    return _CHINESE.search(text) is not None


def _load(file: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelLoadError(f"{file} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # the library raises bare Exception for any malformed file
        raise ModelLoadError(f"{file} is not a tokenizer file: {error}") from error
    tokenizer.encode_special_tokens = True
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
