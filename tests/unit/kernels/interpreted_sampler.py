"""The fused sampler under Triton's interpreter beside the plain one. Run by test_fused_sampler.py.

TRITON_INTERPRET must be set before Triton is imported, and holds for the whole process; hence a process of
its own.
"""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl

from polychoir.kernels import plain_step
from polychoir.kernels.fused.expand import expand
from polychoir.kernels.fused.philox import CLASS, POSITION, cell_uniform, entry_uniform
from polychoir.kernels.fused.reveal import reveal
from polychoir.kernels.fused.score import score
from polychoir.kernels.noise import NoiseKeys, uniform
from polychoir.kernels.tables import Row
from tests.support.interpreting import mend_interpreter
from tests.support.step_tables import Situation, TestRow, situation

torch.set_num_threads(1)
# Integers of the noise wrap on purpose, and logits that are not numbers are part of the tests.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

mend_interpreter()


def fused(s: Situation, vocabulary: int, tile: int = 64) -> None:
    mask = vocabulary - 1
    expand(s.step, s.slots, s.source, s.position, s.cell_row)
    score(s.logits, s.step, s.slots, s.source, s.cell_row, s.token, s.score, mask)
    reveal(s.step, s.slots, s.source, s.token, s.score, mask, tile=tile)


def plain(s: Situation, vocabulary: int) -> None:
    mask = vocabulary - 1
    plain_step.expand(s.step, s.slots, s.source, s.position, s.cell_row)
    plain_step.score(s.logits, s.step, s.slots, s.source, s.cell_row, s.token, s.score, mask)
    plain_step.reveal(s.step, s.slots, s.source, s.token, s.score, mask)


def agree(s: Situation, vocabulary: int) -> Situation:
    """Run both on copies and compare all they write, and that they write nothing else. Returns the fused."""
    left, right = s.copy(), s.copy()
    fused(left, vocabulary)
    plain(right, vocabulary)
    assert torch.equal(left.source, right.source)
    assert torch.equal(left.position, right.position)
    assert torch.equal(left.cell_row, right.cell_row)
    assert torch.equal(left.slots.sound, right.slots.sound)
    sound = right.slots.sound[s.step.rows[right.cell_row[: s.positions].long(), Row.SLOT].long()] != 0
    live = (right.score[: s.positions] > -math.inf) & sound[:, None]
    assert torch.equal((left.score[: s.positions] > -math.inf) & sound[:, None], live)
    assert torch.equal(left.token[: s.positions][live], right.token[: s.positions][live])
    torch.testing.assert_close(
        left.score[: s.positions][live], right.score[: s.positions][live], rtol=1e-5, atol=1e-5
    )
    assert torch.equal(left.token[s.positions :], s.token[s.positions :])
    assert left.score[s.positions :].isnan().all()
    assert torch.equal(left.slots.arena, right.slots.arena)
    return left


