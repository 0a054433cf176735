"""Where a text may be cut without breaking a character as a reader sees it.

A compact reading of Unicode's extended grapheme clusters (UAX #29) from general categories: marks, Hangul
jamo, emoji sequences, flags, Indic conjuncts and Thai or Lao vowels, which is what speech text holds.
"""

from __future__ import annotations

import re
import unicodedata

_VIRAMA = 9
"""Canonical combining class of the sign that joins two consonants."""

_NEVER_BEFORE = re.compile("[\u0e33\u0eb3\u200c\u200d\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f\uff9e\uff9f]")
# Vowels written before the consonant they are said after, signs that enclose what follows, joiners.
_NEVER_AFTER = re.compile(
    "[\u0e40-\u0e44\u0ec0-\u0ec4\uaab5\uaab6\uaab9\uaabb\uaabc\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2"
    "\u0d4e\U000110bd\U000110cd\u200c\u200d]"
)
_JAMO_LEAD = re.compile("[\u1100-\u115f\ua960-\ua97c]")
_JAMO_TAIL = re.compile("[\u1160-\u11ff\ud7b0-\ud7fb]")
_HANGUL = re.compile("[\u1100-\u11ff\ua960-\ua97c\uac00-\ud7fb]")
_FLAG_HALF = re.compile("[\U0001f1e6-\U0001f1ff]")


def is_break(text: str, at: int, start: int) -> bool:
    """True if `text` may be cut before index `at`; `start` < `at` is a cut already made.

    Only the flags look further back than one character, and never past `start`, so that walking
    through a text stays linear.
    """
    before, after = text[at - 1], text[at]
    if before < "\u0300" and after < "\u0300":
        return not (before == "\r" and after == "\n")
    if unicodedata.category(after)[0] == "M" or _NEVER_BEFORE.match(after) or _NEVER_AFTER.match(before):
        return False
    if unicodedata.combining(before) == _VIRAMA and after.isalpha():
        return False
    if _JAMO_LEAD.match(after):
        return _JAMO_LEAD.match(before) is None
    if _JAMO_TAIL.match(after):
        return _HANGUL.match(before) is None
    return not (_FLAG_HALF.match(after) and _flag_halves(text, at, start) % 2)


def _flag_halves(text: str, at: int, start: int) -> int:
    """Number of regional indicators that end at `at`; two of them draw one flag."""
    first = at
    while first > start and _FLAG_HALF.match(text[first - 1]):
        first -= 1
    return at - first
