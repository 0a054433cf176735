"""From rows to one packed batch: index arithmetic on the host, then one set of tensors for the device.

Order of the runs: the conditional run of every row (text, reference, target), then the unconditional runs
(target alone) of the rows that have guidance. Nothing is padded. The result depends on which rows there
are, not on their steps, so it is kept while nobody joins or leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from polychoir.kernels.attention import make_runs
from polychoir.kernels.noise import NoiseKeys, seed_words, stream_word
from polychoir.kernels.reference import SampleLayout, SampleParams
from polychoir.models.omnivoice.network import PackedTokens
from polychoir.models.omnivoice.row import CODEBOOKS, OmniVoiceRow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Seat:
    """A row and the arena frames that hold its reference and its canvas."""

    row: OmniVoiceRow
    reference: Index
    canvas: Index


@dataclass(frozen=True, slots=True)
class Settings:
    """Sampling settings and noise keys, one entry per row: float32 and int64 [R]."""

    guidance: Tensor
    position_temperature: Tensor
    class_temperature: Tensor
    layer_penalty: Tensor
    key_lo: Tensor
    key_hi: Tensor
    stream: Tensor

    def at(self, step: Tensor, reveal: Tensor) -> SampleParams:
        """The parameters of one step: `step` and `reveal` are int64 [R]."""
        return SampleParams(
            guidance=self.guidance,
            position_temperature=self.position_temperature,
            class_temperature=self.class_temperature,
            layer_penalty=self.layer_penalty,
            keys=NoiseKeys(self.key_lo, self.key_hi, self.stream, step),
            reveal=reveal,
        )


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Everything of a step that does not change with the step.

    audio: int64 [A], arena frame of each audio token. canvas: int64 [P], arena frame of each target
    position, rows in order; the first P logits are theirs, the rest are the unconditional ones.
    """

    tokens: PackedTokens
    audio: Tensor
    canvas: Tensor
    layout: SampleLayout
    settings: Settings


def pack(seats: Sequence[Seat], device: torch.device) -> PackedBatch:
    """Lay out one step of these rows. At least one row."""
    guided = [seat for seat in seats if seat.row.uncond_len]
    lengths = [seat.row.cond_len for seat in seats] + [seat.row.uncond_len for seat in guided]
    starts = [0, *accumulate(lengths)]
    cond, uncond = starts[: len(seats)], starts[len(seats) : -1]
    text = [np.arange(len(seat.row.text_ids)) + start for seat, start in zip(seats, cond, strict=True)]
    reference = [
        np.arange(seat.row.ref_frames) + start + len(seat.row.text_ids)
        for seat, start in zip(seats, cond, strict=True)
    ]
    target = [
        np.arange(seat.row.target_frames) + start + seat.row.cond_len - seat.row.target_frames
        for seat, start in zip(seats, cond, strict=True)
    ]
    alone = [np.arange(seat.row.uncond_len) + start for seat, start in zip(guided, uncond, strict=True)]

    def upload(parts: Sequence[Index]) -> Tensor:
        whole = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return torch.from_numpy(whole.astype(np.int64, copy=False)).to(device)

    tokens = PackedTokens(
        text_index=upload(text),
        text_ids=upload([np.asarray(seat.row.text_ids, np.int64) for seat in seats]),
        audio_index=upload([*reference, *target, *alone]),
        positions=upload([np.arange(length) for length in lengths]),
        targets=upload([*target, *alone]),
        runs=make_runs(lengths, device),
    )
    return PackedBatch(
        tokens=tokens,
        audio=upload([s.reference for s in seats] + [s.canvas for s in seats] + [s.canvas for s in guided]),
        canvas=upload([seat.canvas for seat in seats]),
        layout=_sample_layout([seat.row for seat in seats], device),
        settings=_settings([seat.row for seat in seats], device),
    )


def _sample_layout(rows: Sequence[OmniVoiceRow], device: torch.device) -> SampleLayout:
    frames = np.array([row.target_frames for row in rows])
    first = np.cumsum(frames) - frames
    row_of = np.repeat(np.arange(len(rows)), frames)
    frame = np.arange(frames.sum()) - first[row_of]
    cell_order = np.concatenate(
        [
            (np.arange(count)[None, :] + start) * CODEBOOKS + np.arange(CODEBOOKS)[:, None]
            for start, count in zip(first, frames, strict=True)
        ],
        axis=None,
    )
    cell_row = np.repeat(np.arange(len(rows)), frames * CODEBOOKS)
    cell_rank = np.arange(cell_row.size) - (first * CODEBOOKS)[cell_row]

    def where(wanted: Sequence[bool]) -> Tensor:
        return torch.from_numpy(np.flatnonzero(np.array(wanted)[row_of])).to(device)

    return SampleLayout(
        row=torch.from_numpy(row_of).to(device),
        frame=torch.from_numpy(frame).to(device),
        cell_order=torch.from_numpy(cell_order).to(device),
        cell_row=torch.from_numpy(cell_row).to(device),
        cell_rank=torch.from_numpy(cell_rank).to(device),
        guided=where([row.uncond_len > 0 for row in rows]),
        warm=where([row.position_temperature > 0 for row in rows]),
        drawn=where([row.class_temperature > 0 for row in rows]),
    )


def _settings(rows: Sequence[OmniVoiceRow], device: torch.device) -> Settings:
    numbers = torch.tensor(
        [
            [row.guidance_scale, row.position_temperature, row.class_temperature, row.layer_penalty_factor]
            for row in rows
        ],
        dtype=torch.float32,
    )
    keys = torch.tensor([[*seed_words(row.seed), stream_word(row.chunk, row.attempt)] for row in rows])
    return Settings(*numbers.to(device).unbind(1), *keys.to(device).unbind(1))