MIXED = [
    TestRow(1, masked=1.0, reveal=3),
    TestRow(10, class_temperature=0.8, prefix=60),
    TestRow(9, position_temperature=0.0, guidance=0.0, layer_penalty=0.0),
    TestRow(4, class_temperature=50.0, position_temperature=0.3),
    TestRow(5, masked=0.0),
    TestRow(6, masked=1.0, reveal=48),
    TestRow(7, reveal=0),
    TestRow(3, reveal=500),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_mixed_rows(dtype: torch.dtype) -> None:
    agree(situation(MIXED, torch.Generator().manual_seed(4), dtype=dtype), 33)


@pytest.mark.parametrize("seed", range(3))
def test_random_rows(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def pick(*choices: float) -> float:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    rows = [
        TestRow(
            int(torch.randint(1, 14, (), generator=generator)),
            prefix=int(torch.randint(1, 200, (), generator=generator)),
            guidance=pick(0.0, 2.0),
            position_temperature=pick(0.0, 0.5, 5.0),
            class_temperature=pick(0.0, 0.0, 1.0),
            layer_penalty=pick(0.0, 5.0),
            masked=pick(0.2, 0.9, 1.0),
            step=int(torch.randint(0, 128, (), generator=generator)),
            reveal=int(torch.randint(0, 60, (), generator=generator)),
        )
        for _ in range(4)
    ]
    agree(situation(rows, generator, spare=int(pick(0, 1, 40))), 33)


def test_the_true_vocabulary() -> None:
    rows = [TestRow(3, class_temperature=1.0), TestRow(2, masked=1.0)]
    agree(situation(rows, torch.Generator().manual_seed(5), vocabulary=1_025, dtype=torch.bfloat16), 1_025)


def test_equal_scores_go_by_codebook_then_frame() -> None:
    rows = [TestRow(9, position_temperature=0.0, layer_penalty=0.0, masked=1.0, reveal=n) for n in (1, 37)]
    s = situation(rows, torch.Generator().manual_seed(6))
    s.logits.fill_(0.25)
    agree(s, 33)


def test_scores_that_overflow_still_come_before_revealed_cells() -> None:
    s = situation(
        [TestRow(6, position_temperature=1e-38, masked=0.5, reveal=20)], torch.Generator().manual_seed(7)
    )
    agree(s, 33)


@pytest.mark.parametrize(
    "bad, entry", [(math.nan, 0), (math.inf, 20), (math.nan, 32), (-math.inf, 32), (-math.inf, slice(33))]
)
def test_a_broken_row_is_left_and_its_neighbours_are_not(bad: float, entry: int | slice) -> None:
    rows = [TestRow(3, masked=1.0), TestRow(3, masked=1.0, class_temperature=1.0), TestRow(3, masked=1.0)]
    s = situation(rows, torch.Generator().manual_seed(8))
    s.logits.view(-1, 8, 33)[4, 1, entry] = bad
    after = agree(s, 33)
    harmless = bad == -math.inf and entry == 32
    assert [int(after.slots.sound[slot]) for slot in s.step.rows[:3, Row.SLOT]] == [1, int(harmless), 1]


def test_a_row_once_unsound_is_never_written() -> None:
    s = situation([TestRow(6, masked=1.0), TestRow(6, masked=1.0)], torch.Generator().manual_seed(9))
    s.slots.sound[int(s.step.rows[0, Row.SLOT])] = 0
    agree(s, 33)


def test_a_code_is_never_overwritten_whatever_its_score() -> None:
    s = situation([TestRow(6, masked=0.5, reveal=48)], torch.Generator().manual_seed(11))
    expand(s.step, s.slots, s.source, s.position, s.cell_row)
    s.score.zero_()
    s.token.fill_(7)
    left, right = s.copy(), s.copy()
    reveal(left.step, left.slots, left.source, left.token, left.score, 32)
    plain_step.reveal(right.step, right.slots, right.source, right.token, right.score, 32)
    masked = s.slots.arena == 32
    assert torch.equal(left.slots.arena, s.slots.arena.masked_fill(masked, 7))
    assert torch.equal(left.slots.arena, right.slots.arena)


def test_the_mask_must_be_the_last_entry() -> None:
    s = situation([TestRow(2)], torch.Generator().manual_seed(10))
    with pytest.raises(ValueError, match="last of 33 entries"):
        score(s.logits, s.step, s.slots, s.source, s.cell_row, s.token, s.score, 31)


@triton.jit
def _noise(keys, step, frame, codebook, out, ENTRIES: tl.constexpr):
    tl.store(out, cell_uniform(keys, POSITION, step, frame, codebook))
    numbers = entry_uniform(keys, CLASS, step, frame, codebook, ENTRIES)
    tl.store(out + 1 + tl.arange(0, ENTRIES), numbers)


@pytest.mark.parametrize("step, frame, codebook", [(0, 0, 0), (31, 124, 7), (127, 2_999, 3)])
def test_noise_is_bit_for_bit_that_of_the_reference(step: int, frame: int, codebook: int) -> None:
    words = torch.randint(2**32, (3,), generator=torch.Generator().manual_seed(step))
    out = torch.full((1_025,), -1.0)
    _noise[(1,)](words, step, frame, codebook, out, ENTRIES=1_024)
    keys = NoiseKeys(words[0], words[1], words[2], torch.tensor(step))
    place = torch.tensor(frame), torch.tensor(codebook)
    assert out[0] == uniform(keys, POSITION.value, *place)
    assert torch.equal(out[1:], uniform(keys, CLASS.value, *place, torch.arange(1_024)))
