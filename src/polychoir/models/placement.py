"""Where a model can run: checked when it is opened, so that a setting is honoured or stops the start."""

from __future__ import annotations

import logging

from polychoir.errors import SettingError
from polychoir.types import ModelOptions

_log = logging.getLogger(__name__)


def check_cpu_only(name: str, options: ModelOptions) -> None:
    """For a model that runs on the CPU in float32 alone. Raises SettingError naming the setting."""
    if options.device not in {"auto", "cpu"}:
        raise SettingError(f"the model {name} runs on the CPU, not on {options.device}", param="device")
    if options.dtype not in {"auto", "float32"}:
        raise SettingError(f"the model {name} has one number format, not {options.dtype}", param="dtype")


def log_cpu_only(name: str) -> None:
    """What `auto` came to, said once when such a model is loaded."""
    _log.info("%s: cpu, float32", name)
