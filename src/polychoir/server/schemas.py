"""The body of `POST /v1/audio/speech`: every field, its range and its one-line description.

This model is the only declaration of a request: the route validates with it, the API description is its
JSON schema, and the command line makes its flags from it. It knows neither HTTP nor the app. Types are
strict (a number is not a text, "maybe" is not a boolean) and `null` means absent.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import re
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from polychoir.errors import (
    InvalidAudio,
    InvalidRequest,
    MissingValue,
    PolychoirError,
    TextTooLong,
    UnknownField,
    UnsupportedByModel,
)
from polychoir.types import AudioFormat, ReferenceClip, SamplingParams, SpeechRequest, Tier

MAX_INPUT_CHARS = 100_000
MAX_SEED = 2**32 - 1
NEAR_MISS = 0.8
"""Likeness (difflib ratio) from which an unknown field is taken for a slip of one of ours."""

REPORTED_UNKNOWN_FIELDS = 8
_MAX_FIELD_NAME = 40


def _voice_id(value: Any) -> Any:
    """OpenAI writes a custom voice as {"id": "..."}; a stock one as a string."""
    if isinstance(value, dict) and set(value) == {"id"}:
        return value["id"]
    return value


class SpeechBody(BaseModel):
    """A speech request as it is on the wire; `parse_body` makes one."""

    model_config = ConfigDict(
        extra="allow", strict=True, frozen=True, allow_inf_nan=False, title="SpeechRequest"
    )

    input: Annotated[str, Field(max_length=MAX_INPUT_CHARS, description="Text to speak.")]
    model: Annotated[str | None, Field(description="Served model name; tts-* means the default model.")] = (
        None
    )
    voice: Annotated[
        str | None,
        BeforeValidator(_voice_id),
        Field(description="Voice name or id; auto lets the model choose."),
    ] = None
    instructions: Annotated[
        str | None, Field(max_length=4_096, description="How the voice should sound, as design attributes.")
    ] = None
    response_format: Annotated[AudioFormat, Field(description="Audio format of the answer.")] = "mp3"
    speed: Annotated[float, Field(ge=0.25, le=4.0, description="Pace; 1 is the voice's own.")] = 1.0
    stream_format: Annotated[
        Literal["audio", "sse"] | None, Field(description="audio: bytes; sse: server-sent events.")
    ] = None
    stream: Annotated[bool | None, Field(description="Send audio while it is being made.")] = None
    language: Annotated[
        str | None, Field(min_length=1, max_length=64, description="Language code or name.")
    ] = None
    seed: Annotated[
        int | None, Field(ge=0, le=MAX_SEED, description="Makes the answer repeatable; drawn if absent.")
    ] = None
    num_step: Annotated[int | None, Field(ge=1, le=128, description="Unmasking steps.")] = None
    guidance_scale: Annotated[
        float | None, Field(ge=0, le=10, description="Weight of classifier-free guidance; 0 turns it off.")
    ] = None
    t_shift: Annotated[
        float | None, Field(gt=0, le=2, description="Shift of the timetable; small reveals late.")
    ] = None
    position_temperature: Annotated[
        float | None, Field(ge=0, le=10, description="Randomness of which cells are revealed.")
    ] = None
    class_temperature: Annotated[
        float | None, Field(ge=0, le=2, description="Randomness of what a cell becomes.")
    ] = None
    layer_penalty_factor: Annotated[
        float | None, Field(ge=0, le=100, description="How strongly coarse codebooks go first.")
    ] = None
    denoise: Annotated[bool | None, Field(description="Ask for a clean voice from a noisy reference.")] = None
    duration: Annotated[
        float | None, Field(ge=0.05, le=600, description="Seconds of speech wanted; overrides speed.")
    ] = None
    preprocess_prompt: Annotated[bool | None, Field(description="Trim and level the reference clip.")] = None
    postprocess_output: Annotated[bool | None, Field(description="Trim silences of the result.")] = None
    chunk_mode: Annotated[
        Literal["concurrent", "sequential", "none"] | None, Field(description="How a long text is split.")
    ] = None
    normalize_text: Annotated[
        bool | None, Field(description="Write out numbers and abbreviations before speaking.")
    ] = None
    ref_audio: Annotated[
        str | None, Field(min_length=1, description="Clip to clone: data URL or base64 of an audio file.")
    ] = None
    ref_text: Annotated[
        str | None, Field(min_length=1, max_length=10_000, description="What the reference clip says.")
    ] = None
    adapter: Annotated[
        str | None,
        Field(
            validation_alias=AliasChoices("adapter", "lora"), description="Adapter to apply to the weights."
        ),
    ] = None
    priority: Annotated[Tier | None, Field(description="Tier of the request.")] = None
    timeout: Annotated[
        float | None, Field(gt=0, le=86_400, description="Give up after this many seconds.")
    ] = None
    sample_rate: Annotated[
        int | None,
        Field(ge=8_000, le=48_000, description="Hz of the answer; 24000 if absent."),
    ] = None
    timestamps: Annotated[bool | None, Field(description="Report when each word is said.")] = None
    loudness: Annotated[float | None, Field(ge=-70, le=0, description="Loudness wanted, in LUFS.")] = None

    @property
    def tier(self) -> Tier:
        """`priority`, or what the shape of the request implies: a voice agent asks for pcm or a stream."""
        if self.priority is not None:
            return self.priority
        live = self.stream or self.stream_format is not None or self.response_format == "pcm"
        return "interactive" if live else "standard"

    def unknown_fields(self) -> tuple[str, ...]:
        """Fields that are not ours, in the order sent."""
        return tuple(self.model_extra or ())

    def to_request(self, *, request_id: str) -> SpeechRequest:
        """The request without its wire form. Draws a seed if none was sent.

        Raises InvalidAudio, or UnsupportedByModel for a field whose feature is not built yet.
        """
        refuse_not_built(self)
        return SpeechRequest(
            request_id=request_id,
            text=self.input,
            seed=secrets.randbelow(MAX_SEED + 1) if self.seed is None else self.seed,
            voice="auto" if self.voice is None else self.voice,
            language=self.language,
            instructions=self.instructions,
            speed=self.speed,
            duration=self.duration,
            sampling=SamplingParams(**{name: getattr(self, name) for name in SAMPLING_FIELDS}),
            normalize_text=self.normalize_text,
            reference=_reference(self.ref_audio, self.ref_text),
            tier=self.tier,
            timeout_s=self.timeout,
        )


SAMPLING_FIELDS = tuple(SamplingParams.__dataclass_fields__)
FIELD_NAMES = (*SpeechBody.model_fields, "lora")

NOT_BUILT: Mapping[str, tuple[frozenset[Any], str]] = {
    "stream": (frozenset({None, False}), "answers are buffered"),
    "stream_format": (frozenset({None, "audio"}), "answers are buffered"),
    "chunk_mode": (frozenset({None, "concurrent"}), "long texts are split in one way"),
    "adapter": (frozenset({None}), "adapters cannot be loaded"),
    "timestamps": (frozenset({None, False}), "word times are not measured"),
    "loudness": (frozenset({None}), "loudness is not set"),
}
"""Known fields whose feature is not built yet: the values that ask for nothing, and what is missing."""


def refuse_not_built(body: SpeechBody) -> None:
    """Raises UnsupportedByModel for a field that would otherwise be accepted and ignored."""
    for name, (harmless, missing) in NOT_BUILT.items():
        value = getattr(body, name)
        if value not in harmless:
            raise UnsupportedByModel(f"{name} {value!r:.40} is not supported yet: {missing}.", param=name)


def parse_body(fields: Mapping[str, Any]) -> SpeechBody:
    """Validate a decoded JSON object. Raises InvalidRequest naming the first field that is wrong."""
    present = {name: value for name, value in fields.items() if value is not None}
    if "adapter" in present and "lora" in present:
        raise InvalidRequest("adapter and lora are two names of one field: send one of them.", param="lora")
    try:
        return SpeechBody.model_validate(present)
    except ValidationError as error:
        raise validation_error(error) from None


def validation_error(error: ValidationError) -> PolychoirError:
    """One of our errors for the first thing that pydantic found; it never echoes the value."""
    first = error.errors(include_input=False, include_url=False, include_context=True)[0]
    param = str(first["loc"][0]) if first["loc"] else "body"
    if first["type"] == "missing":
        return MissingValue(f"{param} is required.", param=param)
    if first["type"] == "string_too_long" and param == "input":
        return TextTooLong(f"input is longer than {MAX_INPUT_CHARS} characters.", param=param)
    return InvalidRequest(f"{param}: {first['msg']}.", param=param)


def suggest_field(name: str) -> str | None:
    """Our field that `name` is a slip of, if any."""
    near = difflib.get_close_matches(name.lower()[: 2 * _MAX_FIELD_NAME], FIELD_NAMES, n=1, cutoff=NEAR_MISS)
    return near[0] if near else None


def check_unknown_fields(body: SpeechBody, *, strict: bool) -> tuple[str, ...]:
    """Warning codes for unknown fields; raises UnknownField for a near miss, or for any if strict."""
    unknown = body.unknown_fields()
    for name in unknown:
        near = suggest_field(name)
        if near is not None:
            raise UnknownField(f"Unknown field {name!r:.50}; did you mean {near!r}?", param=name[:200])
    if unknown and strict:
        raise UnknownField(f"Unknown field {unknown[0]!r:.50}.", param=unknown[0][:200])
    return tuple(f"unknown_field:{name[:_MAX_FIELD_NAME]}" for name in unknown[:REPORTED_UNKNOWN_FIELDS])


_DATA_URL = re.compile(r"data:[^,;]*(?:;[^,;]*)*?;base64,", re.IGNORECASE)


def _reference(audio: str | None, text: str | None) -> ReferenceClip | None:
    if audio is None:
        if text is not None:
            raise InvalidRequest("ref_text says what ref_audio says: send both.", param="ref_text")
        return None
    if re.match(r"https?://", audio, re.IGNORECASE):
        raise UnsupportedByModel(
            "ref_audio as an address is not supported yet: send a data URL or base64.", param="ref_audio"
        )
    return ReferenceClip(audio=_decode_base64(audio), text=text)


def _decode_base64(text: str) -> bytes:
    """Bytes of a base64 text or data URL; line breaks, the URL alphabet and lost padding are forgiven."""
    head = _DATA_URL.match(text)
    if head is None and text[:5].lower() == "data:":
        raise InvalidAudio("ref_audio: a data URL must say ;base64 before its data.")
    digits = "".join(text[head.end() if head else 0 :].split()).rstrip("=")
    digits = digits.replace("-", "+").replace("_", "/")
    try:
        clip = base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidAudio("ref_audio is neither a data URL nor base64.") from None
    if not clip:
        raise InvalidAudio("ref_audio is empty.")
    return clip
