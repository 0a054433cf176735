"""What is sent is what arrives: rows, errors, snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from polychoir import errors
from polychoir.cluster import messages as m
from polychoir.engine.core import EngineStats
from polychoir.errors import InternalError, PolychoirError
from polychoir.models.omnivoice.row import OmniVoiceRow, Shaping
from polychoir.models.onnx_voice.hibari.row import HibariRow
from polychoir.models.onnx_voice.vits.row import VitsRow
from polychoir.types import Chunk, SamplingParams, SpeechRequest, Terms, VoicePrompt, Work

CLIP = bytes(range(256)) * 400
OMNIVOICE = OmniVoiceRow(
    text_ids=(1, 151_675),
    target_frames=50,
    timetable=(100, 300),
    guidance_scale=2.0,
    position_temperature=5.0,
    class_temperature=0.0,
    layer_penalty_factor=5.0,
    seed=2**63 - 1,
    prompt=VoicePrompt(b"\x01\x02", 8, 1, "a", 0.1),
    shaping=Shaping(lead_s=0.0),
)


def through(*rows: Any, **fields: Any) -> tuple[tuple[Chunk, ...], int]:
    """Chunks that have been sent, and the bytes of the tail."""
    chunks = [Chunk(index, "text", Work(7, 3, 2), row, 1.5) for index, row in enumerate(rows)]
    record, tail = m.pack_submission(3, chunks, Terms("batch", more=True))
    got = m.decode_to_worker(memoryview(bytearray(m.encode(record))))
    assert isinstance(got, m.Submit)
    assert (got.request, got.terms) == (3, Terms("batch", more=True))
    unpacked = m.unpack_submission(got, memoryview(bytearray(b"".join(tail))))
    assert list(unpacked) == chunks
    return unpacked, sum(map(len, tail))


@pytest.mark.parametrize(
    "row",
    [
        OMNIVOICE,
        HibariRow((0, 5, 0), 1.0, 7, 0),
        VitsRow((1, 2), 1.1, None),
        SpeechRequest("id", "héllo", 5, sampling=SamplingParams(num_step=4)),
    ],
    ids=lambda row: type(row).__name__,
)
def test_a_row_arrives_as_it_was(row: Any) -> None:
    (chunk,), tail = through(row)
    assert type(chunk.payload) is type(row)
    assert tail == 0


def test_pieces_of_a_text_share_one_clip() -> None:
    from dataclasses import replace

    rows = [replace(OMNIVOICE, chunk=n, clip=CLIP, clip_key="k", prompt=None) for n in range(50)]
    _, tail = through(*rows, replace(OMNIVOICE, clip=CLIP + b"x"), OMNIVOICE)
    assert tail == 2 * len(CLIP) + 1


def test_a_row_that_is_no_record_is_the_models_bug() -> None:
    with pytest.raises(InternalError, match="its rows are dict, not dataclasses"):
        m.pack_submission(1, [Chunk(0, "", Work(1, 1), {})], Terms())


def test_only_a_dataclass_is_made_from_a_name() -> None:
    chunk = m.PackedChunk(0, "", Work(1, 1), 0.0, "os:system", m.msgspec.Raw(m.encode("true")))
    with pytest.raises(InternalError, match="not a row"):
        m.unpack_submission(m.Submit(1, Terms(), (chunk,)), memoryview(b""))


@pytest.mark.parametrize(
    "error",
    [
        errors.Overloaded("full", retry_after_s=3.5),
        errors.Unavailable("gone", code="worker_lost", retry_after_s=2.0),
        errors.ModelLoadError("no file", param="model"),
        errors.SettingError("no", param="device"),
        errors.InvalidAudio("too short"),
        errors.DeviceLost("sticky"),
        errors.InternalError("a bug"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_arrives_as_it_was(error: PolychoirError) -> None:
    got = m.to_error(m.to_fault(error))
    assert type(got) is type(error)
    assert vars(got) == vars(error)
    assert str(got) == str(error)


def test_an_error_of_somebody_elses_class_is_internal() -> None:
    class Theirs(errors.InvalidRequest):
        pass

    assert type(m.to_error(m.to_fault(Theirs("what")))) is InternalError


def test_the_cause_of_a_bug_goes_along_for_the_log() -> None:
    wrapped = InternalError("a row failed")
    wrapped.__cause__ = ZeroDivisionError("by nothing")
    message = m.to_error(m.to_fault(wrapped)).message
    assert message.startswith("a row failed\n")
    assert "ZeroDivisionError: by nothing" in message


def test_a_snapshot_arrives_as_it_was() -> None:
    stats = EngineStats(waiting=2, waiting_by_tier={"batch": 2}, busy_s=0.5, graph_steps={"hit": 9})
    assert m.decode_from_worker(memoryview(m.encode(m.Report(stats)))) == m.Report(stats)
