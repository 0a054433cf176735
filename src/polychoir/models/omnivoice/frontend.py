"""The text side of OmniVoice: from a request to rows. No torch, no device, no state but the tokenizer.

Checks everything the model cannot honour, cleans the text, finds language, attributes and speaker, plans
the length, cuts long texts, and writes each piece's prompt. What it returns is exact: a row's work is
known before it runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from polychoir.audio.decode import decode_clip
from polychoir.errors import InternalError, InvalidRequest, MissingValue, TextTooLong, UnspeakableText
from polychoir.models.omnivoice import design, languages
from polychoir.models.omnivoice.length import FRAME_RATE, natural_frames
from polychoir.models.omnivoice.pieces import planned_frames, share_frames, split
from polychoir.models.omnivoice.prompt import PromptWriter, end_sentence, has_ideographs
from polychoir.models.omnivoice.reference import prepare_clip
from polychoir.models.omnivoice.row import OmniVoiceRow, Shaping
from polychoir.models.omnivoice.settings import Settings, check_range, settings_from
from polychoir.models.omnivoice.timetable import timetable
from polychoir.text import clean, is_speakable
from polychoir.types import (
    INSTRUCTIONS_IGNORED,
    Chunk,
    ChunkAudio,
    ModelInfo,
    Prepared,
    ReferenceClip,
    SpeechRequest,
    VoiceChoice,
    VoicePrompt,
    Work,
)

LONGEST_CLIP_S = 30.0
"""Longest reference clip taken. 3 to 10 s clone best; what is longer only costs more in every step."""
LONGEST_TRANSCRIPT = 2_000
DURATION_RANGE = (0.04, 3_600.0)
_FASTEST_TRANSCRIPT = 6.0
"""A transcript that would take this many times the clip is not that of the clip."""
_SEAM_S = 0.05
"""Silence on either side of a seam between two pieces, which fade out and in around it."""
_LINE_BREAKS = re.compile(r"\s*\n\s*")


@dataclass(frozen=True, slots=True)
class _Speaker:
    """Whose voice it is: encoded codes, a clip to encode, or, with neither, whoever the model makes up."""

    text: str | None = None
    frames: int = 0
    rms: float | None = None
    prompt: VoicePrompt | None = None
    clip: bytes | None = None
    clip_key: str | None = None


@dataclass(frozen=True, slots=True)
class _Style:
    """What all pieces of a request have in common but the speaker."""

    settings: Settings
    seed: int
    language: str | None
    instruct: str | None
    pieces: tuple[str, ...]
    frames: tuple[int, ...]


class OmniVoiceFrontend:
    """`models.base.Frontend` of the masked-diffusion model."""

    def __init__(self, tokenizer_file: Path, info: ModelInfo, *, context: int = 40_960) -> None:
        """`context`: most tokens of one run the backbone takes. Raises ModelLoadError for a bad tokenizer."""
        self._info = info
        self._context = context
        self._writer = PromptWriter(tokenizer_file)

    def prepare(self, request: SpeechRequest, voice: VoiceChoice) -> Prepared:
        """See `models.base.Frontend.prepare`.

        With a reference all pieces run at once. A voice the model makes up speaks the first piece alone,
        and its codes are the reference of the others.
        """
        settings = settings_from(request.sampling, self._info.defaults)
        check_range("speed", request.speed, *self._info.speed_range)
        if request.duration is not None:
            check_range("duration", request.duration, *DURATION_RANGE)
        text = _one_line(request.text)
        if not is_speakable(text):
            raise UnspeakableText("the text holds nothing that can be spoken")
        speaker = _speaker(request.reference, voice, settings)
        style, warnings = _style(request, voice, settings, text, speaker)
        if speaker.text is not None or len(style.pieces) == 1:
            chunks = tuple(self._chunk(style, speaker, index) for index in range(len(style.pieces)))
            return Prepared(chunks, len(chunks), warnings)
        first = self._chunk(style, speaker, 0)
        return Prepared((first,), len(style.pieces), warnings, partial(self._carry_on, style))

    def _carry_on(self, style: _Style, first: ChunkAudio) -> tuple[Chunk, ...]:
        """The pieces after the first, spoken by whoever spoke that."""
        if first.codes is None:
            raise InternalError("the first piece of a long text came without its codes")
        prompt = replace(first.codes, text=style.pieces[0], rms=None)
        speaker = _Speaker(text=prompt.text, frames=prompt.frames, prompt=prompt)
        return tuple(self._chunk(style, speaker, index) for index in range(1, len(style.pieces)))

    def _chunk(self, style: _Style, speaker: _Speaker, index: int) -> Chunk:
        row = self._row(style, speaker, index)
        if row.cond_len > self._context:
            raise TextTooLong(
                f"a piece of the text needs {row.cond_len} tokens; the model holds {self._context} at once"
            )
        return Chunk(
            index=index,
            text=style.pieces[index],
            work=Work(tokens=row.tokens, steps=len(row.timetable), squares=row.squares),
            payload=row,
            estimated_s=row.target_frames / FRAME_RATE,
        )

    def _row(self, style: _Style, speaker: _Speaker, index: int) -> OmniVoiceRow:
        settings = style.settings
        ids = self._writer.ids(
            style.pieces[index],
            ref_text=speaker.text,
            language=style.language,
            instruct=style.instruct,
            denoise=settings.denoise and speaker.text is not None,
        )
        return OmniVoiceRow(
            text_ids=ids,
            target_frames=style.frames[index],
            timetable=timetable(style.frames[index], settings.num_step, settings.t_shift),
            guidance_scale=settings.guidance_scale,
            position_temperature=settings.position_temperature,
            class_temperature=settings.class_temperature,
            layer_penalty_factor=settings.layer_penalty_factor,
            seed=style.seed,
            chunk=index,
            prompt=speaker.prompt,
            clip=speaker.clip,
            clip_key=speaker.clip_key,
            ref_frames=speaker.frames,
            shaping=_shaping(settings, speaker, index, len(style.pieces)),
        )


def _style(
    request: SpeechRequest, voice: VoiceChoice, settings: Settings, text: str, speaker: _Speaker
) -> tuple[_Style, tuple[str, ...]]:
    language = languages.find(request.language)
    instruct, ignored = _instruct(request.instructions, voice.instruct, text)
    unknown = request.language is not None and language is None and languages.is_said(request.language)
    warnings = (("language_unknown",) if unknown else ()) + ((INSTRUCTIONS_IGNORED,) if ignored else ())
    frames = planned_frames(
        text,
        speed=request.speed,
        duration=request.duration,
        ref_text=speaker.text,
        ref_frames=speaker.frames,
    )
    pace_from = "speed" if speaker.text is None else "ref_text"
    if request.duration is not None:
        pace_from = "duration"
    pieces = split(text, frames, language=language, pace_from=pace_from)
    style = _Style(
        settings, request.seed, language, instruct, tuple(pieces), tuple(share_frames(pieces, frames))
    )
    return style, warnings


def _instruct(asked: str | None, of_voice: str | None, text: str) -> tuple[str | None, bool]:
    """Attributes of the voice, then those of the request: the voice stays itself where they disagree."""
    wishes = ", ".join(wish for wish in (of_voice, asked) if wish)
    found = design.resolve(wishes, chinese=has_ideographs(text))
    return found.instruct, bool(found.ignored)


def _speaker(reference: ReferenceClip | None, voice: VoiceChoice, settings: Settings) -> _Speaker:
    if reference is not None:
        if voice.prompt is not None or voice.instruct is not None:
            raise InvalidRequest(
                f"ref_audio and the voice '{voice.id}' are two speakers; send voice \"auto\" with ref_audio",
                param="ref_audio",
            )
        return _clone(reference, settings)
    prompt = voice.prompt
    if prompt is None:
        return _Speaker()
    return _Speaker(text=prompt.text, frames=prompt.frames, rms=prompt.rms, prompt=prompt)


def _clone(reference: ReferenceClip, settings: Settings) -> _Speaker:
    transcript = _one_line(reference.text or "")
    if not is_speakable(transcript):
        raise MissingValue(
            "a transcript of ref_audio is needed: send its words as ref_text", param="ref_text"
        )
    if len(transcript) > LONGEST_TRANSCRIPT:
        raise InvalidRequest(
            f"ref_text has {len(transcript)} characters; at most {LONGEST_TRANSCRIPT} are used",
            param="ref_text",
        )
    samples = decode_clip(reference.audio, max_seconds=LONGEST_CLIP_S)
    clip = prepare_clip(samples, transcript=transcript, preprocess=settings.preprocess_prompt)
    if natural_frames(transcript) > _FASTEST_TRANSCRIPT * clip.frames:
        raise InvalidRequest(
            f"ref_text has far more words than {clip.frames / FRAME_RATE:.1f} s of speech can hold",
            param="ref_text",
        )
    return _Speaker(
        text=end_sentence(transcript) if settings.preprocess_prompt else transcript,
        frames=clip.frames,
        rms=clip.rms,
        clip=clip.to_bytes(),
        clip_key=clip.key(),
    )


def _one_line(text: str) -> str:
    """Clean, on one line. The model's own rule drops line breaks and so glues two words together; here a
    break is a blank before that rule sees it."""
    return _LINE_BREAKS.sub(" ", clean(text)).strip()


def _shaping(settings: Settings, speaker: _Speaker, index: int, count: int) -> Shaping:
    edges = Shaping(postprocess_output=settings.postprocess_output, ref_rms=speaker.rms)
    return replace(
        edges,
        lead_s=edges.lead_s if index == 0 else _SEAM_S,
        trail_s=edges.trail_s if index == count - 1 else _SEAM_S,
    )
