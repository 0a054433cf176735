"""The .onnx.json beside a VITS voice, checked once and kept as a frozen record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polychoir.errors import ModelLoadError

PAD, START, END = "_", "^", "$"
"""Keys of the id map that every voice has: between, before and after the phonemes."""


@dataclass(frozen=True, slots=True)
class VitsConfig:
    """What the server needs to know of a voice. `phoneme_type`: text (characters) or a phonemiser's name.

    length_scale: the voice's own pace, larger is slower. speakers: name -> id, empty for a voice of one.
    """

    sample_rate: int
    phoneme_type: str
    phonemizer_voice: str
    language: str
    accent: str
    language_names: tuple[str, ...]
    """Its own and its English name, case-folded, as far as the file says."""
    ids: Mapping[str, tuple[int, ...]]
    length_scale: float
    speakers: Mapping[str, int]

    @classmethod
    def read(cls, path: Path) -> VitsConfig:
        """Raises ModelLoadError that names the file and what is wrong in it."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ModelLoadError(f"{path}: is not JSON: {error}") from error
        try:
            return cls._from(data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelLoadError(f"{path}: not a VITS voice's settings: missing or wrong {error}") from error

    @classmethod
    def _from(cls, data: Mapping[str, Any]) -> VitsConfig:
        phonemizer_voice = str(data.get("espeak", {}).get("voice", ""))
        language = data.get("language", {})
        accent = str(language.get("code") or phonemizer_voice or "und").replace("_", "-")
        names = (language.get("name_native"), language.get("name_english"))
        ids = {str(key): tuple(map(int, value)) for key, value in data["phoneme_id_map"].items()}
        if missing := {PAD, START, END} - ids.keys():
            raise KeyError(f"phoneme_id_map without {sorted(missing)}")
        return cls(
            sample_rate=int(data["audio"]["sample_rate"]),
            phoneme_type=str(data.get("phoneme_type", "espeak")),
            phonemizer_voice=phonemizer_voice,
            language=accent.partition("-")[0].casefold(),
            accent=accent,
            language_names=tuple(str(name).strip().casefold() for name in names if name),
            ids=ids,
            length_scale=float(data.get("inference", {}).get("length_scale", 1.0)),
            speakers={str(name): int(number) for name, number in data.get("speaker_id_map", {}).items()},
        )

    def encode(self, phonemes: str) -> tuple[int, ...]:
        """Ids of a phoneme string: start, pad, each phoneme and a pad, end. Unknown ones are skipped."""
        pad = self.ids[PAD]
        ids = [*self.ids[START], *pad]
        for phoneme in phonemes:
            ids += (*self.ids[phoneme], *pad) if phoneme in self.ids else ()
        return (*ids, *self.ids[END])
