"""The fused step under Triton's interpreter beside the plain one. Run by test_fused_step.py, which sets
TRITON_INTERPRET: it counts when Triton is imported."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polychoir.models.omnivoice.config import parse_config
from polychoir.models.omnivoice.network import Layer, Network, Weights
from polychoir.models.omnivoice.row import OmniVoiceRow
from polychoir.models.omnivoice.timetable import timetable
from polychoir.runner.fused_step import FusedStep
from polychoir.runner.packing import pack
from polychoir.runner.plain_step import PlainStep, make_batch
from polychoir.runner.slots import Slot, SlotTable
from tests.support.interpreting import mend_interpreter

mend_interpreter()
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

LLM = {
    "model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48, "vocab_size": 50,
    "max_position_embeddings": 512,
}  # fmt: skip
CONFIG = parse_config(
    {"model_type": "omnivoice", "llm_config": LLM, "audio_vocab_size": 33, "audio_mask_id": 32}, "here"
)


def make_weights() -> Weights:
    draw = torch.Generator().manual_seed(0)

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw) * (0.3 if len(shape) > 1 else 1.0)

    layers = tuple(
        Layer(weight(32), weight(128, 32), weight(16), weight(16), weight(32, 64), weight(32),
              weight(96, 32), weight(32, 48))
        for _ in range(2)
    )  # fmt: skip
    return Weights(weight(50, 32), weight(264, 32), weight(264, 32), weight(32), layers)


def row(seed: int, frames: int, guidance: float, kind: float, reference: int = 0) -> OmniVoiceRow:
    return OmniVoiceRow(
        text_ids=tuple(range(1 + seed % 7, 4 + seed % 9 + 3)),
        target_frames=frames,
        timetable=timetable(frames, 2, 0.5),
        guidance_scale=guidance,
        position_temperature=5.0 * (seed % 2),
        class_temperature=kind,
        layer_penalty_factor=2.0,
        seed=seed,
        ref_frames=reference,
    )


ROWS = (row(1, 5, 2.0, 0.0), row(2, 1, 0.0, 0.0), row(3, 12, 2.0, 0.0, reference=25), row(4, 2, 1.0, 0.7))


def seat(table: SlotTable) -> list[Slot]:
    slots = [table.seat(number, one, 0) for number, one in enumerate(ROWS)]
    codes = [np.full((8, one.ref_frames), 3, np.int16) for one in ROWS]
    table.upload(list(zip(slots, codes, strict=True)))
    return slots


def make_table() -> SlotTable:
    return SlotTable(codebooks=8, mask_id=32, limit=8, tokens=2_048, longest=512, device=torch.device("cpu"))


def test_guided_logits_agree() -> None:
    from polychoir.kernels.fused import backbone

    table, weights = make_table(), make_weights()
    slots = seat(table)
    fused = FusedStep(Network(CONFIG, weights, backbone), table, max_rows=8, largest=256)
    tokens = fused.fill(slots, [0] * len(slots))
    found = fused.logits(tokens + 3)
    batch = make_batch(pack(slots), torch.device("cpu"))
    plain = Network(CONFIG, weights)
    normed = plain.hidden(table.tables.arena, batch.source, batch.position, plain.attend_runs(batch.runs))
    logits = plain.logits(normed[batch.targets]).flatten(1)
    positions = batch.canvas.numel()
    expected = logits[:positions].clone()
    guidance = torch.tensor([ROWS[number].guidance_scale for number in batch.layout.row])[:, None]
    cond = logits[:positions][batch.layout.guided]
    expected[batch.layout.guided] += guidance[batch.layout.guided] * (cond - logits[positions:])
    assert float(expected.abs().max()) > 1
    assert float((found[:positions] - expected).abs().max()) < 1e-3


@pytest.mark.parametrize("largest", [128, 32], ids=["together", "in parts, one too long for a bucket"])
def test_rows_come_out_the_same(largest: int) -> None:
    from polychoir.kernels.fused import backbone

    made = []
    for fused in (False, True):
        table, weights = make_table(), make_weights()
        slots = seat(table)
        step = (
            FusedStep(Network(CONFIG, weights, backbone), table, max_rows=8, largest=largest)
            if fused
            else PlainStep(Network(CONFIG, weights), table)
        )
        for number in range(max(len(one.timetable) for one in ROWS)):
            live = [slot for slot in slots if number < len(slot.row.timetable)]
            step.run(live, [number] * len(live))
        codes, sound = table.take(slots)
        assert sound.tolist() == [1] * len(slots)
        assert all(int(one.max()) < 32 for one in codes)
        made.append(codes)
    for plain, other in zip(*made, strict=True):
        assert (plain == other).all()
