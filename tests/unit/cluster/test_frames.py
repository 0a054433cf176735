"""Frames arrive whole, in order and aligned, however the stream was cut."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator

import pytest

from polychoir.cluster import frames as fr
from polychoir.cluster.frames import Frames, join
from polychoir.errors import InternalError

Got = list[tuple[bytes, bytes]]


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Frames, Frames, Got]]:
    got: Got = []
    sender = Frames(lambda head, tail: None)
    receiver = Frames(lambda head, tail: got.append((bytes(head), bytes(tail))))
    one, other = socket.socketpair()
    await join(sender, one)
    await join(receiver, other)
    yield sender, receiver, got
    sender.close()
    await receiver.closed.wait()
    receiver.close()
    await sender.closed.wait()


async def test_frames_of_all_sizes_arrive_as_they_were_sent(pair: tuple[Frames, Frames, Got]) -> None:
    sender, _, got = pair
    sizes = [0, 1, 3, 4, fr.READ_BYTES - 9, fr.READ_BYTES - 8, fr.READ_BYTES, 3_000_001, 2, 70_000]
    sent = [(random.Random(n).randbytes(n % 1_000), random.Random(n).randbytes(n)) for n in sizes]
    for head, tail in sent:
        sender.send(head, (tail[:7], tail[7:]) if tail else ())
    while len(got) < len(sent):
        await asyncio.sleep(0.001)
    assert got == sent


def test_a_stream_cut_anywhere_gives_the_same_frames() -> None:
    sent = [(bytes([n] * n), bytes([n] * (4 * n))) for n in range(40)]
    stream = bytearray()
    for head, tail in sent:
        padding = bytes(-(8 + len(head)) % 4) if tail else b""
        rest = len(head).to_bytes(4, "little") + head + padding + tail
        stream += len(rest).to_bytes(4, "little") + rest
    for seed in range(20):
        got: Got = []
        receiver = Frames(lambda head, tail, got=got: got.append((bytes(head), bytes(tail))))
        left, rng = bytes(stream), random.Random(seed)
        while left:
            piece = left[: rng.randint(1, 300)]
            receiver.get_buffer(-1)[: len(piece)] = piece
            receiver.buffer_updated(len(piece))
            left = left[len(piece) :]
        assert got == sent


def test_a_tail_can_be_used_where_it_is() -> None:
    tails: list[memoryview] = []
    receiver = Frames(lambda head, tail: tails.append(tail))
    frame = (4 + 3 + 1 + 8).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"abc" + b"\0" + bytes(8)
    receiver.get_buffer(-1)[: len(frame)] = frame
    receiver.buffer_updated(len(frame))
    receiver.get_buffer(-1)[:8] = b"\xff" * 8
    assert bytes(tails[0].cast("f")) == bytes(8)
    assert not tails[0].readonly


async def test_a_frame_that_is_too_large_is_not_sent(
    pair: tuple[Frames, Frames, Got], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fr, "MAX_FRAME_BYTES", 100)
    with pytest.raises(InternalError, match="a frame of"):
        pair[0].send(b"", (bytes(200),))


async def test_a_frame_that_is_too_large_ends_the_connection(
    pair: tuple[Frames, Frames, Got], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver, got = pair
    sender.send(b"before")
    sender.send(b"", (bytes(200_000),))
    monkeypatch.setattr(fr, "MAX_FRAME_BYTES", 100_000)
    await asyncio.wait_for(receiver.closed.wait(), 5)
    assert got == [(b"before", b"")]


async def test_a_reader_that_stops_makes_the_sender_wait(pair: tuple[Frames, Frames, Got]) -> None:
    sender, receiver, got = pair
    receiver.pause_reading()
    sender.send(b"", (bytes(2 * fr.HIGH_WATER_BYTES),))
    assert not sender.writable.is_set()
    receiver.resume_reading()
    await asyncio.wait_for(sender.writable.wait(), 5)
    while not got:
        await asyncio.sleep(0.001)
    assert len(got[0][1]) == 2 * fr.HIGH_WATER_BYTES
