"""What every one-shot voice checks before it spends a moment on a request.

A one-shot graph has no sampling steps, no reference and no length to aim at: the fields that steer those are
refused by their public names, never dropped.
"""

from __future__ import annotations

from dataclasses import fields

from polychoir.errors import UnsupportedByModel, VoiceNotFound
from polychoir.types import ModelInfo, SamplingParams, SpeechRequest, VoiceChoice

INSTRUCTIONS_IGNORED = "instructions_ignored"
"""Warning code: the wish was left out, for this model cannot be told how to speak."""

LANGUAGE_VARIANT_IGNORED = "language_variant_ignored"
"""Warning code: the language is right, but the voice keeps its own regional accent."""


def check_request(
    request: SpeechRequest, voice: VoiceChoice, info: ModelInfo, accent: str
) -> tuple[str, ...]:
    """Warning codes for what is left out. `accent` is the language tag the voice really speaks ("en-US").

    Raises UnsupportedByModel naming the field for anything the voice cannot honour, VoiceNotFound for a
    preset that it does not have.
    """
    _check_fields(request, info)
    _check_speed(request.speed, info)
    _check_voice(voice, info)
    warnings = _language_warnings(request.language, info, accent)
    return (*warnings, INSTRUCTIONS_IGNORED) if request.instructions else warnings


def _check_fields(request: SpeechRequest, info: ModelInfo) -> None:
    asked = {field.name: getattr(request.sampling, field.name) for field in fields(SamplingParams)}
    asked |= {"duration": request.duration, "ref_audio": request.reference}
    for name, value in asked.items():
        if value is not None and name not in info.fields:
            raise UnsupportedByModel(f"the voice {info.name} cannot honour {name}", param=name)


def _check_speed(speed: float, info: ModelInfo) -> None:
    slowest, fastest = info.speed_range
    if not slowest <= speed <= fastest:
        raise UnsupportedByModel(
            f"the voice {info.name} speaks at speeds from {slowest:g} to {fastest:g}, not {speed:g}",
            param="speed",
        )


def _check_voice(voice: VoiceChoice, info: ModelInfo) -> None:
    if voice.prompt is not None or voice.instruct is not None:
        raise UnsupportedByModel(
            f"the model {info.name} cannot speak with a cloned or designed voice", param="voice"
        )
    if voice.preset is not None and voice.preset not in info.voices:
        raise VoiceNotFound(f"the model {info.name} has no voice {voice.preset[:64]!r}")


def _language_warnings(language: str | None, info: ModelInfo, accent: str) -> tuple[str, ...]:
    """Only the primary subtag must match: `en`, `en-US`, `en_GB`, `EN` are English to an English voice."""
    if language is None:
        return ()
    tag = language.strip().replace("_", "-").casefold()
    if tag.partition("-")[0] not in info.languages:
        raise UnsupportedByModel(
            f"the voice {info.name} speaks {', '.join(info.languages)}, not {language[:64]!r}",
            param="language",
        )
    return () if tag in (tag.partition("-")[0], accent.casefold()) else (LANGUAGE_VARIANT_IGNORED,)
