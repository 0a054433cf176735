"""Which letters the embedded voice can read, and how close relatives are brought down to them.

Left alone, its phonemiser leaves Han out without a word and spells Cyrillic by the names of the letters.
Both would be a wrong answer with status 200, so other scripts are refused here, before any synthesis.
"""

from __future__ import annotations

import unicodedata

from polychoir.errors import UnspeakableText
from polychoir.text import scripts

_SHOWN = 10
_MICRO = "\u00b5"  # a unit's prefix, not a Greek letter, though Unicode calls it a letter


def readable(text: str, alphabet: frozenset[str]) -> str:
    """The text in letters of `alphabet` (those the phonemiser knows); everything that is no letter is kept.

    Accents the alphabet lacks are dropped from their letters, wide and mathematical forms become plain
    ones, loose combining marks go. Raises UnspeakableText naming the scripts and the first letters of
    anything else.
    """
    changes: dict[str, str | int | None] = {}
    foreign: list[str] = []
    for char in dict.fromkeys(text):
        plain = _plain(char, alphabet)
        if plain is None:
            foreign.append(char)
        elif plain != char:
            changes[char] = plain
    if foreign:
        raise UnspeakableText(_refusal(foreign))
    return text.translate(str.maketrans(changes)) if changes else text


def _plain(char: str, alphabet: frozenset[str]) -> str | None:
    """What stands for `char`, or None if the voice has nothing like it."""
    if char.isascii() or char == _MICRO:
        return char
    if unicodedata.category(char)[0] == "M":
        return ""
    if not char.isalpha() or (char in alphabet and _is_latin(char)):
        return char
    bare = "".join(c for c in unicodedata.normalize("NFKD", char) if unicodedata.category(c)[0] != "M")
    return bare if bare and all(c in alphabet and _is_latin(c) for c in bare) else None


def _is_latin(char: str) -> bool:
    return "Latin" in scripts(char)


def _refusal(foreign: list[str]) -> str:
    by_script: dict[str, str] = {}
    for char in foreign[:_SHOWN]:
        script = next(iter(scripts(char)), "Common")
        by_script[script] = by_script.get(script, "") + char
    found = ", ".join(f"{script} {chars!r}" for script, chars in by_script.items())
    return f"this voice reads English in Latin letters; it cannot say {found}"
