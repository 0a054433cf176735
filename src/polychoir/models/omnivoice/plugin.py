"""The entry point `omnivoice`: finds a checkpoint and checks it in seconds. No torch here."""

from __future__ import annotations

import json
from pathlib import Path

from polychoir.models.omnivoice.checkpoint import open_checkpoint
from polychoir.models.omnivoice.config import MODEL_TYPE
from polychoir.models.omnivoice.model import OmniVoiceModel
from polychoir.types import ModelOptions

PUBLISHED = "k2-fsa/OmniVoice"


class OmniVoicePlugin:
    """A ModelPlugin."""

    def claims(self, reference: str) -> bool:
        """A folder whose config.json says omnivoice, or a hub id with that word in it."""
        folder = Path(reference).expanduser()
        if folder.is_dir():
            return _model_type(folder / "config.json") == MODEL_TYPE
        return not folder.exists() and reference.count("/") == 1 and MODEL_TYPE in reference.lower()

    def open(self, reference: str | None, options: ModelOptions) -> OmniVoiceModel:
        """Check the checkpoint's files; a hub id that is not cached is fetched. Raises ModelLoadError."""
        return OmniVoiceModel(open_checkpoint(reference or PUBLISHED), options)


def _model_type(config_file: Path) -> object:
    """What the file says, or None if it says nothing: another plug-in may know the folder."""
    try:
        values = json.loads(config_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values.get("model_type") if isinstance(values, dict) else None


omnivoice = OmniVoicePlugin()
