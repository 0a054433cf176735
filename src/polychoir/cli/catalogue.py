"""`polychoir models`, `voices` and `download`: what is here, and how to get more."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from polychoir.cli.serve import ConfigFlag, read_settings
from polychoir.errors import ModelLoadError
from polychoir.models.registry import get_plugin, open_model, plugin_names
from polychoir.types import ModelInfo, ModelOptions

ModelFlag = Annotated[
    str | None, typer.Option(help="Model to ask [the one that `serve` would take].", show_default=False)
]


def models() -> None:
    """List the models that are installed, and the checkpoints in the hub's cache."""
    stay_offline()
    for name in plugin_names():
        try:
            typer.echo(f"{name:<12} {_card(open_model(name, ModelOptions()).info)}")
        except ModelLoadError as error:
            typer.echo(f"{name:<12} not ready: {error.message}")
    for hub_id in _cached_ids():
        owners = [name for name in plugin_names() if get_plugin(name).claims(hub_id)]
        if owners:
            typer.echo(f"{hub_id}  cached, for {owners[0]}")


def voices(model: ModelFlag = None, config: ConfigFlag = None) -> None:
    """List a model's voices."""
    from polychoir.voices import list_voices

    stay_offline()

    settings = read_settings({} if model is None else {"model": [model]}, config)
    first = settings.models[0]
    info = open_model(first.reference, ModelOptions(name=first.name)).info
    for voice in list_voices(info):
        typer.echo(f"{voice.id:<12} {voice.name}")


def download(
    model: Annotated[str, typer.Argument(help="Hub id, e.g. k2-fsa/OmniVoice.", show_default=False)],
) -> None:
    """Fetch a checkpoint from the Hugging Face hub into its cache; serving it is then offline."""
    if model in plugin_names():
        open_model(model, ModelOptions())  # a plug-in that has a checkpoint of its own fetches it here
        typer.echo(f"{model} is ready to serve")
        return
    if model.count("/") != 1 or Path(model).exists():
        raise ModelLoadError(f"{model!r} is not a hub id of the form OWNER/NAME", param="model")
    typer.echo(_fetch(model))


def stay_offline() -> None:
    """Opening a model that has a checkpoint of its own would fetch it: gigabytes for a line of a list."""
    os.environ["HF_HUB_OFFLINE"] = "1"


def _fetch(hub_id: str) -> str:
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError as error:
        raise ModelLoadError(
            "downloading needs huggingface-hub: pip install 'polychoir[omnivoice]'", param="model"
        ) from error
    try:
        return snapshot_download(hub_id)
    # Transport errors come from whichever HTTP library the hub client uses: all are OSError or its own.
    except (OSError, ValueError, errors.HfHubHTTPError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelLoadError(f"cannot download {hub_id}: {reason}", param="model") from error


def _card(info: ModelInfo) -> str:
    languages = "any language" if info.languages == ("*",) else ", ".join(info.languages[:8])
    voices = f"{len(info.voices)} voices" if len(info.voices) != 1 else f"voice {info.voices[0]}"
    terms = [info.kind, languages, voices if info.voices else "makes and clones voices"]
    return "; ".join(terms + [f"{info.license} licence"] * bool(info.license))


def _cached_ids() -> list[str]:
    """Hub ids in the hub's cache, by folder name; an absent cache is an empty one."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    found = (folder.name.removeprefix("models--") for folder in sorted(cache.glob("models--*--*")))
    return [name.replace("--", "/", 1) for name in found]
