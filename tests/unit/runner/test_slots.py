"""Slots: nothing is shared by two rows, nothing is lost, everything is bounded."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the runner needs the extra [omnivoice]")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from polychoir.errors import InternalError  # noqa: E402
from polychoir.kernels.tables import BLOCK  # noqa: E402
from polychoir.models.omnivoice.row import OmniVoiceRow  # noqa: E402
from polychoir.runner.slots import Slot, SlotTable  # noqa: E402

MASK = 1_024


def row(target: int, reference: int = 0, text: int = 1) -> OmniVoiceRow:
    return OmniVoiceRow(
        tuple(range(text)), target, (3, 1), 2.0, 5.0, 0.5, 4.0, seed=2**40 + 7, chunk=3, ref_frames=reference
    )


def table(limit: int = 4, tokens: int = 4_096, longest: int = 2_560) -> SlotTable:
    return SlotTable(
        codebooks=8, mask_id=MASK, limit=limit, tokens=tokens, longest=longest, device=torch.device("cpu")
    )


def start(slots: SlotTable, seq_id: int, one: OmniVoiceRow, codes: np.ndarray | None = None) -> Slot:
    slot = slots.seat(seq_id, one, epoch=0)
    slots.upload([(slot, codes)])
    return slot


@settings(max_examples=40, deadline=None)
@given(
    acts=st.lists(
        st.tuples(
            st.integers(0, 5), st.booleans(), st.integers(1, 500), st.integers(0, 100), st.integers(1, 70)
        ),
        max_size=40,
    )
)
def test_rows_never_share_a_token_and_tokens_come_back(
    acts: list[tuple[int, bool, int, int, int]],
) -> None:
    slots = table(limit=6)
    free = len(table(limit=6)._free)
    for seq_id, leaves, target, reference, text in acts:
        if leaves:
            slots.drop(seq_id)
            continue
        codes = np.full((8, reference), seq_id, np.int16) if reference else None
        slot = start(slots, seq_id, row(target, reference, text), codes)
        tokens = slots.tables.arena[torch.from_numpy(slot.where)]
        assert tokens[:text, 0].tolist() == [-(token + 1) for token in range(text)]
        assert (tokens[:text, 1:] == 0).all()
        assert (tokens[text : text + reference] == seq_id).all()
        assert (tokens[text + reference :] == MASK).all()
        codes_of, sound = slots.take([slot])
        assert (codes_of[0] == MASK).all()
        assert codes_of[0].shape == (target, 8)
        assert sound.tolist() == [1]
    held = [slot for seq_id in range(6) if (slot := slots.get(seq_id)) is not None]
    taken = [token for slot in held for token in slot.where]
    assert len(taken) == len(set(taken))
    assert len(slots) == len(held)
    for seq_id in range(6):
        slots.drop(seq_id)
    assert sorted(slots._free) == list(range(free))


def test_the_device_knows_each_slot_by_its_blocks_and_settings() -> None:
    slots = table()
    start(slots, 9, row(70))
    slots.drop(9)  # so that the next rows' blocks are not in order
    for seq_id, one in ((1, row(200, 30, 5)), (2, row(3))):
        slot = start(slots, seq_id, one, np.ones((8, one.ref_frames), np.int16) if one.ref_frames else None)
        blocks = slots.tables.blocks[slot.number]
        where = [int(blocks[j // BLOCK]) * BLOCK + j % BLOCK for j in range(one.cond_len)]
        assert where == slot.where.tolist()
        assert slots.tables.knobs[slot.number].tolist() == [2.0, 5.0, 0.5, 4.0]
        assert slots.tables.keys[slot.number].tolist() == [7, 2**8, 3]
        assert slots.tables.timetable[slot.number].tolist() == [3, 1] + [0] * 126


def test_what_the_card_allows_always_fits() -> None:
    """Rows that leave most of their last block empty, as many as the table was made for."""
    slots = table(limit=8, tokens=8 * 65)
    for seq_id in range(8):
        start(slots, seq_id, row(64))
    with pytest.raises(InternalError, match="no room for a row of 65 tokens"):
        slots.seat(8, row(64), 0)
    slots.drop(3)
    start(slots, 8, row(64))


def test_a_row_longer_than_any_slot_is_an_error() -> None:
    with pytest.raises(InternalError, match="no room"):
        table(longest=128).seat(0, row(128), 0)


def test_a_restart_needs_no_second_slot() -> None:
    slots = table(limit=1)
    first = start(slots, 1, row(3))
    again = start(slots, 1, row(3))
    assert again.serial != first.serial
    assert len(slots) == 1


def test_a_slot_is_sound_again_for_its_next_row() -> None:
    slots = table(limit=1)
    slot = start(slots, 1, row(3))
    slots.tables.sound[slot.number] = 0
    assert slots.take([slot])[1].tolist() == [0]
    assert slots.take([start(slots, 1, row(3))])[1].tolist() == [1]
