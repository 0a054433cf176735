"""What every one-shot voice checks beyond its card (`fit.py`): the speaker and the language are its own."""

from __future__ import annotations

from collections.abc import Collection

from polychoir.errors import UnsupportedByModel, VoiceNotFound
from polychoir.types import ModelInfo, VoiceChoice

LANGUAGE_VARIANT_IGNORED = "language_variant_ignored"
"""Warning code: the language is right, but the voice keeps its own regional accent."""


def check_voice(voice: VoiceChoice, info: ModelInfo) -> None:
    """Raises UnsupportedByModel for a voice that is no preset, VoiceNotFound for an unknown one."""
    if voice.prompt is not None or voice.instruct is not None:
        raise UnsupportedByModel(
            f"the model {info.name} cannot speak with a cloned or designed voice", param="voice"
        )
    if voice.preset is not None and voice.preset not in info.voices:
        raise VoiceNotFound(f"the model {info.name} has no voice {voice.preset[:64]!r}")


def language_warnings(
    language: str | None, info: ModelInfo, accent: str, names: Collection[str] = ()
) -> tuple[str, ...]:
    """Warning codes for a language asked for.

    Only the primary subtag must match: `en`, `en-US`, `en_GB`, `EN` are English to an English voice.

    accent: the tag the voice really speaks ("en-US"). names: what else its language is called, case-folded.
    Raises UnsupportedByModel for another language.
    """
    if language is None:
        return ()
    tag = language.strip().replace("_", "-").casefold()
    if tag in names:
        return ()
    if tag.partition("-")[0] not in info.languages:
        raise UnsupportedByModel(
            f"the voice {info.name} speaks {', '.join(info.languages)}, not {language[:64]!r}",
            param="language",
        )
    return () if tag in (tag.partition("-")[0], accent.casefold()) else (LANGUAGE_VARIANT_IGNORED,)
