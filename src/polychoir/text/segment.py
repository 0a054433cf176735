"""Cut a text into pieces that fit, at the best places there are.

What "fits" means is the caller's: characters, phonemes or estimated seconds of speech.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Callable

from polychoir.text.boundaries import Boundaries

_SHORT = 0.4
"""A clause below this share of the limit is no place to stop at if a word boundary carries further: many
short pieces cost more (each has its own prompt) and sound choppier than one cut between two words."""


def segment(
    text: str,
    limit: float,
    measure: Callable[[str], float],
    *,
    first_limit: float | None = None,
    language: str = "en",
) -> list[str]:
    """Pieces of `text`, in order, each with `measure(piece)` <= `limit` (the first <= `first_limit`).

    Whole sentences are packed greedily; a sentence too large for a piece is cut after a clause, else
    after a word, else between two characters as a reader sees them. Numbers, addresses and [tags] stay whole
    unless one alone exceeds the limit. The only thing that may exceed it is one single character.
    Lossless: the joined pieces are the text but for blanks at the cuts.

    `measure` has to grow (weakly) with the text and is called a few times per piece on texts of about the
    piece's size, so the whole is linear in the text if `measure` is. `language` (ISO 639-1) chooses
    the abbreviations that end no sentence. Raises ValueError for a limit that is not positive.
    """
    limits = (limit if first_limit is None else first_limit, limit)
    if not min(limits) > 0:
        raise ValueError(f"a limit must be positive, got {min(limits)}")
    boundaries = Boundaries(text, language)
    pieces: list[str] = []
    start = 0
    while start < len(text):
        end = _end_of_piece(boundaries, start, limits[bool(pieces)], measure)
        piece = _trim(text[start:end])
        if piece:
            pieces.append(piece)
        start = end
    return pieces


def _end_of_piece(boundaries: Boundaries, start: int, limit: float, measure: Callable[[str], float]) -> int:
    text = boundaries.text

    def size(end: int) -> float:
        return measure(_trim(text[start:end]))

    sentences, clauses, words = boundaries.levels
    end = _furthest_of(sentences, start, lambda at: size(at) <= limit)
    if end is not None:
        return end
    end = _furthest_of(clauses, start, lambda at: size(at) <= limit)
    if end is not None and size(end) >= _SHORT * limit:
        return end
    end = _furthest_of(words, start, lambda at: size(at) <= limit)
    if end is not None:
        return end
    count = _furthest(len(text) - start, lambda index: size(start + 1 + index) <= limit)
    return boundaries.snap(start + 1 + max(count, 0), start)


def _trim(piece: str) -> str:
    """Without the blanks around it, but for one that carries a combining mark: they are one character."""
    bare = piece.strip()
    if bare and len(bare) < len(piece) and unicodedata.category(bare[0]).startswith("M"):
        return piece[max(piece.index(bare[0]) - 1, 0) :].rstrip()
    return bare


def _furthest_of(cuts: list[int], start: int, fits: Callable[[int], bool]) -> int | None:
    """Last of the ascending `cuts` after `start` that fits, or None if not even the first does."""
    first = bisect_right(cuts, start)
    index = _furthest(len(cuts) - first, lambda index: fits(cuts[first + index]))
    return cuts[first + index] if index >= 0 else None


def _furthest(count: int, fits: Callable[[int], bool]) -> int:
    """Largest index below `count` that fits, -1 if none does; `fits` turns false once and stays so.

    Doubling steps first: the cost follows the size of the piece, not that of the text.
    """
    good, step = -1, 1
    while good + step < count and fits(good + step):
        good += step
        step *= 2
    bad = min(good + step, count)
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good
