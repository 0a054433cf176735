"""Settings: declared once in `settings.py`, read from flags, environment and file in `sources.py`."""

from __future__ import annotations

from polychoir.config.settings import ModelReference, Settings, platform_data_dir
from polychoir.config.sources import LoadedSettings, load_settings

__all__ = ["LoadedSettings", "ModelReference", "Settings", "load_settings", "platform_data_dir"]
