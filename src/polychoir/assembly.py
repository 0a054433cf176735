"""Puts the house together from settings: the one place that knows models, engines and voices at once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from polychoir.cluster.engine import WorkerEngine
from polychoir.cluster.supervisor import WorkerSpec
from polychoir.config import ModelReference, Settings
from polychoir.engine.calibrate import Calibration
from polychoir.engine.engine import Engine, LocalEngine
from polychoir.engine.plan import Limits, limits_for
from polychoir.errors import SettingError
from polychoir.lanes import Lanes
from polychoir.models.base import Model
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
    curves = calibration(settings)
    for reference in settings.models:
        model, limits = open_with_limits(reference, settings)
        engine = _engine(model, limits, reference, settings, curves)
        speaker = Speaker(model, engine, store, lanes, strict_instructions=settings.strict_instructions)
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


def calibration(settings: Settings) -> Calibration:
    """Where curves of step costs are kept, and from when on they count."""
    not_before = time.time() if settings.recalibrate else 0.0
    return Calibration(str(settings.data_dir / "calibration"), not_before)


def open_with_limits(reference: ModelReference, settings: Settings) -> tuple[Model, Limits]:
    """A model that is not loaded, and the bounds its engine gets. Raises as `build_speakers` does."""
    model = open_model(reference.reference, _options(reference, settings))
    limits = limits_for(
        model.info,
        batch=settings.batch,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_resident_seqs=settings.max_resident_seqs,
        max_concurrent_plans=settings.max_concurrent_plans,
        queue_limit=settings.queue_limit,
        ttfa_target_s=settings.ttfa_target_ms / 1e3,
    )
    return model, limits


def _engine(
    model: Model, limits: Limits, reference: ModelReference, settings: Settings, curves: Calibration
) -> Engine:
    """In this process, or in as many of its own as the settings say; one where the model's card wants it."""
    workers = settings.workers
    if workers == "auto":
        if not model.info.own_process:
            return LocalEngine(model, limits, calibration=curves)
        workers = 1
    options = _options(reference, settings)
    kernels = os.environ.get("TRITON_CACHE_DIR") or str(settings.data_dir / "triton")
    specs = [
        WorkerSpec(
            reference.reference,
            replace(options, device=device),
            limits,
            settings.step_timeout_s,
            {"TRITON_CACHE_DIR": kernels},
            curves,
        )
        for device in _devices(model.info, settings.device, workers)
    ]
    return WorkerEngine(model.info.name, specs)


def _devices(info: ModelInfo, device: str, workers: int) -> list[str]:
    """One device for each worker; workers on the CPU share it."""
    if workers == 1 or not info.own_process:
        return [device] * workers
    if device != "cuda":
        raise SettingError(
            f"{workers} workers of {info.name} need a device each: set device to cuda, not {device}",
            param="workers",
        )
    return [f"cuda:{number}" for number in range(workers)]


def _options(reference: ModelReference, settings: Settings) -> ModelOptions:
    return ModelOptions(
        name=reference.name,
        device=settings.device,
        dtype=settings.dtype,
        max_concurrent_plans=settings.max_concurrent_plans,
        max_num_seqs=settings.max_num_seqs,
        defaults=settings.request_defaults,
        # The engine's own limits, where they do not follow from max_num_seqs.
        extra={
            **settings.model_settings,
            "max_resident_seqs": settings.max_resident_seqs if settings.batch else 1,
            "max_num_batched_tokens": settings.max_num_batched_tokens,
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
