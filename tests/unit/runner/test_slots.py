"""Slots and the prompt cache: nothing is shared by two rows, nothing is lost, everything is bounded."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the runner needs the extra [omnivoice]")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from polychoir.errors import InternalError  # noqa: E402
from polychoir.models.omnivoice.row import OmniVoiceRow  # noqa: E402
from polychoir.runner.prompt_cache import PromptCache  # noqa: E402
from polychoir.runner.slots import SlotTable  # noqa: E402

MASK = 1_024


def row(target: int, reference: int = 0) -> OmniVoiceRow:
    return OmniVoiceRow((1,), target, (1,), 0.0, 0.0, 0.0, 0.0, seed=0, ref_frames=reference)


def table(limit: int = 4) -> SlotTable:
    return SlotTable(8, MASK, limit, torch.device("cpu"))


@settings(max_examples=40, deadline=None)
@given(
    acts=st.lists(
        st.tuples(st.integers(0, 5), st.booleans(), st.integers(1, 2_000), st.integers(0, 300)), max_size=40
    )
)
def test_rows_never_share_a_frame_and_frames_come_back(acts: list[tuple[int, bool, int, int]]) -> None:
    slots = table(limit=6)
    for seq_id, leaves, target, reference in acts:
        if leaves:
            slots.drop(seq_id)
        else:
            codes = np.full((8, reference), seq_id, np.int16) if reference else None
            slot = slots.start(seq_id, row(target, reference), codes, epoch=0)
            assert (slots.canvases([slot])[0] == MASK).all()
            assert slots.canvases([slot])[0].shape == (8, target)
            assert (slots.arena[torch.from_numpy(slot.seat.reference)] == seq_id).all()
    seats = [slot.seat for seq_id in range(6) if (slot := slots.get(seq_id)) is not None]
    taken = [frame for seat in seats for frame in (*seat.reference, *seat.canvas)]
    assert len(taken) == len(set(taken))
    assert len(slots) == len(seats)
    for seq_id in range(6):
        slots.drop(seq_id)
    whole = slots.start(0, row(slots.arena.shape[0]), None, 0)
    assert sorted(whole.seat.canvas) == list(range(slots.arena.shape[0]))


def test_slots_are_bounded_and_a_restart_needs_no_second() -> None:
    slots = table(limit=2)
    first = slots.start(1, row(3), None, 0)
    slots.start(2, row(3), None, 0)
    again = slots.start(1, row(3), None, 1)
    assert again.serial != first.serial
    with pytest.raises(InternalError, match="all 2 slots are taken"):
        slots.start(3, row(3), None, 0)
    slots.drop(2)
    slots.start(3, row(3), None, 0)


def test_a_slot_is_sound_again_for_its_next_row() -> None:
    slots = table(limit=1)
    slot = slots.start(1, row(3), None, 0)
    slots.sound[slot.number] = False
    assert slots.soundness([slot]) == [False]
    assert slots.soundness([slots.start(1, row(3), None, 1)]) == [True]


def test_growing_keeps_what_is_written() -> None:
    slots = table()
    small = slots.start(1, row(5), None, 0)
    slots.arena[torch.from_numpy(small.seat.canvas)] = 7
    before = slots.arena.shape[0]
    slots.start(2, row(before), None, 0)
    assert slots.arena.shape[0] == 2 * before
    assert (slots.canvases([small])[0] == 7).all()


def test_the_prompt_cache_forgets_the_least_used_first() -> None:
    calls: list[str] = []

    def encode(name: str) -> np.ndarray:
        calls.append(name)
        return np.zeros((8, 10), np.int16)  # 160 bytes

    cache = PromptCache(limit_bytes=400)
    for name in ("a", "b", "a", "c", "a", "b"):
        cache.get(name, lambda name=name: encode(name))
    assert calls == ["a", "b", "c", "b"]
    assert cache.held_bytes == 320


def test_what_is_larger_than_the_cache_is_not_kept() -> None:
    cache = PromptCache(limit_bytes=10)
    assert cache.get("a", lambda: np.zeros((8, 10), np.int16)).shape == (8, 10)
    assert cache.held_bytes == 0


def test_a_failed_encode_is_not_cached() -> None:
    cache = PromptCache(limit_bytes=1_000)
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    assert cache.get("a", lambda: np.zeros((8, 1), np.int16)).shape == (8, 1)
