"""Settings that are promised and not there yet: setting one stops the start with an error that names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polychoir.errors import SettingError

UNBUILT: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "api_workers": (("auto", 1), "several API processes"),
    "batch_timeout_ms": ((0.0,), "the adaptive hold; a plan starts as soon as there is room"),
    "group_step_tolerance": ((0,), "grouping rows of different steps"),
    "adapter": (((),), "LoRA adapters"),
    "deterministic": (("auto", False), "bit-equal GPU kernels"),
    "quantization": (("none",), "quantised weights"),
    "runtime": (("torch",), "compiled formats of an iterative model"),
    "max_clone_audio_prompt_cache": ((None,), "a prompt cache counted in clips; prompt_cache_mb bounds it"),
    "max_continuity_audio_tokens": ((None,), "bounds on what is carried from chunk to chunk"),
    "max_continuity_text_words": ((None,), "bounds on what is carried from chunk to chunk"),
    "text_chunk_words": ((None,), "chunk sizes by setting"),
    "require_consent": ((False,), "recorded consents"),
    "keys_file": ((None,), "several keys"),
    "stream_default": ((False,), "streaming; whole answers are sent"),
    "open": ((False,), "the web page"),
    "log_dir": ((None,), "a folder of logs per run; log_file names one file"),
    "log_run_id": ((None,), "a folder of logs per run; log_file names one file"),
}
"""name -> (values that ask for nothing, what is missing)."""


def refuse_unbuilt(values: Mapping[str, Any]) -> None:
    """Raise SettingError for the first value that asks for something that does not exist yet."""
    for name, (harmless, missing) in UNBUILT.items():
        if values[name] not in harmless:
            raise SettingError(f"{name} = {values[name]!r} is not built yet: {missing}", param=name)
