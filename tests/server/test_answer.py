"""The answer on its way out: every byte once, in slices, and none kept longer than needed."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polychoir.server import memory
from polychoir.server.answer import SLICE_BYTES, PiecesResponse
from polychoir.server.mouth import Mouth
from polychoir.types import AudioFormat

MIB = 2**20


async def sent_by(response: PiecesResponse) -> list[Any]:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        raise AssertionError("an answer does not read")

    await response({"type": "http"}, receive, send)
    return messages


SIZES = st.lists(st.sampled_from([0, 1, 5, SLICE_BYTES - 1, SLICE_BYTES, SLICE_BYTES + 1, 3 * SLICE_BYTES]))


@given(sizes=SIZES)
async def test_every_byte_is_sent_once_and_in_order(sizes: list[int]) -> None:
    pieces = [bytes([1 + n % 255]) * size for n, size in enumerate(sizes)]
    start, *parts = await sent_by(PiecesResponse(pieces, {"x-a": "b"}, "audio/wav"))
    headers = dict(start["headers"])
    assert (start["status"], headers[b"x-a"], headers[b"content-type"]) == (200, b"b", b"audio/wav")
    assert int(headers[b"content-length"]) == sum(sizes)
    assert b"".join(part["body"] for part in parts) == b"".join(pieces)
    assert all(len(part["body"]) <= SLICE_BYTES for part in parts)
    assert [part["more_body"] for part in parts] == [True] * (len(parts) - 1) + [False]


async def test_a_piece_is_let_go_once_it_is_sent() -> None:
    tracemalloc.start()
    try:
        held: list[int] = []

        async def send(message: Any) -> None:
            held.append(tracemalloc.get_traced_memory()[0])

        await PiecesResponse([bytes(MIB) for _ in range(16)], {}, "audio/wav")({"type": "http"}, send, send)
        assert held[0] >= 16 * MIB
        assert held[-1] < 2 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["wav", "pcm"])
async def test_a_long_answer_is_held_once(kind: AudioFormat) -> None:
    second = np.zeros(24_000, dtype=np.float32)
    with ThreadPoolExecutor(1) as pool:
        mouth = Mouth(pool, kind, None)
        tracemalloc.start()
        try:
            for _ in range(400):
                await mouth.feed(second)
            size = sum(map(len, await mouth.finish()))
            assert size >= 400 * 48_000
            assert tracemalloc.get_traced_memory()[1] < 1.3 * size
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(("size", "times"), [(memory.LARGE_BYTES - 1, 0), (memory.LARGE_BYTES, 1)])
async def test_memory_goes_back_after_a_large_answer(
    monkeypatch: pytest.MonkeyPatch, size: int, times: int
) -> None:
    trims: list[int] = []
    monkeypatch.setattr(memory, "_TRIM", trims.append)
    await sent_by(PiecesResponse([bytes(size)], {}, "audio/wav"))
    assert trims == [0] * times
