"""All checks in their order. A new one is a function that gives a Section, and a line here."""

from __future__ import annotations

from polychoir.config import Settings
from polychoir.doctor.place import devices, find_gpus, likely_kind, versions
from polychoir.doctor.section import Section
from polychoir.doctor.speed import model_section


def examine(settings: Settings) -> list[Section]:
    """Everything there is to say about this machine and the models of the settings."""
    gpus = find_gpus()
    likely = likely_kind(settings.device, gpus)
    models = [model_section(reference, settings, likely) for reference in settings.models]
    return [versions(), devices(gpus), *models]
