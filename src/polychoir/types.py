"""The records everything shares, one per stage of a request's life.

SpeechRequest -> (text, voice, frontend) -> Prepared -> Chunk -> StepPlan -> StepResult -> ChunkAudio

All are frozen: a stage that wants to say something new makes the next record. Nothing here knows a
model, a tensor library, a clock or the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Samples: TypeAlias = "NDArray[np.float32]"
"""Mono float32 in [-1, 1], one dimension."""

Tier = Literal["interactive", "standard", "batch"]
AudioFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
ModelKind = Literal["iterative", "one_shot"]
GraphUse = Literal["hit", "miss", "skipped"]
"""How a step met its captured graph: replayed; not captured yet; left out (too large, or no memory)."""

OUTPUT_SAMPLE_RATE = 24_000
"""Every answer is 24 kHz mono s16 unless the request says otherwise."""

INSTRUCTIONS_IGNORED = "instructions_ignored"
"""Warning code: what `instructions` asked for, or part of it, cannot be done by this model."""


# -- Door: what a client asked for ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How an iterative model unmasks one request. None means the model's own default."""

    num_step: int | None = None
    guidance_scale: float | None = None
    t_shift: float | None = None
    position_temperature: float | None = None
    class_temperature: float | None = None
    layer_penalty_factor: float | None = None
    denoise: bool | None = None
    preprocess_prompt: bool | None = None
    postprocess_output: bool | None = None


@dataclass(frozen=True, slots=True)
class ReferenceClip:
    """A recording to clone from, as the client sent it: any container, rate and channel count."""

    audio: bytes
    text: str | None = None


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """One request, checked for shape and range; no model has been asked yet."""

    request_id: str
    text: str
    seed: int
    voice: str = "auto"
    language: str | None = None
    instructions: str | None = None
    speed: float = 1.0
    duration: float | None = None
    """Seconds of speech wanted; overrides `speed`."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    normalize_text: bool | None = None
    """Write out numbers and abbreviations first; None is what the model does anyway."""
    reference: ReferenceClip | None = None
    tier: Tier = "standard"
    tenant: str = ""
    """Whose share of the device it uses: the API key, by a name that gives nothing away."""
    timeout_s: float | None = None
    """Seconds from now after which nobody wants the answer; None: no end."""


@dataclass(frozen=True, slots=True)
class Terms:
    """On which terms chunks go to an engine.

    timeout_s: seconds after which nobody wants them. more: they continue a request that was let in before,
    and are never refused, or half-spoken requests would be the first to suffer from a full house. heard_s:
    seconds of the request's audio that are there already.
    """

    tier: Tier = "standard"
    tenant: str = ""
    timeout_s: float | None = None
    more: bool = False
    heard_s: float = 0.0


STANDARD = Terms()
"""Whoever says nothing of it."""


# -- Desk: what a model's frontend made of it ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class VoicePrompt:
    """An encoded speaker: about 2 kB that make a clone. `codes` is int16 [codebooks, frames], C order."""

    codes: bytes
    codebooks: int
    frames: int
    text: str
    rms: float | None = None
    """Level of the clip the codes came from; None for a voice the model made up."""


@dataclass(frozen=True, slots=True)
class VoiceChoice:
    """A resolved voice: what the request's `voice` means on this model."""

    id: str
    """What x-polychoir-voice says."""
    preset: str | None = None
    """One of the model's own voices (`ModelInfo.voices`)."""
    instruct: str | None = None
    """Design attributes, for a model that can be asked for them."""
    prompt: VoicePrompt | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """What one sequence costs: exact on arrival for every model whose number of steps is known.

    tokens: packed tokens in each step, conditional and unconditional rows together (or the model's own
        unit of size, e.g. phonemes, where a step is one forward).
    steps: live steps; None for a model that only knows when it has ended (autoregressive).
    bucket: rows of one plan must share it; None where rows of any shape can run together.
    squares: sum of length squared over its runs of tokens, for what attention costs; 0 where that is no
        part of the cost.
    """

    tokens: int
    steps: int | None
    bucket: int | None = None
    squares: int = 0


@dataclass(frozen=True, slots=True)
class StepSample:
    """One measured step: its packed tokens, the sum of length squared over its runs, and its seconds."""

    tokens: int
    squares: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What a runner found out about its own speed. No samples: it cannot be measured.

    decode_s: from a row's last step to its audio, for a chunk of about two seconds, beside the steps.
    """

    samples: tuple[StepSample, ...] = ()
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a request, ready to run: it becomes exactly one Sequence."""

    index: int
    text: str
    work: Work
    payload: Any
    """The model's own frozen record of plain values; the engine never looks inside."""
    estimated_s: float = 0.0
    """Seconds of audio it will be, about: what bounds a request."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the frontend made of a request.

    chunks: run at once. rest: what to run when the first chunk has ended, given its audio (a made-up
    voice is carried on by using the first chunk as the prompt of the others); None if that is all.
    total_chunks counts both.
    """

    chunks: tuple[Chunk, ...]
    total_chunks: int
    warnings: tuple[str, ...] = ()
    rest: Callable[[ChunkAudio], tuple[Chunk, ...]] | None = None


