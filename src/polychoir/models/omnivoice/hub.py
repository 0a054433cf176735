"""Checkpoints by hub id: brought up to date if the hub answers at once, else as the cache has them."""

from __future__ import annotations

from pathlib import Path

from polychoir.errors import ModelLoadError

_CONTACT_S = 3.0
"""How long connecting and answering may take each, before the cache has to do."""
_WANTED = ["*.json", "*.safetensors", "audio_tokenizer/*"]


def snapshot(reference: str) -> Path:
    """The local folder of hub id `reference`.

    HF_HUB_OFFLINE, HF_HOME, HF_ENDPOINT and HF_TOKEN mean what they mean to the hub's own tools.
    Raises ModelLoadError of one line that says what is missing and where it was looked for, within
    seconds even where packets vanish: the download call itself would wait for ever.
    """
    try:
        from huggingface_hub import constants, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise ModelLoadError(
            f"{reference}: not a folder, and hub ids need huggingface-hub: pip install 'polychoir[omnivoice]'"
        ) from error
    refusal = _refusal(reference)
    try:
        return Path(
            snapshot_download(reference, allow_patterns=_WANTED, local_files_only=refusal is not None)
        )
    except LocalEntryNotFoundError as error:
        why = refusal or f"{constants.ENDPOINT} stopped answering"
        raise ModelLoadError(f"{reference}: not in the cache {constants.HF_HUB_CACHE}, and {why}") from error
    except (HfHubHTTPError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise ModelLoadError(
            f"{reference}: could not be fetched into {constants.HF_HUB_CACHE} ({first})"
        ) from error


def _refusal(reference: str) -> str | None:
    """Why the hub will not help with `reference`; None if it will."""
    import httpx
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        HfApi().model_info(reference, timeout=_CONTACT_S)
    except httpx.TransportError as error:
        return f"{constants.ENDPOINT} cannot be reached ({type(error).__name__})"
    except (HfHubHTTPError, HFValidationError) as error:
        return f"{constants.ENDPOINT} refuses it ({str(error).strip().splitlines()[0]})"
    return None
