"""Where measured curves are kept: one small JSON file for each model on each kind of device.

Two workers on equal devices share a file. It is written whole (temporary file, then rename); whoever comes
last wins, and the two differ by noise alone.
"""

from __future__ import annotations

import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from polychoir.engine.curve import Curve, Identity, from_json, to_json

_log = logging.getLogger(__name__)

MOST_BYTES = 100_000
MOST_FILES = 100
"""The oldest goes first: it is of a version, a device or a model that is not here any more."""


class CurveStore:
    """Curves below one folder, which is made when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, identity: Identity) -> Path:
        return self._folder / f"{identity.key}.json"

    def read(self, identity: Identity) -> Curve | None:
        """The curve of exactly this identity, or None; a file that cannot be used is logged in one line."""
        curve = self._load(self.path(identity))
        if curve is None or curve.identity == identity:
            return curve
        _log.warning("%s is the calibration of something else; measuring again", self.path(identity))
        return None

    def all(self) -> list[Curve]:
        """Every curve that can be read, the newest first."""
        found = (self._load(path) for path in sorted(self._folder.glob("*.json")))
        return sorted((curve for curve in found if curve), key=lambda curve: -curve.measured_at)

    def write(self, curve: Curve) -> None:
        """Keep a curve. A disk that is full or not ours is logged: the curve is used all the same."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            _write_whole(self.path(curve.identity), to_json(curve))
            self._forget_oldest()
        except OSError as error:
            _log.warning("the calibration cannot be kept at %s: %s", self._folder, error)

    def _load(self, path: Path) -> Curve | None:
        try:
            with path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
            if len(data) > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES} bytes")
            return from_json(data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _log.warning("%s cannot be used as a calibration: %s", path, error)
            return None

    def _forget_oldest(self) -> None:
        files = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in files[:-MOST_FILES]:
            path.unlink(missing_ok=True)


def _write_whole(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=path.stem, suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
