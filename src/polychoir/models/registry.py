"""Finds models: the entry-point group `polychoir.models`, by name, path or hub id.

Another package adds a model by naming a ModelPlugin in that group; nothing here knows any model.
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from polychoir.errors import ModelLoadError
from polychoir.models.base import Model, ModelPlugin
from polychoir.types import ModelOptions

GROUP = "polychoir.models"


def plugin_names() -> tuple[str, ...]:
    """Names of every installed plug-in, sorted."""
    return tuple(sorted(_entries()))


def get_plugin(name: str) -> ModelPlugin:
    """The plug-in of that name. Raises ModelLoadError if there is none or it cannot be imported."""
    entry = _entries().get(name)
    if entry is None:
        raise ModelLoadError(f"no model plug-in is called {name!r}{_near(name)}", param="model")
    return _loaded(entry)


def open_model(name: str, options: ModelOptions) -> Model:
    """Open a model by plug-in name, path or hub id.

    Quick: weights are not read. Raises ModelLoadError that says what is missing or who could not be found.
    """
    entries = _entries()
    if name in entries:
        return _loaded(entries[name]).open(None, options)
    broken = []
    for key in sorted(entries):
        try:
            plugin = _loaded(entries[key])
        except ModelLoadError as error:  # somebody else's plug-in must not stand between a path and its own
            broken.append(error.message)
            continue
        if plugin.claims(name):
            return plugin.open(name, options)
    if (folder := Path(name).expanduser()).is_dir():
        broken.append(_kind_of(folder))
    installed = "; ".join([f"installed: {', '.join(sorted(entries))}", *broken])
    raise ModelLoadError(
        f"no installed plug-in knows the model {name!r}{_near(name)}; {installed}", param="model"
    )


def _kind_of(folder: Path) -> str:
    """What a folder that nobody claims says of itself, for the error."""
    config = folder / "config.json"
    try:
        says = json.loads(config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{config} is missing"
    except (OSError, ValueError, RecursionError) as error:
        return f"{config} is not JSON ({error})"
    if not isinstance(says, dict):
        return f"{config} is not a JSON object"
    return f"{config} says model_type {says.get('model_type')!r}"


def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _loaded(entry: EntryPoint) -> ModelPlugin:
    try:
        plugin = entry.load()
    except (ImportError, AttributeError) as error:
        raise ModelLoadError(
            f"the plug-in {entry.name!r} cannot be imported: {error}", param="model"
        ) from error
    if not isinstance(plugin, ModelPlugin):
        raise ModelLoadError(f"the plug-in {entry.name!r} has no claims() and open()", param="model")
    return plugin


def _near(name: str) -> str:
    near = get_close_matches(name, _entries(), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
