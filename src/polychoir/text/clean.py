"""Unicode hygiene before any model sees a text; nothing here knows a language or reads a number aloud.

`clean` makes texts that look the same be the same: a model's tokenizer sees bytes, not glyphs, so a
decomposed accent or a zero-width blank would otherwise change the audio.
"""

from __future__ import annotations

import re
import unicodedata

MARKS_IN_A_ROW = 30
"""Longest run of combining marks kept: the bound of Unicode's Stream-Safe Text Format (UAX #15). No
orthography comes near it; stacked-mark "zalgo" goes far past it."""

_LINE_ENDS = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")

_BLANKS = re.compile("[\t\x1f\u00a0\u1680\u2000-\u200a\u202f\u205f\u2800\u3000]")

_INVISIBLE = re.compile(
    "["
    "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f"  # control characters that are no line end and no blank
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5"  # soft hyphen, grapheme joiner, fillers, inherent vowels
    "\u180b-\u180f"  # Mongolian variation selectors and vowel separator
    "\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"  # zero-width blank, direction marks, invisible operators
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffc"  # fillers, variation selectors, BOM, annotations
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # shorthand and music controls
    "\U000e0000-\U000e0fff"  # tags and supplementary variation selectors
    "\ud800-\udfff"  # half a character: cannot be encoded
    "]+"
)

# Joiners spell something only after a letter of a joining (Arabic to Mandaic, N'Ko, Mongolian) or a
# Brahmic script; elsewhere (emoji, Latin) they are glue that nobody can hear.
_JOINING = (
    "\u0620-\u085f\u0870-\u08ff\u0900-\u0dff\u0f00-\u109f\u1700-\u17ff\u1800-\u18af\u1900-\u1aaf\u1b00-\u1c4f"
    "\ua800-\ua82f\ua840-\ua8df\ua900-\ua95f\ua980-\uaadf\uabc0-\uabff\ufb50-\ufdff\ufe70-\ufefc"
    "\U00010a00-\U00010a5f\U00011000-\U000114df\U00011580-\U00011cbf"
)
_IDLE_JOINER = re.compile(f"(?<![{_JOINING}])[\u200c\u200d]+")

# To `re` a mark is neither a word character nor a blank, so this spares ordinary text the slow walk.
_MAYBE_TOWER = re.compile(f"[^\\w\\s]{{{MARKS_IN_A_ROW + 1}}}")


def clean(text: str) -> str:
    """The text as it is read: NFC, one kind of blank, one kind of line end, nothing invisible.

    Kept: line structure, runs of blanks, case, every visible character, and the joiners (U+200C, U+200D)
    that scripts such as Persian or Hindi are spelt with. Idempotent.
    """
    text = _LINE_ENDS.sub("\n", text)
    text = _BLANKS.sub(" ", text)
    text = _INVISIBLE.sub("", text)
    text = _IDLE_JOINER.sub("", text)
    text = unicodedata.normalize("NFC", text)
    return _without_mark_towers(text)


def is_speakable(text: str) -> bool:
    """True if at least one character is a letter or a number: punctuation and emoji alone are silence.

    Modifier letters (a lone lengthening mark, a superscript h) do not count: there is nothing to modify.
    """
    return any(
        category[0] in "LN" and category != "Lm"
        for category in map(unicodedata.category, dict.fromkeys(text))
    )


def _without_mark_towers(text: str) -> str:
    """Cut runs of combining marks at `MARKS_IN_A_ROW`."""
    if _MAYBE_TOWER.search(text) is None:
        return text
    kept: list[str] = []
    run = 0
    for char in text:
        run = run + 1 if unicodedata.category(char)[0] == "M" else 0
        if run <= MARKS_IN_A_ROW:
            kept.append(char)
    return "".join(kept)
