"""English text to phonemes, sentence by sentence: the library's phonemiser, kept within bounds.

Its work grows with the cube of the parts of one unbroken word (1,000 characters of `a-a-a-...` take five
minutes), its number reader fails past 10^36, and its net for unknown words reads 24 letters and leaves out
the rest. `tame` and `LongWords` take those inputs away before they get there.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from polychoir.errors import UnspeakableText
from polychoir.text import segment

MAX_PHONEMES = 400
"""Longest input of the graph: what the library allows, a little under what the voice was trained on."""

_MAX_CHARS = 400
"""Longest text given to the phonemiser at once: English has about one phoneme to the letter, so more would
mostly have to be cut and read again."""
_MAX_PARTS = 8
_LONG_RUN = 24
_MAX_DIGITS = 15
_WORDS_KEPT = 4_096

_LINK = re.compile(r"\[([^\]\[]+)\]\([^)(]*\)")
_REPEATED = re.compile(r"([^\w\s])\1{3,}")
_DIGITS = re.compile(rf"\d(?:,?\d){{{_MAX_DIGITS},}}")
_CODE = re.compile(r"(?<![\w.,])0\d+(?![\w]|[.,]\d)")
_RUN = re.compile(rf"\S{{{_LONG_RUN + 1},}}")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A piece of text and the model's ids for it, with the pads at both ends."""

    text: str
    ids: tuple[int, ...]


class Reader:
    """Text to sentences of ids. Loads about 100 MB of dictionaries; safe to share between threads."""

    def __init__(self) -> None:
        import json

        from hibari import Hibari
        from hibari.g2p import G2P, SUBTOKEN_RE
        from hibari.g2p.normalize import normalize
        from hibari.g2p.oov import OOV
        from hibari.tts import ASSETS

        net = OOV()
        with open(f"{ASSETS}/vocab.json", encoding="utf-8") as file:
            self._vocab: dict[str, int] = json.load(file)
        self._sounds = frozenset(c for c in self._vocab if c.isalpha() and unicodedata.category(c) != "Lm")
        self._parts: re.Pattern[str] = SUBTOKEN_RE
        self._normalize: Callable[[str], str] = normalize
        self._split: Callable[[str], list[str]] = Hibari.split_sentences
        # The net is made now: left to itself the library makes it on the first unknown word, in any thread.
        self._g2p: Any = G2P(oov=LongWords(net, net.maxlen))
        self.alphabet = frozenset(net.cin)

    def read(self, text: str) -> Iterator[Sentence]:
        """One Sentence per sentence of `text`; long ones come in several. Those without a sound are left out.

        Raises UnspeakableText where the phonemiser fails.
        """
        for sentence in self._split(text):
            yield from self._fit(sentence)

    def _fit(self, text: str) -> Iterator[Sentence]:
        phonemes = self._phonemes(text) if len(text) <= _MAX_CHARS else ""
        if phonemes and len(phonemes) <= MAX_PHONEMES:
            if self._sounds.intersection(phonemes):
                known = (self._vocab[char] for char in phonemes if char in self._vocab)
                yield Sentence(text, (0, *known, 0))
            return
        if len(text) <= _MAX_CHARS and not phonemes:
            return
        share = 0.9 * MAX_PHONEMES / len(phonemes) if phonemes else 1.0
        # Always smaller than the text itself, so that this ends.
        limit = max(1, min(_MAX_CHARS, int(len(text) * share), len(text) - 1))
        for piece in segment(text, limit, len):
            yield from self._fit(piece)

    def _phonemes(self, text: str) -> str:
        tamed = tame(self._normalize(_LINK.sub(r"\1", _REPEATED.sub(r"\1\1\1", text))), self._parts)
        try:
            phonemes: str = self._g2p(tamed, normalize_text=False)
        except Exception as error:  # a foreign library on any text at all: its failures are of every kind
            raise UnspeakableText(f"this voice cannot read {text[:60]!r}") from error
        return " ".join(phonemes.split())  # what had no sound leaves its blanks behind


class LongWords:
    """The net for unknown words, on words of any length: read in pieces of `limit` letters.

    Readings are remembered: a text repeats its names, and the net costs 0.5 ms a word.
    """

    def __init__(self, net: Callable[[str], str | None], limit: int) -> None:
        self._net = lru_cache(_WORDS_KEPT)(net)
        self._limit = limit

    def __call__(self, word: str) -> str:
        pieces = (word[at : at + self._limit] for at in range(0, len(word), self._limit))
        return "".join(self._net(piece) or "" for piece in pieces)


def tame(text: str, parts: re.Pattern[str]) -> str:
    """Blanks where one word would be too much, or read wrongly.

    Long digit strings are read digit by digit, and so are those that begin with a zero (dates and times are
    words by now: what is left is a code or a telephone number, and its zeros would not be said). Unbroken
    runs of more than 8 parts (as `parts` finds them: words, signs, numbers) are cut.
    """
    text = _CODE.sub(lambda found: " ".join(found[0]), text)
    text = _DIGITS.sub(lambda found: " ".join(found[0]).replace(" ,", ","), text)
    return _RUN.sub(lambda found: _cut(found[0], parts), text)


def _cut(run: str, parts: re.Pattern[str]) -> str:
    starts = [0, *[part.start() for part in parts.finditer(run)][_MAX_PARTS::_MAX_PARTS], len(run)]
    return " ".join(run[start:end] for start, end in pairwise(starts))
