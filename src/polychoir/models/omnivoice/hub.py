"""Checkpoints by hub id: the cache first, the network if there is one, and never a long wait for neither."""

from __future__ import annotations

from pathlib import Path

from polychoir.errors import ModelLoadError

_CONTACT_S = 3.0
"""How long the hub may take to answer before the cache has to do."""
_WANTED = ["*.json", "*.safetensors", "audio_tokenizer/*"]


def snapshot(reference: str) -> Path:
    """The local folder of hub id `reference`: brought up to date if the hub answers, else as it is cached.

    HF_HUB_OFFLINE, HF_HOME, HF_ENDPOINT and HF_TOKEN mean what they mean to the hub's own tools.
    Raises ModelLoadError of one line that says where it was looked for.
    """
    try:
        from huggingface_hub import constants, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise ModelLoadError(
            f"{reference}: not a folder, and hub ids need huggingface-hub: pip install 'polychoir[omnivoice]'"
        ) from error
    try:
        return Path(snapshot_download(reference, etag_timeout=_CONTACT_S, allow_patterns=_WANTED))
    except LocalEntryNotFoundError as error:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} cannot be reached"
        raise ModelLoadError(
            f"{reference}: not in the cache {constants.HF_HUB_CACHE}, and {why}"
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelLoadError(f"{reference}: not in the cache, and the hub refused it ({reason})") from error
    except OSError as error:
        raise ModelLoadError(f"{reference}: could not be fetched into {constants.HF_HUB_CACHE} ({error})") from error
