"""Who speaks: names and what they mean on a model, and the voices kept so that they stay who they are."""

from __future__ import annotations

from polychoir.voices.names import LOCK_PHRASE, STOCK_VOICES, StockVoice
from polychoir.voices.resolve import VoiceEntry, list_voices, resolve
from polychoir.voices.store import VoiceStore

__all__ = [
    "LOCK_PHRASE",
    "STOCK_VOICES",
    "StockVoice",
    "VoiceEntry",
    "VoiceStore",
    "list_voices",
    "resolve",
]
