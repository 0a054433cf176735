"""Find a checkpoint and check it within seconds, reading no weights: sizes and shapes are in the headers.

    config.json   model.safetensors (or shards and model.safetensors.index.json)   tokenizer.json
    audio_tokenizer/   config.json   model.safetensors   (absent: the hub's FALLBACK_CODEC)

Everything wrong is a ModelLoadError of one line that says what and where. No torch here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polychoir.errors import ModelLoadError
from polychoir.models.omnivoice.config import OmniVoiceConfig, parse_config

FALLBACK_CODEC = "eustlb/higgs-audio-v2-tokenizer"
CODEC_TYPE = "higgs_audio_v2_tokenizer"
_CODEC_FOLDER = "audio_tokenizer"
_HEADER_LIMIT = 100 * 1024 * 1024
"""Largest header the safetensors format allows."""
_NOT_NEEDED = frozenset({"codebook_layer_offsets"})
"""A constant that the published files carry along."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that has been checked. `tensors` says which file holds each tensor of the network."""

    folder: Path
    config: OmniVoiceConfig
    tokenizer_file: Path
    tensors: Mapping[str, Path]
    codec_folder: Path
    unused: tuple[str, ...]
    """Tensors in the files that nothing needs."""


def open_checkpoint(reference: str) -> Checkpoint:
    """Find `reference`, a folder or a hub id, and check all that can be without reading weights.

    Raises ModelLoadError.
    """
    folder = resolve(reference)
    config_file = _existing(folder / "config.json")
    config = parse_config(_read_json(config_file), str(config_file))
    tokenizer_file = _existing(folder / "tokenizer.json")
    _read_json(tokenizer_file)
    headers = _weight_headers(folder)
    tensors, unused = _match_tensors(config, headers, folder)
    return Checkpoint(folder, config, tokenizer_file, tensors, _check_codec(folder), unused)


def resolve(reference: str) -> Path:
    """The local folder of a path or of a hub id.

    A hub id is taken from the local cache if it is there, whole, and fetched otherwise. Raises
    ModelLoadError, without waiting for a network that is not there.
    """
    path = Path(reference).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise ModelLoadError(f"{reference}: not a folder")
    if not _looks_like_hub_id(reference):
        raise ModelLoadError(f"{reference}: no such folder, and not a hub id of the form owner/name")
    from polychoir.models.omnivoice.hub import snapshot

    return snapshot(reference)


def _looks_like_hub_id(reference: str) -> bool:
    owner, _, name = reference.partition("/")
    return bool(owner and name) and "/" not in name and not reference.startswith((".", "~", os.sep))


def _match_tensors(
    config: OmniVoiceConfig, headers: Mapping[str, tuple[Path, tuple[int, ...]]], folder: Path
) -> tuple[dict[str, Path], tuple[str, ...]]:
    wanted = config.tensor_shapes()
    missing = [name for name in wanted if name not in headers]
    if missing:
        raise ModelLoadError(f"{folder}: {_some(missing)} missing from the weights")
    for name, shape in wanted.items():
        path, found = headers[name]
        if found != shape:
            raise ModelLoadError(f"{path}: {name} has shape {list(found)}, config.json says {list(shape)}")
    unused = tuple(sorted(headers.keys() - wanted.keys() - _NOT_NEEDED))
    return {name: headers[name][0] for name in wanted}, unused


def _some(names: list[str]) -> str:
    first = f"tensor {names[0]}"
    return f"{first} is" if len(names) == 1 else f"{first} and {len(names) - 1} more are"


def _weight_headers(folder: Path) -> dict[str, tuple[Path, tuple[int, ...]]]:
    """File and shape of every tensor in the folder's weights, whole or in shards."""
    index_file = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file() or not index_file.is_file():
        return _read_header(_existing(folder / "model.safetensors"))
    listed = _read_json(index_file).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise ModelLoadError(f"{index_file}: weight_map is missing or not a table of file names")
    headers: dict[str, tuple[Path, tuple[int, ...]]] = {}
    for name in sorted(set(listed.values())):
        if Path(name).name != name:
            raise ModelLoadError(f"{index_file}: shard {name!r} is not a plain file name")
        headers |= _read_header(_existing(folder / name))
    return headers


def _read_header(path: Path) -> dict[str, tuple[Path, tuple[int, ...]]]:
    """Parse a safetensors header and compare what it promises with the file's size.

    Format: eight bytes of little-endian header length, a JSON table, the data.
    Source: https://github.com/huggingface/safetensors, README, section Format.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > _HEADER_LIMIT:
            raise ModelLoadError(f"{path}: not a safetensors file")
        text = file.read(length)
    if len(text) < length:
        raise ModelLoadError(f"{path}: truncated inside its header")
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        shapes = {name: (path, tuple(entry["shape"])) for name, entry in header.items()}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ModelLoadError(f"{path}: not a safetensors file") from error
    if size < 8 + length + end:
        raise ModelLoadError(f"{path}: truncated, {size:,} of {8 + length + end:,} bytes are there")
    return shapes


def _check_codec(folder: Path) -> Path:
    codec = folder / _CODEC_FOLDER
    if not codec.is_dir():
        try:
            codec = resolve(FALLBACK_CODEC)
        except ModelLoadError as error:
            raise ModelLoadError(f"{codec}: missing, and instead of it: {error.message}") from error
    config_file = _existing(codec / "config.json")
    found = _read_json(config_file).get("model_type")
    if found != CODEC_TYPE:
        raise ModelLoadError(f"{config_file}: model_type is {found!r}, not {CODEC_TYPE!r}")
    _weight_headers(codec)
    return codec


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ModelLoadError(f"{path}: missing")
    return path


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{path}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: not a JSON object")
    return value
