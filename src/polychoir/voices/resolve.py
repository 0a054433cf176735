"""What a request's `voice` means on a model.

A name is looked up, never opened: it may hold anything (a path, NUL, a megabyte) and no file is touched
with it. A named voice is used, or stands in for one by a stated rule and a warning, or the call fails.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from polychoir.errors import VoiceNotFound
from polychoir.types import ModelInfo, VoiceChoice
from polychoir.voices.names import DEFAULT_STOCK_VOICE, STOCK_VOICES, StockVoice

if TYPE_CHECKING:
    from polychoir.voices.store import VoiceStore

AUTO = "auto"
DEFAULT = "default"
SUBSTITUTED = "voice_substituted"
"""Warning code: the model has no such voice and gave its first one."""

DESIGN_FIELD = "instructions"
"""A model that honours this field can be asked for a kind of speaker."""

_ECHOED = 64
_NEAR = 5

VoiceKind = Literal["preset", "stock", "substitute", "auto", "default"]


@dataclass(frozen=True, slots=True)
class VoiceEntry:
    """One line of a model's voices list. `speaks_as`: the voice it is, where that has another name."""

    id: str
    name: str
    kind: VoiceKind
    description: str
    speaks_as: str | None = None


def resolve(name: str | None, info: ModelInfo, store: VoiceStore) -> VoiceChoice:
    """The voice `name` stands for on the model `info` describes; case never matters.

    A preset is itself. None or `auto`: the model picks (its first preset, if it has any). `default`: the
    first preset, else the stock voice `alloy`. One of the 13 stock names: on a model that can be asked for a
    kind of speaker, the locked prompt from `store`, or until it is locked the design to lock (`instruct`);
    on any other model its first voice, with the warning `voice_substituted`.

    Raises VoiceNotFound, naming near misses, for anything else.
    """
    wanted = AUTO if name is None else name.casefold()
    preset = _preset(wanted, info)
    if preset is not None:
        return VoiceChoice(id=preset, preset=preset)
    if wanted == DEFAULT and not info.voices and _designs(info):
        wanted = DEFAULT_STOCK_VOICE
    if wanted in (AUTO, DEFAULT):
        return _first(info)
    if wanted not in STOCK_VOICES:
        raise VoiceNotFound(_unknown(name or "", info))
    if not _designs(info):
        return _first(info, SUBSTITUTED)
    return _stock(STOCK_VOICES[wanted], info, store)


def list_voices(info: ModelInfo) -> tuple[VoiceEntry, ...]:
    """Every name `resolve` accepts on this model: its presets, then auto and default, then the 13."""
    presets = [VoiceEntry(voice, voice, "preset", f"A voice of {info.name}") for voice in info.voices]
    first = info.voices[0] if info.voices else None
    default = first or (DEFAULT_STOCK_VOICE if _designs(info) else None)
    auto_words = "The first voice of the model" if first else "A voice the model makes up; the seed decides"
    general = [
        VoiceEntry(AUTO, AUTO, "auto", auto_words, first),
        VoiceEntry(DEFAULT, DEFAULT, "default", "The model's default voice", default or AUTO),
    ]
    taken = {voice.casefold() for voice in info.voices}
    names = [voice for voice in STOCK_VOICES.values() if voice.name not in taken]
    general = [entry for entry in general if entry.id not in taken]
    return (*presets, *general, *(_stock_entry(voice, info) for voice in names))


def _stock_entry(voice: StockVoice, info: ModelInfo) -> VoiceEntry:
    if _designs(info):
        return VoiceEntry(voice.name, voice.name, "stock", voice.design)
    instead = info.voices[0] if info.voices else AUTO
    return VoiceEntry(
        voice.name, voice.name, "substitute", f"Not on this model: speaks as {instead}", instead
    )


def _stock(voice: StockVoice, info: ModelInfo, store: VoiceStore) -> VoiceChoice:
    prompt = store.get(info.name, voice.name)
    if prompt is not None:
        return VoiceChoice(id=voice.name, prompt=prompt)
    return VoiceChoice(id=voice.name, instruct=voice.design)


def _first(info: ModelInfo, *warnings: str) -> VoiceChoice:
    if info.voices:
        return VoiceChoice(id=info.voices[0], preset=info.voices[0], warnings=warnings)
    return VoiceChoice(id=AUTO, warnings=warnings)


def _preset(wanted: str, info: ModelInfo) -> str | None:
    return next((voice for voice in info.voices if voice.casefold() == wanted), None)


def _designs(info: ModelInfo) -> bool:
    return DESIGN_FIELD in info.fields


def _unknown(name: str, info: ModelInfo) -> str:
    """A message of bounded length, safe to print, whatever the name was."""
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name[:_ECHOED])
    more = "..." if len(name) > _ECHOED else ""
    known = {voice.casefold(): voice for voice in (*info.voices, AUTO, DEFAULT, *STOCK_VOICES)}
    near = [known[voice] for voice in difflib.get_close_matches(name[:_ECHOED].casefold(), known, _NEAR)]
    hint = f"did you mean {' or '.join(near)}?" if near else "GET /v1/audio/voices lists those it has."
    return f"The model {info.name} has no voice '{shown}{more}'; {hint}"
