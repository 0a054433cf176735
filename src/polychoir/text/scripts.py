"""Which scripts a text is written in, so that a voice can say which letters it cannot read.

The standard library has no Script property; Unicode's character names begin with it, which is enough
for a message ("this voice reads Latin; the text has Han") and needs no table to keep up to date.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_HEAD = re.compile(
    r"(?P<script>[A-Z' ]+?)[- ](?:SMALL|CAPITAL|LETTER|SYLLABLE|SYLLABICS|VOWEL|CONSONANT|INDEPENDENT|"
    r"IDEOGRAPH|UNIFIED|COMPATIBILITY|LIGATURE|SIGN|CHARACTER|LENGTH|PROLONGED|DIGRAPH|ITERATION|CHOSEONG|JUNGSEONG|"
    r"JONGSEONG|LETTERS|SUBJOINED|HIEROGLYPH|PURE|CHILLU|TONE|AITON|SHAN|MON|ETERNAL|HEAD)\b"
)
_WIDTHS = re.compile(r"^(?:FULLWIDTH|HALFWIDTH) ")
_RENAMED = {
    "Cjk": "Han",
    "Katakana-Hiragana": "Katakana",
    "Modifier": "Common",
    "Masculine": "Latin",
    "Feminine": "Latin",
    "Canadian": "Canadian Aboriginal",
    "Mathematical": "Common",
    "Black-Letter": "Common",
    "Double-Struck": "Common",
}


def scripts(text: str) -> dict[str, int]:
    """Letters per script (`{"Latin": 12, "Han": 3}`), in order of first appearance.

    Digits, marks, punctuation and symbols belong to no script and are not counted.
    """
    counts: dict[str, int] = {}
    for char in text:
        script = _script(char)
        if script:
            counts[script] = counts.get(script, 0) + 1
    return counts


@lru_cache(maxsize=8_192)
def _script(char: str) -> str:
    """Script of a letter by its English name; empty for anything that is not a letter."""
    if not char.isalpha():
        return ""
    name = _WIDTHS.sub("", unicodedata.name(char, "UNKNOWN LETTER"))
    head = _HEAD.match(name)
    script = (head["script"] if head else name.split()[0]).title()
    return _RENAMED.get(script) or _RENAMED.get(script.split()[0], script)
