"""Every setting, declared once: the flag, POLYCHOIR_NAME and the key in polychoir.toml all come from here.

`Settings(...)` itself looks at its arguments alone; `load_settings` is what reads the environment and the
file. A setting whose feature does not exist yet is declared too, so that asking for it is an error that
names it (`unbuilt.py`) and never a silent nothing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from polychoir.config.unbuilt import refuse_unbuilt
from polychoir.errors import SettingError

EMBEDDED_VOICE = "hibari"
MOST_MODELS = 16

REQUEST_DEFAULTS = (
    "num_step",
    "guidance_scale",
    "t_shift",
    "position_temperature",
    "class_temperature",
    "layer_penalty_factor",
    "denoise",
    "preprocess_prompt",
    "postprocess_output",
)
"""Settings that are the default of the request field of the same name."""

_VALUE_ALIASES: Mapping[str, Mapping[str, str]] = {
    "dtype": {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"},
    "runner_mode": {"official": "eager"},
}


def platform_data_dir() -> Path:
    """The folder in which this platform keeps an application's data; it is not created here."""
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "polychoir"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "polychoir"
    return Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "polychoir"


@dataclass(frozen=True, slots=True)
class ModelReference:
    """One model to serve. `reference` is a path, a hub id or an entry-point name; `name` the served name."""

    reference: str
    name: str | None = None


def _setting(default: Any, description: str, *aliases: str, **limits: Any) -> Any:
    """A field whose older names are `aliases`: they work as flag, environment name and file key alike."""
    return Field(default, description=description, json_schema_extra={"aliases": list(aliases)}, **limits)


_DEVICE_SETTINGS = ("prompt_cache_mb", "runner_mode", "gpu_memory_utilization")
"""What an iterative model on a device reads; others have no use for it."""


