"""Voices locked once and kept: the encoded speaker of each stock name, per model.

On disk a voice is a small JSON file. Its path is made of a digest of the model's name and of one of our own
13 names, never of a caller's text. Files are written whole (temporary file, then rename), so that a reader
or a crash sees the old one or the new one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import logging
import math
import os
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from polychoir.errors import InternalError
from polychoir.types import VoicePrompt
from polychoir.voices.names import STOCK_VOICES

_log = logging.getLogger(__name__)

FORMAT = 1
MAX_FILE_BYTES = 1_000_000
"""A voice is a few kB; anything far larger is not ours."""


class VoiceStore:
    """Locked voices by model and name. Safe from several threads and processes.

    root: folder for the files, made when first needed; None keeps voices in memory only.
    capacity: voices held in memory, the least recently used leave first (13 per model; with a root, they
    come back from disk, without one they are locked again from the same seed).
    """

    def __init__(self, root: Path | None, *, capacity: int = 256) -> None:
        self._root = root
        self._capacity = capacity
        self._held: OrderedDict[tuple[str, str], VoicePrompt] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, model: str, name: str) -> VoicePrompt | None:
        """The locked voice, or None if it has to be locked (again).

        A damaged file is moved aside (`.damaged`) and logged, and the answer is None: name, design, seed and
        phrase are fixed, so locking again gives the same speaker, and nobody's recording is lost. Raises
        InternalError if the file cannot be read for another reason (rights, disk): the voice may be there.
        """
        key = (model, _known(name))
        with self._lock:
            prompt = self._held.get(key)
            if prompt is not None:
                self._held.move_to_end(key)
                return prompt
        prompt = self._read(model, name)
        if prompt is not None:
            self._hold(key, prompt)
        return prompt

    def put(self, model: str, name: str, prompt: VoicePrompt) -> None:
        """Keep a voice; the last writer wins. Raises InternalError if it cannot be written."""
        key = (model, _known(name))
        path = self._path(model, name)
        if path is not None:
            try:
                _write_whole(path, _to_json(model, name, prompt))
            except OSError as error:
                raise InternalError(f"the voice {name} cannot be stored at {path}: {error}") from error
        self._hold(key, prompt)

    def _hold(self, key: tuple[str, str], prompt: VoicePrompt) -> None:
        with self._lock:
            self._held[key] = prompt
            self._held.move_to_end(key)
            while len(self._held) > self._capacity:
                self._held.popitem(last=False)

    def _path(self, model: str, name: str) -> Path | None:
        if self._root is None:
            return None
        folder = hashlib.sha256(model.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return self._root / "stock" / folder / f"{name}.json"

    def _read(self, model: str, name: str) -> VoicePrompt | None:
        path = self._path(model, name)
        if path is None:
            return None
        try:
            with path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InternalError(f"the stored voice {path} cannot be read: {error}") from error
        try:
            return _from_json(data, model, name)
        except ValueError as error:
            _set_aside(path, error)
            return None


def _known(name: str) -> str:
    if name not in STOCK_VOICES:
        raise InternalError(f"only stock voices are locked, not {name[:64]!r}")
    return name


def _to_json(model: str, name: str, prompt: VoicePrompt) -> bytes:
    record = {
        "format": FORMAT,
        "model": model,
        "name": name,
        "codebooks": prompt.codebooks,
        "frames": prompt.frames,
        "text": prompt.text,
        "rms": prompt.rms,
        "codes": base64.b64encode(prompt.codes).decode("ascii"),
        "sha256": hashlib.sha256(prompt.codes).hexdigest(),
    }
    return json.dumps(record, indent=1).encode()


def _from_json(data: bytes, model: str, name: str) -> VoicePrompt:
    """Raises ValueError that says what is wrong with the file."""
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"larger than {MAX_FILE_BYTES} bytes")
    try:
        record: Any = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested without end") from error
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    if (record.get("format"), record.get("model"), record.get("name")) != (FORMAT, model, name):
        raise ValueError("written for another format, model or name")
    codebooks, frames = _count(record, "codebooks"), _count(record, "frames")
    codes, text, rms = record.get("codes"), record.get("text"), record.get("rms")
    if not (isinstance(codes, str) and isinstance(text, str) and isinstance(rms, int | float | None)):
        raise ValueError("a field has the wrong type")
    if rms is not None and not math.isfinite(rms):
        raise ValueError("rms is not a number")
    try:
        raw = base64.b64decode(codes, validate=True)
    except binascii.Error as error:
        raise ValueError("codes are not base64") from error
    if len(raw) != 2 * codebooks * frames or hashlib.sha256(raw).hexdigest() != record.get("sha256"):
        raise ValueError("codes do not match their size or checksum")
    return VoicePrompt(codes=raw, codebooks=codebooks, frames=frames, text=text, rms=rms)


def _count(record: dict[str, Any], key: str) -> int:
    value = record.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"{key} is not a positive number")
    return value


def _write_whole(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def _set_aside(path: Path, error: ValueError) -> None:
    aside = path.with_suffix(".damaged")
    try:
        os.replace(path, aside)
    except FileNotFoundError:
        return  # another process was quicker
    except OSError as problem:
        raise InternalError(f"the damaged voice {path} cannot be moved aside: {problem}") from error
    _log.warning("stored voice %s is damaged (%s); kept as %s and locked again", path, error, aside.name)
