"""Request settings of the model: ranges, and defaults where a request is silent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from polychoir.errors import InvalidRequest
from polychoir.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Settings:
    """One request's settings, complete and checked."""

    num_step: int = 32
    guidance_scale: float = 2.0
    t_shift: float = 0.1
    position_temperature: float = 5.0
    class_temperature: float = 0.0
    layer_penalty_factor: float = 5.0
    denoise: bool = True
    preprocess_prompt: bool = True
    postprocess_output: bool = True


DEFAULTS: Mapping[str, float | int | bool] = MappingProxyType(
    {field.name: getattr(Settings(), field.name) for field in fields(Settings)}
)
"""The published defaults, by public field name."""

RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "num_step": (1, 128),
        "guidance_scale": (0, 10),
        "t_shift": (0.001, 10),
        "position_temperature": (0, 100),
        "class_temperature": (0, 10),
        "layer_penalty_factor": (0, 100),
    }
)
"""Both ends are allowed."""

LEAST_TEMPERATURE = 0.001
"""Of those that are not 0."""


def settings_from(sampling: SamplingParams, defaults: Mapping[str, float | int | bool]) -> Settings:
    """What the request says, else `defaults`, else the published defaults. Raises InvalidRequest."""
    values = {**DEFAULTS, **{name: value for name, value in defaults.items() if name in DEFAULTS}}
    for name in DEFAULTS:
        said = getattr(sampling, name)
        if said is not None:
            values[name] = said
    for name, (low, high) in RANGES.items():
        check_range(name, values[name], low, high)
    for name in ("position_temperature", "class_temperature"):
        if values[name] != 0:  # a smaller divisor overflows float32, and means no more than 0 does
            check_range(name, values[name], LEAST_TEMPERATURE, RANGES[name][1])
    if values["num_step"] != int(values["num_step"]):
        raise InvalidRequest("num_step must be a whole number", param="num_step")
    return Settings(
        num_step=int(values["num_step"]),
        guidance_scale=float(values["guidance_scale"]),
        t_shift=float(values["t_shift"]),
        position_temperature=float(values["position_temperature"]),
        class_temperature=float(values["class_temperature"]),
        layer_penalty_factor=float(values["layer_penalty_factor"]),
        denoise=bool(values["denoise"]),
        preprocess_prompt=bool(values["preprocess_prompt"]),
        postprocess_output=bool(values["postprocess_output"]),
    )


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raises InvalidRequest that names the field and the range."""
    if not (math.isfinite(value) and low <= value <= high):
        raise InvalidRequest(f"{name} must be between {low:g} and {high:g}, got {value:g}", param=name)
