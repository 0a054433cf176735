"""Logits of the packed network beside the published model's padded ones, float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polychoir.models.omnivoice.network import Network
from polychoir.models.omnivoice.row import OmniVoiceRow
from polychoir.runner.packing import pack
from polychoir.runner.plain_step import make_batch
from tests.parity.driving import make_network
from tests.support.driving import make_slots

MASK, CODEBOOKS = 1_024, 8
SHAPES = [(11, 0, 30, 2.0), (5, 20, 7, 2.0), (30, 3, 1, 0.0), (11, 0, 30, 1.0)]
"""Text, reference and target lengths and guidance of the rows of one batch."""


@pytest.fixture(scope="module")
def network(checkpoint_dir: Path) -> Network:
    return make_network(checkpoint_dir, torch.float32)


@pytest.fixture(scope="module")
def rows() -> list[tuple[OmniVoiceRow, torch.Tensor, torch.Tensor]]:
    """Rows with the codes of their reference and of their half revealed target, [frames, 8] each."""
    draw = np.random.default_rng(0)
    made = []
    for text, reference, target, guidance in SHAPES:
        row = OmniVoiceRow(
            text_ids=tuple(int(token) for token in draw.integers(0, 151_676, text)),
            target_frames=target,
            timetable=(CODEBOOKS * target,),
            guidance_scale=guidance,
            position_temperature=0.0,
            class_temperature=0.0,
            layer_penalty_factor=5.0,
            seed=0,
            ref_frames=reference,
        )
        canvas = draw.integers(0, 1_024, (target, CODEBOOKS))
        canvas[draw.random(canvas.shape) < 0.5] = MASK
        codes = draw.integers(0, 1_024, (reference, CODEBOOKS))
        made.append((row, torch.from_numpy(codes), torch.from_numpy(canvas)))
    return made


def published_logits(model: Any, run: torch.Tensor, text: int) -> torch.Tensor:
    """Of one run of ids [tokens, 8] whose first `text` tokens are text: [tokens, 8, 1025]."""
    audio = torch.arange(run.shape[0]) >= text
    everybody = torch.ones(1, 1, run.shape[0], run.shape[0], dtype=torch.bool)
    with torch.inference_mode():
        output = model(input_ids=run.T[None], audio_mask=audio[None], attention_mask=everybody)
    return output.logits[0].transpose(0, 1)  # type: ignore[no-any-return]


def test_packed_logits_equal_the_published_model(network: Network, oracle: Any, rows: Any) -> None:
    table = make_slots(network, limit=8)
    seats = [table.seat(number, row, 0) for number, (row, _, _) in enumerate(rows)]
    table.upload([(seat, codes.T.numpy()) for seat, (_, codes, _) in zip(seats, rows, strict=True)])
    arena = table.tables.arena
    for seat, (_, _, canvas) in zip(seats, rows, strict=True):
        arena[torch.from_numpy(seat.canvas)] = canvas.int()
    batch = make_batch(pack(seats), torch.device("cpu"))
    normed = network.hidden(arena, batch.source, batch.position, network.attend_runs(batch.runs))
    ours = network.logits(normed[batch.targets])
    expected = []
    for row, reference, canvas in rows:
        text = torch.tensor(row.text_ids)[:, None].expand(-1, CODEBOOKS)
        run = torch.cat((text, reference, canvas))
        expected.append(published_logits(oracle, run, len(row.text_ids))[-row.target_frames :])
    expected += [published_logits(oracle, canvas, 0) for row, _, canvas in rows if row.guidance_scale]
    theirs = torch.cat(expected)
    assert ours.shape == theirs.shape
    assert float(theirs.abs().max()) > 1.0
    assert float((ours - theirs).abs().max()) < 1e-4
