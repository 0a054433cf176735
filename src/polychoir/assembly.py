"""Puts the house together from settings: the one place that knows models, engines and voices at once."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from polychoir.config import ModelReference, Settings
from polychoir.engine.engine import Engine
from polychoir.engine.plan import limits_for
from polychoir.errors import SettingError
from polychoir.models.registry import open_model
from polychoir.pipeline import Speaker
from polychoir.types import ModelInfo, ModelOptions
from polychoir.voices import VoiceStore


def build_speakers(settings: Settings) -> dict[str, Speaker]:
    """Every model of the settings, by served name, the default one first. Nothing is loaded yet.

    Raises ModelLoadError for a checkpoint that cannot be used, SettingError for settings that clash.
    """
    threads = ThreadPoolExecutor(2 * (os.cpu_count() or 1), thread_name_prefix="polychoir-desk")
    store = VoiceStore(settings.data_dir / "voices")
    speakers: dict[str, Speaker] = {}
    for reference in settings.models:
        speaker = _speaker(reference, settings, store, threads)
        if speaker.info.name in speakers:
            raise SettingError(
                f"two models are served as {speaker.info.name!r}: use NAME=PATH", param="model"
            )
        speakers[speaker.info.name] = speaker
    return speakers


def _speaker(
    reference: ModelReference, settings: Settings, store: VoiceStore, threads: ThreadPoolExecutor
) -> Speaker:
    model = open_model(reference.reference, _options(reference, settings))
    _check_defaults(model.info, settings)
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
    return Speaker(model, engine, store, threads, strict_instructions=settings.strict_instructions)


def _options(reference: ModelReference, settings: Settings) -> ModelOptions:
    return ModelOptions(
        name=reference.name,
        device=settings.device,
        dtype=settings.dtype,
        max_concurrent_plans=settings.max_concurrent_plans,
        max_num_seqs=settings.max_num_seqs,
        defaults=settings.request_defaults,
        extra={**settings.fake_options, "prompt_cache_mb": settings.prompt_cache_mb},
    )


def _check_defaults(info: ModelInfo, settings: Settings) -> None:
    """A request default that the model cannot honour would be accepted and ignored."""
    for name in settings.request_defaults:
        if name not in info.fields:
            raise SettingError(f"the model {info.name} has no {name}", param=name)