# -- Stand and stage: what runs in one step ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """One sequence's part in a step. `step` counts from 0; at 0 the runner (re)starts the row."""

    seq_id: int
    step: int
    chunk: Chunk
    epoch: int = 0
    """Grows when a row starts again after a fault; results of an older epoch are void."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The rows of one step, in order of urgency."""

    plan_id: int
    rows: tuple[PlannedRow, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class SequenceOutput:
    """The end of one sequence: audio, or the error that is its own.

    samples: float32 mono at the model's rate. codes: int16 [codebooks, frames] for models that have them.
    """

    seq_id: int
    samples: Samples | None = None
    error: Exception | None = None
    epoch: int = 0
    codes: VoicePrompt | None = None
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StepResult:
    """News from a runner.

    plan_id: the plan whose step is done; None when other news arrived (codes are decoded beside the steps).
    outputs: sequences that ended. error: the whole plan failed, and which row is to blame is unknown.
    prepared: sequences that `Runner.prepare` was still at work on, and that can run now; `encoded` of their
    clips were not in the cache of prompts.
    """

    plan_id: int | None
    outputs: tuple[SequenceOutput, ...] = ()
    error: Exception | None = None
    run_s: float = 0.0
    padded_tokens: int = 0
    """Tokens computed for nothing, where a model has to pad."""
    prepared: tuple[int, ...] = ()
    encoded: int = 0
    graph: GraphUse | None = None


# -- Booth: what came out ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChunkAudio:
    """One chunk, sung. Times are seconds: queue until its first step, run until its last, then decode."""

    index: int
    samples: Samples
    sample_rate: int
    steps: int
    queue_s: float
    run_s: float
    decode_s: float
    codes: VoicePrompt | None = None


# -- What a model says of itself -----------------------------------------------------------------

DeviceKind = Literal["large_gpu", "small_gpu", "cpu"]


@dataclass(frozen=True, slots=True)
class Device:
    """What a loaded model runs on.

    name: everything beside the model that the cost of a step depends on: device, number format, the way
    steps are run, the library that runs them. lag: steps still under way when their plan is reported; 1
    where the host goes one step ahead of the device.
    """

    kind: DeviceKind
    name: str
    lag: int = 0


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model's card: enough to validate a request and to configure an engine without loading anything."""

    name: str
    """The served name."""
    kind: ModelKind
    sample_rate: int
    languages: tuple[str, ...]
    """Language codes it can speak; ("*",) if any may be asked for."""
    voices: tuple[str, ...] = ()
    """Its own preset voices, the default one first. Empty: the model makes voices up or clones them."""
    fields: frozenset[str] = frozenset()
    """Optional request fields it honours, by their public names (num_step, duration, ref_audio, ...)."""
    speed_range: tuple[float, float] = (0.25, 4.0)
    defaults: Mapping[str, float | int | bool] = field(default_factory=dict)
    """Values it uses for fields the request leaves out."""
    max_rows: int | None = None
    """Most rows one plan may hold; 1 for a graph that takes one item; None: the setting decides."""
    default_concurrent_plans: int = 2
    steps_ahead: int = 1
    """Steps of one row that may be in flight, where a plan is reported only when its step is over."""
    max_num_batched_tokens: int = 8_192
    max_resident_tokens: int | None = None
    """Tokens of all rows that hold a slot together; None: only their number is bounded."""
    own_process: bool = False
    """It runs in a worker process: a device that fails for good takes only that process with it."""
    settings: frozenset[str] = frozenset()
    """Names it reads in `ModelOptions.extra`: a setting that no served model reads stops the start."""
    license: str = ""
    source: str = ""
    fingerprint: str = ""
    """Another one for every checkpoint whose steps may cost something else; kept costs are found by it."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What the settings say to a model. `extra` holds its own settings, e.g. fake_step_ms."""

    name: str | None = None
    """Served name; None takes the model's own."""
    device: str = "auto"
    dtype: str = "auto"
    max_concurrent_plans: int | None = None
    max_num_seqs: int | None = None
    defaults: Mapping[str, float | int | bool] = field(default_factory=dict)
    """Request defaults given as settings (num_step, ...): a model takes those among its `fields`."""
    extra: Mapping[str, Any] = field(default_factory=dict)
