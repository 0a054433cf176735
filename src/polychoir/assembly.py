"""Puts the house together from settings: the one place that knows models, engines and voices at once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from polychoir.config import ModelReference, Settings
from polychoir.engine.engine import Engine
from polychoir.engine.plan import limits_for
from polychoir.errors import SettingError
from polychoir.lanes import Lanes
from polychoir.models.registry import open_model
from polychoir.pipeline import Speaker
from polychoir.types import ModelInfo, ModelOptions
from polychoir.voices import VoiceStore


def build_speakers(settings: Settings) -> dict[str, Speaker]:
    """Every model of the settings, by served name, the default one first. Nothing is loaded yet.

    Raises ModelLoadError for a checkpoint that cannot be used, SettingError for settings that clash.
    """
    lanes = Lanes(2 * (os.cpu_count() or 1))
    store = VoiceStore(_folder(settings.data_dir) / "voices")
    speakers: dict[str, Speaker] = {}
    for reference in settings.models:
        speaker = _speaker(reference, settings, store, lanes)
        if speaker.info.name in speakers:
            raise SettingError(
                f"two models are served as {speaker.info.name!r}: use NAME=PATH", param="model"
            )
        speakers[speaker.info.name] = speaker
    _check_read(settings, [speaker.info for speaker in speakers.values()])
    return speakers


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"cannot make data_dir {path}: {error.strerror}", param="data_dir") from error
    return path


def _speaker(reference: ModelReference, settings: Settings, store: VoiceStore, lanes: Lanes) -> Speaker:
    model = open_model(reference.reference, _options(reference, settings))
    limits = limits_for(
        model.info,
        batch=settings.batch,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_resident_seqs=settings.max_resident_seqs,
        max_concurrent_plans=settings.max_concurrent_plans,
        queue_limit=settings.queue_limit,
    )
    engine = Engine(model, limits)
    return Speaker(model, engine, store, lanes, strict_instructions=settings.strict_instructions)


def _options(reference: ModelReference, settings: Settings) -> ModelOptions:
    return ModelOptions(
        name=reference.name,
        device=settings.device,
        dtype=settings.dtype,
        max_concurrent_plans=settings.max_concurrent_plans,
        max_num_seqs=settings.max_num_seqs,
        defaults=settings.request_defaults,
        # The engine's own limit, where it does not follow from max_num_seqs.
        extra={
            **settings.model_settings,
            "max_resident_seqs": settings.max_resident_seqs if settings.batch else 1,
        },
    )


def _check_read(settings: Settings, cards: Iterable[ModelInfo]) -> None:
    """A setting that no served model can use would be accepted and ignored."""
    cards = tuple(cards)
    read = frozenset[str]().union(*(card.fields | card.settings for card in cards))
    given = settings.model_settings.keys() & settings.model_fields_set
    for name in (*settings.request_defaults, *sorted(given)):
        if name not in read:
            names = ", ".join(card.name for card in cards)
            raise SettingError(f"{name} is set, and no served model has it (served: {names})", param=name)
