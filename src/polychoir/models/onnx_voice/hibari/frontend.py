"""The text side of the embedded voice: refuses what it cannot say, and makes one chunk per sentence.

Phonemes are made here, on the caller's thread pool, so that the step threads run nothing but the graph. What
the voice has no sound for but nobody reads aloud (emoji, symbols, ornaments) is left out of English text.
"""

from __future__ import annotations

import threading

from polychoir.errors import TextTooLong, UnspeakableText
from polychoir.models.onnx_voice.hibari.letters import readable
from polychoir.models.onnx_voice.hibari.phonemes import Reader, Sentence
from polychoir.models.onnx_voice.hibari.row import HibariRow
from polychoir.models.onnx_voice.refusals import check_voice, language_warnings
from polychoir.text import clean, is_speakable
from polychoir.types import Chunk, ModelInfo, Prepared, SpeechRequest, VoiceChoice, Work

ACCENT = "en-US"
LANGUAGE_NAMES = ("english",)
_SECONDS_PER_CHUNK, _SECONDS_PER_ID = 0.8, 0.05
"""Measured on prose, digits and one-word sentences: within a seventh at the voice's own pace."""
_MAX_CHARS = 100_000
_TRIALS = (
    "A short line.",
    "The quick brown fox jumps over the lazy dog.",
    "In the morning the harbour was quiet, and only a few boats had gone out to sea before the light came.",
)


class HibariFrontend:
    """Implements `polychoir.models.base.Frontend`. Dictionaries are loaded on first use."""

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self._reader: Reader | None = None
        self._loading = threading.Lock()

    def trials(self) -> tuple[Chunk, ...]:
        """Sentences of three lengths to time the voice with. Loads the dictionaries: about 0.5 s."""
        reader = self._reading()
        request = SpeechRequest("trial", "", 0)
        return tuple(_chunk(0, sentence, request) for text in _TRIALS for sentence in reader.read(text))

    def prepare(self, request: SpeechRequest, voice: VoiceChoice) -> Prepared:
        check_voice(voice, self._info)
        warnings = language_warnings(request.language, self._info, ACCENT, LANGUAGE_NAMES)
        text = clean(request.text)
        if len(text) > _MAX_CHARS:
            raise TextTooLong(f"the text has {len(text)} characters; this voice takes {_MAX_CHARS}")
        if not is_speakable(text):
            raise UnspeakableText("there is nothing to say in this text")
        reader = self._reading()
        sentences = list(reader.read(readable(text, reader.alphabet)))
        if not sentences:
            raise UnspeakableText("there is nothing in this text that this voice has a sound for")
        chunks = tuple(_chunk(index, sentence, request) for index, sentence in enumerate(sentences))
        return Prepared(chunks, len(chunks), warnings)

    def _reading(self) -> Reader:
        with self._loading:
            if self._reader is None:
                self._reader = Reader()
            return self._reader


def _chunk(index: int, sentence: Sentence, request: SpeechRequest) -> Chunk:
    row = HibariRow(sentence.ids, request.speed, request.seed, index)
    tokens = len(sentence.ids)
    seconds = (_SECONDS_PER_CHUNK + tokens * _SECONDS_PER_ID) / request.speed
    return Chunk(index, sentence.text, Work(tokens, 1), row, seconds)
