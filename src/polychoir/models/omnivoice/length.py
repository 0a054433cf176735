"""How long a text will take to say, by rule: weights of its characters against a known pace.

A weight is the time a character takes beside that of one Latin letter. The pace comes from the reference
(its frames over the weight of its transcript) or, without one, from a short English phrase. Ranges and
weights are facts of the published model, oddities included: it was trained on lengths like these.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from functools import lru_cache

FRAME_RATE = 25
_PHRASE, _PHRASE_FRAMES = "Nice to meet you.", 25
_SHORT_FRAMES = 50.0
"""Estimates below two seconds are raised along a cube root: a lone word is spoken slowly."""

_BLANK, _PUNCTUATION, _NUMBER, _MARK, _LETTER, _IDEOGRAPH = 0.2, 0.5, 3.5, 0.0, 1.0, 3.0
_TATWEEL = "\u0640"

# Last code point of each range and its weight, ascending; neighbours of equal weight are one range.
_RANGES: tuple[tuple[int, float], ...] = (
    (0x058F, 1.0),  # Latin, Greek, Cyrillic, Armenian
    (0x08FF, 1.5),  # Hebrew, Arabic, Syriac
    (0x0DFF, 1.8),  # Devanagari to Sinhala
    (0x0EFF, 1.5),  # Thai, Lao
    (0x109F, 1.8),  # Tibetan, Burmese
    (0x10FF, 1.0),  # Georgian
    (0x11FF, 2.5),  # hangul jamo
    (0x139F, 3.0),  # Ethiopic
    (0x177F, 1.0),  # Cherokee to Tagbanwa
    (0x17FF, 1.8),  # Khmer
    (0x18FF, 1.0),  # Mongolian, Canadian syllabics
    (0x1C7F, 1.8),  # Limbu to Ol Chiki
    (0x1CBF, 1.0),  # Cyrillic and Georgian extensions
    (0x1CFF, 1.8),  # Sundanese and Vedic extensions
    (0x1EFF, 1.0),  # phonetic and Latin extensions
    (0x30FF, 2.2),  # kana (and, by the published table, everything between Latin and them)
    (0x312F, 3.0),  # bopomofo
    (0x318F, 2.5),  # hangul letters
    (0xA4CF, 3.0),  # CJK ideographs, Yi
    (0xA7FF, 1.0),  # Lisu, Vai, Cyrillic and Latin extensions
    (0xA82F, 1.8),  # Syloti Nagri
    (0xA87F, 1.0),  # Phags-pa
    (0xA95F, 1.8),  # Saurashtra to Rejang
    (0xA97F, 2.5),  # hangul jamo extension
    (0xAAFF, 1.8),  # Javanese to Meetei extensions
    (0xAB2F, 3.0),  # Ethiopic extension
    (0xABBF, 1.0),  # Latin and Cherokee extensions
    (0xABFF, 1.8),  # Meetei Mayek
    (0xD7AF, 2.5),  # hangul syllables
    (0xFAFF, 3.0),  # CJK compatibility
    (0xFDFF, 1.5),  # Arabic presentation forms
    (0xFE6F, 1.0),
    (0xFEFF, 1.5),  # Arabic presentation forms
    (0xFFEF, 1.0),  # full-width Latin
)
_ENDS = tuple(end for end, _ in _RANGES)
_FIRST_IDEOGRAPH_ABOVE = 0x20000


def weight(text: str) -> float:
    """Time the text takes, in Latin letters."""
    return sum(map(_character_weight, text))


def estimate_frames(
    text: str, *, ref_text: str | None = None, ref_frames: int = 0, speed: float = 1.0
) -> int:
    """Frames (25 a second) to plan for `text` at the pace of the reference, at least one."""
    frames = _raise_short(natural_frames(text, ref_text=ref_text, ref_frames=ref_frames))
    return max(1, int(frames if speed == 1.0 else frames / speed))


def natural_frames(text: str, *, ref_text: str | None = None, ref_frames: int = 0) -> float:
    """The estimate before short texts are raised: additive over pieces of a text, so made for cutting."""
    if not ref_text or ref_frames <= 0:
        ref_text, ref_frames = _PHRASE, _PHRASE_FRAMES
    ref_weight = weight(ref_text)
    if ref_weight == 0:
        return 0.0
    return weight(text) / (ref_weight / ref_frames)


def _raise_short(frames: float) -> float:
    if frames >= _SHORT_FRAMES:
        return frames
    return float(_SHORT_FRAMES * (frames / _SHORT_FRAMES) ** (1.0 / 3))


@lru_cache(maxsize=8192)
def _character_weight(char: str) -> float:
    if char == _TATWEEL:
        return _MARK
    by_category = {"M": _MARK, "P": _PUNCTUATION, "S": _PUNCTUATION, "Z": _BLANK, "N": _NUMBER}
    known = by_category.get(unicodedata.category(char)[0])
    if known is not None:
        return known
    code = ord(char)
    at = bisect_left(_ENDS, code)
    if at < len(_RANGES):
        return _RANGES[at][1]
    return _IDEOGRAPH if code > _FIRST_IDEOGRAPH_ABOVE else _LETTER
