"""A checked OmniVoice checkpoint that is not loaded: its card, its text side, and how to load it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from polychoir.errors import ModelLoadError
from polychoir.models.omnivoice import languages
from polychoir.models.omnivoice.checkpoint import Checkpoint
from polychoir.models.omnivoice.frontend import OmniVoiceFrontend
from polychoir.models.omnivoice.row import SAMPLE_RATE
from polychoir.models.omnivoice.settings import DEFAULTS
from polychoir.types import ModelInfo, ModelOptions

if TYPE_CHECKING:
    import torch

    from polychoir.models.base import Runner
    from polychoir.runner.build import RunnerPlan

_log = logging.getLogger(__name__)
_PACKAGES = ("torch", "transformers", "safetensors", "tokenizers")
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_DEFAULT_ROWS = 256
_RESIDENT_PER_ROW = 4
_PROMPT_CACHE_MB = 256
_MEMORY_UTILIZATION = 0.9
_RESIDENT_TOKENS = 1 << 20
"""Tokens of all resident rows: 32 bytes each on the device, and 25 times the longest row there can be."""
_OTHER_FIELDS = frozenset(
    {"language", "instructions", "seed", "duration", "speed", "ref_audio", "ref_text", "voice"}
)


class OmniVoiceModel:
    """A Model. Everything heavy is imported in `load`."""

    def __init__(self, checkpoint: Checkpoint, options: ModelOptions) -> None:
        """Raises ModelLoadError for a device or dtype setting that means nothing."""
        self._checkpoint = checkpoint
        self._options = options
        if options.dtype not in ("auto", *_DTYPES):
            raise ModelLoadError(
                f"dtype {options.dtype!r} is not one of auto, {', '.join(_DTYPES)}", param="dtype"
            )
        absent = [package for package in _PACKAGES if find_spec(package) is None]
        if absent:
            raise ModelLoadError(f"OmniVoice needs {', '.join(absent)}: pip install 'polychoir[omnivoice]'")
        self.info = _card(checkpoint, options)
        self.frontend = OmniVoiceFrontend(
            checkpoint.tokenizer_file, self.info, context=checkpoint.config.context
        )

    def load(self, wake: Callable[[], None]) -> Runner:
        """Read the weights onto the device. Raises ModelLoadError."""
        from polychoir.models.omnivoice.network import load_weights
        from polychoir.runner.build import build_runner

        device, dtype = self._place()
        checkpoint = self._checkpoint
        if checkpoint.unused:
            _log.warning("%s: %d unknown tensors left out: %s", checkpoint.folder, len(checkpoint.unused),
                         ", ".join(checkpoint.unused[:5]))  # fmt: skip
        weights = load_weights(checkpoint.config, checkpoint.tensors, device, dtype)
        plan = _runner_plan(self._options)
        runner = build_runner(checkpoint.config, weights, checkpoint.codec_folder, plan, wake)
        number_format = str(dtype).removeprefix("torch.")
        _log.info("%s: %s, %s, %s steps", self.info.name, device, number_format, runner.mode)
        return runner

    def _place(self) -> tuple[torch.device, torch.dtype]:
        """Resolve `auto`: a CUDA device if there is one, else the CPU; in the number format that suits it."""
        import torch

        from polychoir.runner.device_class import device_class

        name = self._options.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            device = torch.device(name)
        except RuntimeError as error:
            raise ModelLoadError(f"device {name!r} is not known", param="device") from error
        if device.type not in ("cpu", "cuda"):
            raise ModelLoadError(f"device {name!r} is not supported: cpu or cuda", param="device")
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ModelLoadError(
                f"device {name!r} was asked for, but torch sees no CUDA device", param="device"
            )
        asked = self._options.dtype
        dtype: torch.dtype = getattr(torch, device_class(device).dtype if asked == "auto" else asked)
        return device, dtype


def _card(checkpoint: Checkpoint, options: ModelOptions) -> ModelInfo:
    return ModelInfo(
        name=options.name or "omnivoice",
        kind="iterative",
        sample_rate=SAMPLE_RATE,
        languages=tuple(languages.names()),
        fields=_OTHER_FIELDS | DEFAULTS.keys(),
        defaults={**DEFAULTS, **options.defaults},
        settings=frozenset({"prompt_cache_mb", "runner_mode", "gpu_memory_utilization"}),
        max_resident_tokens=_RESIDENT_TOKENS,
        own_process=options.device != "cpu",
        license="Apache-2.0",
        source=str(checkpoint.folder),
        fingerprint=_fingerprint(checkpoint),
    )


def _fingerprint(checkpoint: Checkpoint) -> str:
    """Of its shapes: weights of the same shapes take equally long."""
    return hashlib.sha256(repr(checkpoint.config).encode()).hexdigest()[:16]


def _runner_plan(options: ModelOptions) -> RunnerPlan:
    """As much room as the engine may fill: its limits are resolved from the same settings."""
    from polychoir.runner.build import RunnerPlan

    extra, rows = options.extra, options.max_num_seqs or _DEFAULT_ROWS
    return RunnerPlan(
        mode=str(extra.get("runner_mode", "auto")),
        max_rows=rows,
        resident_rows=int(extra.get("max_resident_seqs") or _RESIDENT_PER_ROW * rows),
        resident_tokens=_RESIDENT_TOKENS,
        step_tokens=extra.get("max_num_batched_tokens"),
        prompt_cache_bytes=int(extra.get("prompt_cache_mb", _PROMPT_CACHE_MB)) << 20,
        memory_utilization=float(extra.get("gpu_memory_utilization", _MEMORY_UTILIZATION)),
    )
