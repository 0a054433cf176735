"""The text side of a VITS voice: sentences to phoneme ids, and the bucket of lengths that run together."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from itertools import cycle, islice

from polychoir.errors import TextTooLong, UnspeakableText
from polychoir.models.onnx_voice.refusals import check_voice, language_warnings
from polychoir.models.onnx_voice.vits.config import END, PAD, START, VitsConfig
from polychoir.models.onnx_voice.vits.row import VitsRow
from polychoir.text import clean, is_speakable, segment
from polychoir.types import Chunk, ModelInfo, Prepared, SpeechRequest, VoiceChoice, Work

Phonemizer = Callable[[str, str], str]
"""(voice or language, text) -> phonemes, in the alphabet of the voice's id map."""

_CHUNK_CHARS = 200
_MAX_CHARS = 100_000
_SECONDS_PER_ID = 0.03
_TRIAL_SOUNDS = (12, 24, 48)
_SHOWN = 10


class VitsFrontend:
    """Implements `polychoir.models.base.Frontend`. Without a phonemiser the characters are the phonemes."""

    def __init__(self, info: ModelInfo, config: VitsConfig, phonemizer: Phonemizer | None = None) -> None:
        self._info = info
        self._config = config
        self._phonemizer = phonemizer

    def prepare(self, request: SpeechRequest, voice: VoiceChoice) -> Prepared:
        check_voice(voice, self._info)
        config = self._config
        warnings = language_warnings(request.language, self._info, config.accent, config.language_names)
        text = clean(request.text)
        if len(text) > _MAX_CHARS:
            raise TextTooLong(f"the text has {len(text)} characters; this voice takes {_MAX_CHARS}")
        if not is_speakable(text):
            raise UnspeakableText("there is nothing to say in this text")
        pieces = segment(text, _CHUNK_CHARS, len, language=self._config.language)
        spoken = [(piece, phonemes) for piece in pieces if is_speakable(phonemes := self._phonemes(piece))]
        if not spoken:
            raise UnspeakableText("there is nothing in this text that this voice has a sound for")
        speaker = self._speaker(voice)
        chunks = tuple(
            self._chunk(index, piece, phonemes, request.speed, speaker)
            for index, (piece, phonemes) in enumerate(spoken)
        )
        return Prepared(chunks, len(chunks), warnings)

    def trials(self) -> tuple[Chunk, ...]:
        """Nonsense of three lengths to time the voice with: its sounds in turn."""
        known = sorted(self._config.ids.keys() - {PAD, START, END})
        speaker = self._speaker(VoiceChoice("default"))
        spoken = ("".join(islice(cycle(known), size)) for size in _TRIAL_SOUNDS)
        return tuple(self._chunk(0, text, text, 1.0, speaker) for text in spoken)

    def _chunk(self, index: int, text: str, phonemes: str, speed: float, speaker: int | None) -> Chunk:
        ids = self._config.encode(phonemes)
        row = VitsRow(ids, self._config.length_scale / speed, speaker)
        work = Work(len(ids), 1, bucket(len(ids)))
        return Chunk(index, text, work, row, len(ids) * _SECONDS_PER_ID * row.length_scale)

    def _phonemes(self, text: str) -> str:
        if self._phonemizer is not None:
            return self._phonemizer(self._config.phonemizer_voice, text)
        return self._characters(text)

    def _characters(self, text: str) -> str:
        """Decomposed, as these voices are trained. Raises UnspeakableText for letters it does not know."""
        known = self._config.ids.keys() - {PAD, START, END}
        spelt = unicodedata.normalize("NFD", text)
        spelt = "".join(c if c in known or c.lower() not in known else c.lower() for c in spelt)
        foreign = "".join(dict.fromkeys(c for c in spelt if c.isalnum() and c not in known))
        if foreign:
            raise UnspeakableText(f"the voice {self._info.name} has no sound for {foreign[:_SHOWN]!r}")
        return "".join(c for c in spelt if c in known)

    def _speaker(self, voice: VoiceChoice) -> int | None:
        speakers = self._config.speakers
        return speakers[voice.preset or self._info.voices[0]] if speakers else None


def bucket(tokens: int) -> int:
    """The smallest of 32, 48, 64, 96, 128, 192, ... that holds `tokens`: rows of one plan share it.

    Two sizes to the octave keep padding below a third of the work, and neighbours easy to find.
    """
    size = 32
    while size < tokens:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size
