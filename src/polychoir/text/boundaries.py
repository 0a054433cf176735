"""Where a text would be breathed: sentence, clause and word boundaries, and what must stay whole.

Positions are offsets just after the blanks that follow a unit, so that pieces cut there lose nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator

import sentencex

from polychoir.text.graphemes import is_break

_BLOCK = 2_048
"""Characters given to sentencex at once: its time grows with the square of a text full of quotes or CJK
(25 s for 400,000 characters in one call)."""

_SURROGATES = re.compile("[\ud800-\udfff]")
_CLOSERS = "\"'”’»›)\\]}）］｝」』】〉》〕〗"

# Terminators that mean nothing else in their script: CJK and its half width, Devanagari and kin, Arabic and
# Urdu, Armenian, Ethiopic, Khmer, Burmese, Tibetan, Mongolian, Meetei, Javanese. The Latin ones are
# ambiguous (abbreviations, numbers) and are left to sentencex.
_TERMINATORS = "。！？｡।॥؟۔։።፧፨។៕။།༎᠃᠉꯫꧈꧉"
_SENTENCE_END = re.compile(f"[{_TERMINATORS}]+[{_CLOSERS}]*\\s*|\\n[^\\S\\n]*\\n\\s*")

_CLAUSE_END = re.compile(
    f"[,;:.!?…)][{_CLOSERS}]*\\s+"
    f"|[、，；：،؛፣፤፥၊—–…]+[{_CLOSERS}]*\\s*"
    "|\\s-\\s+"
    "|\\n\\s*"
    "|(?<=[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u0f00-\u0fff])\\s+"  # no word blanks: a blank is a pause
)

_WITHOUT_BLANKS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_NO_LINE_START = "ーゝゞ々ぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶ"
_WORD_END = re.compile(
    f"\\s+|(?<=[{_WITHOUT_BLANKS}])(?=\\w)(?![{_NO_LINE_START}])|(?<=\\w)(?=[{_WITHOUT_BLANKS}])(?![{_NO_LINE_START}])"
)

_NUMBER = r"\d+(?:[.,:/'’\-−](?=\d)\d+)*(?:[ \u00a0\u202f]\d{3,4}(?!\d)){0,4}[%‰°]?"
_TAG = r"\[[^\[\]\n]{1,40}\]"
_ATOM = re.compile(f"{_TAG}|(?P<number>[+\\-−]?[$£€¥₹]?{_NUMBER})")
_RUN = re.compile("[!-~\u00a1-\u024f\u0370-\u052f]+")
_ADDRESS = re.compile(r"\w[.@]\w|://")
_TRAILING = ".,;:!?'\")]}»"


class Boundaries:
    """All places where `text` may be cut, best kind first; `language` chooses the abbreviations."""

    __slots__ = ("_atom_ends", "_atom_starts", "levels", "text")

    def __init__(self, text: str, language: str) -> None:
        self.text = text
        self._atom_starts, self._atom_ends = _merged(_atoms(text))
        self.levels = tuple(
            [*self._allowed(ends), len(text)]
            for ends in (
                sorted({*_sentences(text, language)}),
                _ends(_CLAUSE_END, text),
                _ends(_WORD_END, text),
            )
        )
        """Offsets of sentence, clause and word ends, each ascending; the last is the length of the text."""

    def snap(self, at: int, start: int) -> int:
        """Nearest place not after `at` that breaks no character and, if it can be had, no atom.

        Returns the end of the first character after `start` when nothing nearer may be cut.
        """
        if at >= len(self.text):
            return len(self.text)
        atom = self._atom_around(at)
        if atom is not None and atom > start:
            at = atom
        back = at
        while back > start and not is_break(self.text, back, start):
            back -= 1
        if back > start:
            return back
        ahead = start + 1
        while ahead < len(self.text) and not is_break(self.text, ahead, start):
            ahead += 1
        return ahead

    def _allowed(self, ends: Iterable[int]) -> Iterator[int]:
        size = len(self.text)
        return (
            at
            for at in ends
            if 0 < at < size and self._atom_around(at) is None and is_break(self.text, at, at - 1)
        )

    def _atom_around(self, at: int) -> int | None:
        """Start of the atom that has `at` strictly inside, if there is one."""
        index = bisect_right(self._atom_starts, at - 1) - 1
        return self._atom_starts[index] if index >= 0 and at < self._atom_ends[index] else None


def _sentences(text: str, language: str) -> Iterator[int]:
    """Ends of sentences: the table first, sentencex for what needs a language's abbreviations."""
    start = 0
    for end in [*_ends(_SENTENCE_END, text), len(text)]:
        yield from _latin_sentences(text, start, end, language)
        yield end
        start = end


def _latin_sentences(text: str, start: int, end: int, language: str) -> Iterator[int]:
    """Ends of sentences strictly inside [start, end) by sentencex, block by block.

    Where a block stops is no end of a sentence; it stops at a blank so as not to make up a word.
    """
    while start < end:
        stop = min(start + _BLOCK, end)
        if stop < end:
            stop = text.rfind(" ", start + 1, stop) + 1 or stop
        at = start
        for sentence in sentencex.segment(language, _SURROGATES.sub("\ufffd", text[start:stop])):
            at += len(sentence)
            if at < stop:
                yield at
        start = stop


def _ends(pattern: re.Pattern[str], text: str) -> Iterator[int]:
    return (match.end() for match in pattern.finditer(text))


def _atoms(text: str) -> Iterator[tuple[int, int]]:
    """Spans that are read as one: tags in square brackets, numbers, addresses of mail and web."""
    for match in _ATOM.finditer(text):
        yield match.span()
    for run in _RUN.finditer(text):
        address = run[0].rstrip(_TRAILING)
        if _ADDRESS.search(address):
            yield run.start(), run.start() + len(address)


def _merged(spans: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Overlapping spans made one, as ascending starts and ends."""
    starts: list[int] = []
    ends: list[int] = []
    for start, end in sorted(spans):
        if ends and start < ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends
