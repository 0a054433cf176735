"""The 646 languages the model was trained to be told about, and how people write them.

`languages.tsv` holds id and name, one a line. An id or a name is accepted in any case, with a region or
script behind it (`pt-BR`, `zh_Hant`), and so are the common codes of ISO 639 that the table knows under
another id.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

# Codes people send, and the table's own id of the same language. Where a code covers several languages
# (Arabic, Nepali, Pashto) it means the standard or most spoken one.
_ALIASES = {
    "ar": "arb", "cmn": "zh", "fas": "fa", "in": "id", "iw": "he", "ku": "kmr", "mg": "plt", "ne": "npi",
    "or": "ory", "tl": "fil", "ji": "yi", "ara": "arb", "ben": "bn", "deu": "de", "eng": "en",
    "fra": "fr", "heb": "he", "hin": "hi", "ind": "id", "ita": "it", "jpn": "ja", "kor": "ko", "nep": "npi",
    "nld": "nl", "pol": "pl", "por": "pt", "rus": "ru", "spa": "es", "swe": "sv", "tgl": "fil", "tha": "th",
    "tur": "tr", "ukr": "uk", "vie": "vi", "zho": "zh", "arabic": "arb", "mandarin": "zh", "nepali": "npi",
    "tagalog": "fil", "kurdish": "kmr", "malagasy": "plt", "pashto": "pbt",
}  # fmt: skip
_UNSAID = frozenset({"", "none", "auto"})


@cache
def names() -> Mapping[str, str]:
    """Language names by id."""
    table = files(__package__).joinpath("languages.tsv").read_text(encoding="utf-8")
    return dict(line.split("\t") for line in table.splitlines())


def find(language: str | None) -> str | None:
    """The id of a language given by id, code or name; None for one that is unknown or was not said."""
    if language is None or not is_said(language):
        return None
    key = _key(language)
    known = _by_key()
    return known.get(key) or known.get(key.replace("_", "-").split("-")[0])


def is_said(language: str) -> bool:
    """False for the words that ask for no language in particular."""
    return _key(language) not in _UNSAID


@cache
def _by_key() -> Mapping[str, str]:
    by_name = {_key(name): index for index, name in names().items()}
    return _ALIASES | by_name | {index: index for index in names()}


def _key(language: str) -> str:
    return unicodedata.normalize("NFC", language).strip().lower()
