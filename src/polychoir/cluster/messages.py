"""What an API process and a worker say to each other: one typed record for each thing there is to say.

A frame is one record and a tail of raw bytes: samples and clips are not copied into the record. Rows are
the model's own frozen dataclasses of plain values; they are named and checked field by field, never pickled.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias

import msgspec

from polychoir import errors
from polychoir.engine.calibrate import Calibration
from polychoir.engine.core import EngineStats
from polychoir.engine.plan import Limits
from polychoir.errors import InternalError, PolychoirError
from polychoir.types import Chunk, ModelOptions, Terms, VoicePrompt, Work

LARGE_BYTES = 16_384
"""A row's own bytes from this size on travel in the tail, each different one once: the pieces of a text
share one clip."""


# -- What is common ------------------------------------------------------------------------------


class Fault(msgspec.Struct, frozen=True, array_like=True):
    """An error of ours. `kind` is its class in `polychoir.errors`."""

    kind: str
    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None


class PackedChunk(msgspec.Struct, frozen=True, array_like=True):
    """A Chunk. `row` is its payload, of the class `row_type` ("module:name"), without the fields in `large`:
    name of the field and number of its bytes among the submission's."""

    index: int
    text: str
    work: Work
    estimated_s: float
    row_type: str
    row: msgspec.Raw
    large: tuple[tuple[str, int], ...] = ()


# -- To the worker -------------------------------------------------------------------------------


class Open(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The first record: load this model and run an engine of these limits.

    step_timeout_s: how long the runner may bring back nothing of what it owes before the worker ends itself;
    None: what suits the device that it comes to run on.
    """

    reference: str
    options: ModelOptions
    limits: Limits
    step_timeout_s: float | None
    calibration: Calibration | None = None


class Submit(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Make these chunks (`engine.loop.Submit`). sizes: of the byte strings in the tail, in order."""

    request: int
    terms: Terms
    chunks: tuple[PackedChunk, ...]
    sizes: tuple[int, ...] = ()


class Abort(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The consumer of this request has gone."""

    request: int


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """End after the plans in flight."""


# -- From the worker -----------------------------------------------------------------------------


class Settled(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Loading has ended: well, or with an error."""

    fault: Fault | None = None


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A submission was let in, or refused."""

    request: int
    refusal: Fault | None = None


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One chunk, sung (`types.ChunkAudio`). The tail is its samples: float32, native byte order."""

    request: int
    index: int
    sample_rate: int
    steps: int
    queue_s: float
    run_s: float
    decode_s: float
    codes: VoicePrompt | None = None


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A request is over because one of its chunks failed."""

    request: int
    fault: Fault


class Report(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """How the engine stands; also the sign that the worker's event loop is alive."""

    stats: EngineStats


class Log(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One line for the log of the parent."""

    logger: str
    level: int
    text: str


ToWorker: TypeAlias = Open | Submit | Abort | Stop
FromWorker: TypeAlias = Settled | Answer | Ended | Failed | Report | Log
Record: TypeAlias = ToWorker | FromWorker

encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
decode_to_worker: Callable[[memoryview], ToWorker] = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker: Callable[[memoryview], FromWorker] = msgspec.msgpack.Decoder(FromWorker).decode


# -- Chunks --------------------------------------------------------------------------------------


def pack_submission(request: int, chunks: Iterable[Chunk], terms: Terms) -> tuple[Submit, list[bytes]]:
    """A submission as a record and its tail."""
    large: dict[bytes, int] = {}
    packed = tuple(_pack(chunk, large) for chunk in chunks)
    return Submit(request, terms, packed, tuple(map(len, large))), list(large)


def unpack_submission(submit: Submit, tail: memoryview) -> tuple[Chunk, ...]:
    """The chunks of a submission. Raises what msgspec raises for a row that is not as its class says."""
    large, start = [], 0
    for size in submit.sizes:
        large.append(bytes(tail[start : start + size]))
        start += size
    return tuple(_unpack(packed, large) for packed in submit.chunks)


def _pack(chunk: Chunk, large: dict[bytes, int]) -> PackedChunk:
    row: Any = chunk.payload
    kind: Any = type(row)
    apart = tuple(
        (name, large.setdefault(getattr(row, name), len(large)))
        for name in _byte_fields(kind)
        if isinstance(getattr(row, name), bytes) and len(getattr(row, name)) >= LARGE_BYTES
    )
    if apart:
        row = replace(row, **{name: b"" for name, _ in apart})
    name = f"{kind.__module__}:{kind.__qualname__}"
    packed = msgspec.Raw(encode(row))
    return PackedChunk(chunk.index, chunk.text, chunk.work, chunk.estimated_s, name, packed, apart)


def _unpack(packed: PackedChunk, large: Sequence[bytes]) -> Chunk:
    row: Any = _row_decoder(packed.row_type)(packed.row)
    if packed.large:
        row = replace(row, **{name: large[number] for name, number in packed.large})
    return Chunk(packed.index, packed.text, packed.work, row, packed.estimated_s)


@cache
def _byte_fields(kind: Any) -> tuple[str, ...]:
    """Fields of a row that may hold bytes. Raises InternalError for a row that cannot travel."""
    if not is_dataclass(kind):
        raise InternalError(f"this is a bug in the model: its rows are {kind.__name__}, not dataclasses")
    return tuple(field.name for field in fields(kind) if "bytes" in str(field.type))


@cache
def _row_decoder(name: str) -> Callable[[msgspec.Raw], Any]:
    module, _, qualname = name.partition(":")
    kind = getattr(import_module(module), qualname)
    if not is_dataclass(kind):
        raise InternalError(f"{name} is not a dataclass, so not a row")
    return msgspec.msgpack.Decoder(kind).decode


# -- Errors --------------------------------------------------------------------------------------


def to_fault(error: PolychoirError) -> Fault:
    """An error to send. What caused an InternalError is for the log, so it goes along as text."""
    message = error.message
    if isinstance(error, InternalError) and error.__cause__ is not None:
        message += "\n" + "".join(traceback.format_exception(error.__cause__)).rstrip()
    retry_after_s = getattr(error, "retry_after_s", None)
    return Fault(type(error).__name__, error.code, message, error.param, retry_after_s)


def to_error(fault: Fault) -> PolychoirError:
    """The error that was sent; one of a class that is not in our tree comes back as InternalError."""
    kind = getattr(errors, fault.kind, InternalError)
    if kind is errors.Unavailable:
        return errors.Unavailable(fault.message, code=fault.code, retry_after_s=fault.retry_after_s or 0.0)
    if kind is errors.Overloaded:
        return errors.Overloaded(fault.message, retry_after_s=fault.retry_after_s or 0.0, param=fault.param)
    if not issubclass(kind, PolychoirError):
        return InternalError(fault.message)
    error: PolychoirError = kind(fault.message, param=fault.param)
    return error
