"""Can this model honour this request? Decided in one place, from the model's card.

Frontends check only what a card cannot say: languages, lengths, ranges of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from polychoir.errors import UnsupportedByModel
from polychoir.types import INSTRUCTIONS_IGNORED, ModelInfo, SamplingParams, SpeechRequest


def fit(request: SpeechRequest, info: ModelInfo, *, strict: bool) -> tuple[SpeechRequest, tuple[str, ...]]:
    """The request as the model can have it, with warning codes for what was left out.

    Only instructions may be left out, and not if `strict`. Raises UnsupportedByModel naming the field.
    """
    for name in _asked(request):
        if name not in info.fields:
            raise UnsupportedByModel(f"The model {info.name} cannot honour {name}.", param=name)
    _check_speed(request.speed, info)
    _check_normalize_text(request.normalize_text, info)
    if request.instructions is None or "instructions" in info.fields:
        return request, ()
    if strict:
        raise UnsupportedByModel(f"{info.name} takes no instructions.", param="instructions")
    return replace(request, instructions=None), (INSTRUCTIONS_IGNORED,)


def _asked(request: SpeechRequest) -> Iterator[str]:
    """Public names of the optional fields that the request sets."""
    for field in fields(SamplingParams):
        if getattr(request.sampling, field.name) is not None:
            yield field.name
    if request.duration is not None:
        yield "duration"
    if request.reference is not None:
        yield "ref_audio"
    if request.language is not None:
        yield "language"
    if request.speed != 1.0:
        yield "speed"


def _check_speed(speed: float, info: ModelInfo) -> None:
    slowest, fastest = info.speed_range
    if not slowest <= speed <= fastest:
        raise UnsupportedByModel(
            f"The model {info.name} speaks at speeds from {slowest:g} to {fastest:g}, not {speed:g}.",
            param="speed",
        )


def _check_normalize_text(wanted: bool | None, info: ModelInfo) -> None:
    """A model with this field writes out numbers by itself and cannot be told not to; no other one can."""
    if wanted is not None and wanted != ("normalize_text" in info.fields):
        raise UnsupportedByModel(
            f"normalize_text {str(wanted).lower()} is not supported by {info.name}.", param="normalize_text"
        )
