"""The desk's two lanes: a short text never waits for a long one, and long ones are bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from polychoir.errors import Overloaded
from polychoir.lanes import LONG_INSIDE, SHORT_CHARS, Lanes

LONG = SHORT_CHARS + 1


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    made = Lanes(2)
    yield made
    made.close()


async def test_a_short_text_passes_every_long_one(lanes: Lanes) -> None:
    gate = threading.Event()
    held = [asyncio.create_task(lanes.run(LONG, gate.wait)) for _ in range(4)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(lanes.run(SHORT_CHARS, lambda: "done"), 5) == "done"
    assert not any(task.done() for task in held)
    gate.set()
    assert all(await asyncio.gather(*held))


async def test_long_texts_run_one_at_a_time(lanes: Lanes) -> None:
    inside, most = 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        threading.Event().wait(0.01)
        with lock:
            inside -= 1

    await asyncio.gather(*(lanes.run(LONG, work) for _ in range(6)))
    assert most == 1


async def test_a_full_lane_refuses_and_who_leaves_makes_room(lanes: Lanes) -> None:
    gate = threading.Event()
    held = [asyncio.create_task(lanes.run(LONG, gate.wait)) for _ in range(LONG_INSIDE)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as caught:
        await lanes.run(LONG, lambda: True)
    assert caught.value.retry_after_s >= 1
    held[-1].cancel()
    await asyncio.sleep(0)
    held.append(asyncio.create_task(lanes.run(LONG, gate.wait)))
    await asyncio.sleep(0)
    gate.set()
    *ran, left, late = await asyncio.gather(*held, return_exceptions=True)
    assert all(end is True for end in (*ran, late))
    assert isinstance(left, asyncio.CancelledError)


@pytest.mark.parametrize("chars", [1, LONG])
async def test_what_the_work_raises_comes_out_and_frees_the_place(lanes: Lanes, chars: int) -> None:
    def fail() -> None:
        raise ValueError("no")

    for _ in range(LONG_INSIDE + 1):
        with pytest.raises(ValueError, match="no"):
            await lanes.run(chars, fail)