class Settings(BaseModel):
    """What a server or a command runs with: checked, complete, and not to be changed afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    # -- Models
    model: tuple[str, ...] = _setting(
        (EMBEDDED_VOICE,),
        "path, hub id or entry-point name, or NAME=any of these; the first is the default",
        "model_id",
    )
    served_model_name: str | None = _setting(None, "served name when there is one model")
    device: str = _setting("auto", "auto, cpu, mps, cuda or cuda:N")
    dtype: Literal["auto", "float32", "float64", "bfloat16", "float16"] = _setting(
        "auto", "number format of the weights: auto, float32, float64, bfloat16, float16"
    )
    adapter: tuple[str, ...] = _setting((), "NAME=PATH of a LoRA adapter")
    runner_mode: Literal["auto", "eager", "graph", "triton", "hybrid"] = _setting(
        "auto", "how an iterative model is run"
    )
    deterministic: Literal["auto"] | bool = _setting("auto", "bit-equal on the GPU, alone and together")
    quantization: Literal["none", "fp8", "int8"] = _setting("none", "quantised weights")
    runtime: Literal["torch", "onnx", "openvino", "tensorrt", "neuron"] = _setting("torch", "what runs it")
    gpu_memory_utilization: float = _setting(0.9, "share of GPU memory to plan with", gt=0, le=1)

    # -- Where to listen
    host: str = _setting("127.0.0.1", "address to listen on", min_length=1)
    port: int = _setting(8000, "port to listen on; 0 takes a free one", ge=0, le=65_535)
    uds: Path | None = _setting(None, "listen on this Unix socket instead of host and port")
    ssl_certfile: Path | None = _setting(None, "certificate chain for https")
    ssl_keyfile: Path | None = _setting(None, "private key of the certificate")
    open: bool = _setting(False, "open the web page in a browser once ready")

    # -- Processes
    workers: Literal["auto"] | int = _setting(
        "auto",
        "worker processes for each model; auto: one where a GPU may be used, else none",
        "gpu_inferer",
    )
    step_timeout_s: float | None = _setting(
        None,
        "seconds without a step's end until a worker process is taken to hang and replaced; "
        "unset: 30, on the CPU 300",
        gt=0,
        le=86_400,
    )
    api_workers: Literal["auto"] | int = _setting("auto", "API processes", "fastapi_workers")
    drain_timeout: float = _setting(
        30.0, "seconds that running requests get to end when the server stops", "shutdown_timeout", ge=0
    )

    # -- Batching
    batch: bool = _setting(True, "batch requests; without, they run one by one", "batch_enabled")
    max_num_seqs: int | None = _setting(
        None,
        "most rows in one step; unset: 256 for an iterative model, 8 for a one-shot one",
        "batch_max_size",
        "max_batch_size",
        "batch_size",
        ge=1,
        le=65_536,
    )
    max_resident_seqs: int | None = _setting(
        None, "most rows holding a device slot; unset: 4 times max_num_seqs", ge=1, le=262_144
    )
    max_num_batched_tokens: int | None = _setting(
        None, "most tokens in one step; unset: the model's own figure", ge=1
    )
    max_concurrent_plans: int | None = _setting(
        None,
        "device calls in flight; unset: cores for one-item CPU models, else 2",
        "max_concurrent",
        "cuda_stream_count",
        "cuda_streams",
        ge=1,
        le=1_024,
    )
    batch_timeout_ms: float = _setting(
        0.0, "ceiling of the adaptive hold, one-shot models", "max_batch_latency", "batch_wait_ms", ge=0
    )
    group_step_tolerance: int = _setting(0, "fixed-shape models: group rows this many steps apart", ge=0)
    recalibrate: bool = _setting(False, "measure the step costs again at start")

    # -- Admission
    queue_limit: int = _setting(2_000, "most waiting rows of a tier; more is 429", ge=1, le=1_000_000)
    request_timeout_s: float = _setting(
        600.0, "seconds a request may take unless it says its own timeout", "timeout", gt=0, le=86_400
    )
    ttfa_target_ms: float = _setting(300.0, "time to first audio that admission keeps", gt=0, le=600_000)

    # -- Defaults of request fields
    num_step: int | None = _setting(None, "unmasking steps", "default_num_step", ge=1, le=128)
    guidance_scale: float | None = _setting(None, "classifier-free guidance", ge=0, le=10)
    t_shift: float | None = _setting(None, "shift of the unmasking timetable", gt=0, le=2)
    position_temperature: float | None = _setting(None, "randomness of which cells are revealed", ge=0, le=10)
    class_temperature: float | None = _setting(None, "randomness of what is revealed", ge=0, le=2)
    layer_penalty_factor: float | None = _setting(None, "how much later codebooks wait", ge=0, le=100)
    denoise: bool | None = _setting(None, "ask for clean speech where a reference is noisy")
    preprocess_prompt: bool | None = _setting(None, "trim and level a reference clip")
    postprocess_output: bool | None = _setting(None, "trim silences, level and fade what comes out")

    # -- Text and voices
    data_dir: Path = _setting(..., "folder of stored voices, files, jobs and calibrations")
    prompt_cache_mb: int = _setting(256, "memory for encoded reference clips", ge=0, le=65_536)
    max_clone_audio_prompt_cache: int | None = _setting(None, "the same, as a number of clips", ge=0)
    max_continuity_audio_tokens: int | None = _setting(None, "audio frames carried into the next chunk", ge=0)
    max_continuity_text_words: int | None = _setting(None, "words carried into the next chunk", ge=0)
    text_chunk_words: int | None = _setting(None, "words in a chunk", ge=1)
    require_consent: bool = _setting(False, "a voice can be cloned only with a recorded consent")

    # -- Door
    api_key: str | None = _setting(None, "bearer key that requests must carry", min_length=1, repr=False)
    keys_file: Path | None = _setting(None, "file of several keys with limits")
    allowed_origins: tuple[str, ...] = _setting(
        (), "web origins allowed beside the server's own and localhost", "cors_origins", "cors_allow_origins"
    )
    public_lists: bool = _setting(True, "voices and models can be listed without a key")
    strict_fields: bool = _setting(False, "an unknown request field is 400")
    strict_instructions: bool = _setting(False, "instructions that cannot be honoured are 400")
    stream_default: bool = _setting(False, "send audio as it is made unless asked otherwise", "stream")

    # -- Logs
    log_requests: bool = _setting(False, "write request texts into the log")
    log_file: Path | None = _setting(None, "write the log here instead of stderr")
    log_dir: Path | None = _setting(None, "folder with one subfolder of logs per run")
    log_run_id: str | None = _setting(None, "name of this run's subfolder")
    pid_file: Path | None = _setting(None, "write the process id here; removed at the end")

    # -- The fake model
    fake_step_ms: float = _setting(1.0, "milliseconds a step takes", ge=0)
    fake_us_per_token: float = _setting(2.0, "microseconds more for each token of the step", ge=0)
    fake_steps: int = _setting(8, "steps of a sequence", ge=1, le=1_024)
    fake_tokens_per_char: int = _setting(4, "tokens for each character", ge=1, le=10_000)
    fake_fail_rate: float = _setting(0.0, "share of sequences that fail", ge=0, le=1)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("data_dir") is None:
            return {**values, "data_dir": platform_data_dir()}
        return values

    @field_validator("model", "adapter", "allowed_origins", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """One string is a comma-separated list: that is all the environment can say."""
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value

    @field_validator("dtype", "runner_mode", mode="before")
    @classmethod
    def _older_values(cls, value: Any, info: Any) -> Any:
        return _VALUE_ALIASES[info.field_name].get(value, value) if isinstance(value, str) else value

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", value):
            raise ValueError(f"{value!r} is none of auto, cpu, mps, cuda, cuda:N")
        return value

    @field_validator("workers", "api_workers")
    @classmethod
    def _at_least_one(cls, value: Literal["auto"] | int) -> Literal["auto"] | int:
        if value != "auto" and value < 1:
            raise ValueError("must be auto or at least 1")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Settings:
        refuse_unbuilt(self.model_dump())
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise SettingError("ssl_certfile and ssl_keyfile belong together", param="ssl_certfile")
        _check_models(self.models, self.served_model_name)
        return self

    @property
    def models(self) -> tuple[ModelReference, ...]:
        """The models to serve, the default one first."""
        found = tuple(_parse_model(text) for text in self.model)
        if self.served_model_name is not None and len(found) == 1:
            return (ModelReference(found[0].reference, found[0].name or self.served_model_name),)
        return found

    @property
    def request_defaults(self) -> dict[str, float | int | bool]:
        """Request defaults that were set, by field name; the rest are the model's own."""
        return {name: value for name in REQUEST_DEFAULTS if (value := getattr(self, name)) is not None}

    @property
    def model_settings(self) -> dict[str, float | int | str]:
        """Settings that only some models read (`ModelInfo.settings`), by name."""
        names = [name for name in Settings.model_fields if name.startswith("fake_")]
        return {name: getattr(self, name) for name in (*names, *_DEVICE_SETTINGS)}


def _parse_model(text: str) -> ModelReference:
    """NAME=REFERENCE or REFERENCE. A `=` behind a slash belongs to a path."""
    name, equals, reference = text.partition("=")
    if equals and "/" not in name and "\\" not in name:
        if not name or not reference:
            raise SettingError(f"model {text!r} must be NAME=REFERENCE", param="model")
        return ModelReference(reference, name)
    return ModelReference(text)


def _check_models(models: tuple[ModelReference, ...], served_model_name: str | None) -> None:
    if not 0 < len(models) <= MOST_MODELS or any(not model.reference for model in models):
        raise SettingError(f"model must name 1 to {MOST_MODELS} models", param="model")
    if served_model_name is not None and len(models) > 1:
        raise SettingError(
            "served_model_name names one model; with several, write NAME=REFERENCE for each",
            param="served_model_name",
        )
    if served_model_name not in (None, models[0].name) and models[0].name is not None:
        raise SettingError(
            f"served_model_name and model give two names, {served_model_name!r} and {models[0].name!r}",
            param="served_model_name",
        )
    names = [model.name or model.reference for model in models]
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"two models would be served as {name!r}; give one a NAME=", param="model")
