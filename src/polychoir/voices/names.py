"""The 13 voice names every OpenAI client knows, and the speakers they are here.

OpenAI's speakers are not copied: each name is a speaker of our own, designed from OmniVoice's attributes (at
most one each of gender, age, pitch, accent) so that no two share a design and each suits what the name is
commonly used for: a man or a woman, a dark or a bright voice.

A design only says what kind of speaker; a seed makes it one speaker. The first use of a name says
`LOCK_PHRASE` with the name's seed, and the codes of that are kept (`VoiceStore`) as the prompt of every
later use. Changing a design, a seed or the phrase makes other people of voices not locked yet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

LOCK_PHRASE = (
    "On calm evenings the ferry crosses the bay without a sound, and those who watch from the pier "
    "may just hear five voices singing."
)
"""About seven seconds with most English sounds in it: OmniVoice clones best from three to ten."""


@dataclass(frozen=True, slots=True)
class StockVoice:
    """One of the 13: `design` in the model's attribute words, `seed` for the locking run."""

    name: str
    design: str
    seed: int


def _seed(name: str) -> int:
    """32 bits that depend on the name alone, in every process and release."""
    return int.from_bytes(hashlib.sha256(f"polychoir stock voice {name}".encode()).digest()[:4], "big")


_DESIGNS = {
    "alloy": "female, young adult, moderate pitch, american accent",
    "ash": "male, young adult, moderate pitch, american accent",
    "ballad": "male, young adult, moderate pitch, british accent",
    "coral": "female, young adult, high pitch, american accent",
    "echo": "male, middle-aged, moderate pitch, american accent",
    "fable": "male, middle-aged, moderate pitch, british accent",
    "onyx": "male, middle-aged, very low pitch, american accent",
    "nova": "female, young adult, high pitch, canadian accent",
    "sage": "female, middle-aged, moderate pitch, american accent",
    "shimmer": "female, young adult, moderate pitch, british accent",
    "verse": "male, young adult, low pitch, canadian accent",
    "marin": "female, middle-aged, low pitch, american accent",
    "cedar": "male, middle-aged, low pitch, american accent",
}

STOCK_VOICES: Mapping[str, StockVoice] = {
    name: StockVoice(name, design, _seed(name)) for name, design in _DESIGNS.items()
}

DEFAULT_STOCK_VOICE = "alloy"
"""What `default` is on a model that makes its voices up: the name OpenAI lists first and its examples use."""
