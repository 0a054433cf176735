"""The codec's decoder on packed codes: items of all lengths end to end, every one as if it were alone.

The same function as transformers' DacDecoder behind Higgs' quantizer, from the same weights, arranged for
speed: what the quantizer, its projections and the layer behind them make of one code is a line of a table;
signals are [time, channels]; a snake belongs to the convolution in front of it. Between items lie gaps of
`GAP_FRAMES`, where every convolution finds the zeros that its own padding would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from polychoir.kernels.taps import Taps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Codes = NDArray[np.int16]

GAP_FRAMES = 4
"""The widest convolution reaches 27 numbers to each side, at 8 a frame or more; the first one 3 frames."""


class Ops(Protocol):
    """`kernels.plain_codec` says what each must compute."""

    def conv_wide(self, x: Tensor, taps: Taps) -> Tensor: ...

    def conv_snake(self, x: Tensor, taps: Taps, curve: Tensor, live: Tensor) -> Tensor: ...

    def add_conv_snake(
        self, residual: Tensor, x: Tensor, taps: Taps, curve: Tensor, live: Tensor
    ) -> tuple[Tensor, Tensor]: ...

    def rise_snake(
        self, x: Tensor, taps: Taps, rise: int, lead: int, curve: Tensor, live: Tensor
    ) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, slots=True)
class Unit:
    """Half of a residual unit's curves are its own; `after` is that of whatever follows it."""

    wide: Taps
    curve: Tensor
    narrow: Taps
    after: Tensor


@dataclass(frozen=True, slots=True)
class Block:
    """Everything between two rates."""

    rise: int
    lead: int
    up: Taps
    curve: Tensor
    units: tuple[Unit, ...]


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """table: float32 [codebooks * entries + 1, channels], the last line zero, for what is no code."""

    table: Tensor
    entries: int
    first: Taps
    curve: Tensor
    blocks: tuple[Block, ...]
    last: Taps


class Decoder:
    """Forward of one set of weights, on their device, in the dtype of their convolutions."""

    def __init__(self, weights: DecoderWeights, ops: Ops) -> None:
        self.weights = weights
        self.device = weights.table.device
        self.silence = weights.table.shape[0] - 1
        """Line of the table for frames of a gap."""
        self._ops = ops

    def lines(self, items: Sequence[Codes], frames: int) -> tuple[NDArray[np.int32], list[int]]:
        """Items of codes [codebooks, frames] packed into so many frames: int32 [frames, codebooks] lines of
        the table, and the frame that each item starts at."""
        offsets = np.arange(items[0].shape[0], dtype=np.int32) * self.weights.entries
        packed = np.full((frames, offsets.size), self.silence, np.int32)
        starts, start = [], 0
        for codes in items:
            packed[start : start + codes.shape[1]] = codes.T + offsets
            starts.append(start)
            start += codes.shape[1] + GAP_FRAMES
        return packed, starts

    @torch.inference_mode()
    def forward(self, lines: Tensor) -> Tensor:
        """Float32 samples [frames * 960] of packed lines [frames, codebooks]; of a gap, anything."""
        weights, ops = self.weights, self._ops
        live = (lines[:, 0] != self.silence).to(torch.int32)
        x = embedding(lines, weights.table).sum(dim=1).to(weights.first.weight.dtype)
        x = ops.conv_snake(x, weights.first, weights.curve, live)
        for block in weights.blocks:
            held, x = ops.rise_snake(x, block.up, block.rise, block.lead, block.curve, live)
            for unit in block.units:
                x = ops.conv_snake(x, unit.wide, unit.curve, live)
                held, x = ops.add_conv_snake(held, x, unit.narrow, unit.after, live)
        return ops.conv_wide(x, weights.last).flatten()


def packed_frames(lengths: Sequence[int]) -> int:
    """Frames that items of these lengths take with the gaps between them."""
    return sum(lengths) + GAP_FRAMES * (len(lengths) - 1)


def fold(model: Any, dtype: torch.dtype) -> DecoderWeights:
    """Weights for `Decoder` out of transformers' HiggsAudioV2TokenizerModel, convolutions in `dtype`."""
    decoder = model.acoustic_decoder
    blocks = list(decoder.block)
    entries = model.quantizer.codebook_size
    behind = [block.snake1 for block in blocks[1:]] + [decoder.snake1]
    with torch.no_grad():
        return DecoderWeights(
            table=_table(model),
            entries=entries,
            first=_taps(decoder.conv1, dtype),
            curve=_curve(blocks[0].snake1),
            blocks=tuple(_block(block, after, dtype) for block, after in zip(blocks, behind, strict=True)),
            last=_taps(decoder.conv2, dtype),
        )


def _table(model: Any) -> Tensor:
    """What each code of each codebook adds to the decoder's input; the biases are part of the first's."""
    parts = []
    for quantizer in model.quantizer.quantizers[: _codebooks(model)]:
        vectors = quantizer.codebook.embed.double()
        out, behind = quantizer.project_out, model.fc2.weight.double()
        parts.append((vectors @ out.weight.double().T + out.bias.double()) @ behind.T)
    parts[0] = parts[0] + model.fc2.bias.double()
    return torch.cat([*parts, torch.zeros_like(parts[0][:1])]).float()


def _codebooks(model: Any) -> int:
    """As many as the codec writes at its full rate."""
    return int(model.quantizer.get_num_quantizers_for_bandwidth(model.config.target_bandwidths[-1]))


def _block(block: Any, behind: Any, dtype: torch.dtype) -> Block:
    rise, lead = block.conv_t1.stride[0], block.conv_t1.padding[0]
    units = (block.res_unit1, block.res_unit2, block.res_unit3)
    after = [_curve(unit.snake1) for unit in units[1:]] + [_curve(behind)]
    return Block(
        rise=rise,
        lead=lead,
        up=_rise_taps(block.conv_t1, dtype),
        curve=_curve(units[0].snake1),
        units=tuple(
            Unit(_taps(unit.conv1, dtype), _curve(unit.snake2), _taps(unit.conv2, dtype), curve)
            for unit, curve in zip(units, after, strict=True)
        ),
    )


def _taps(conv: Any, dtype: torch.dtype) -> Taps:
    weight = conv.weight.detach().permute(0, 2, 1).to(dtype).contiguous()
    return Taps(weight, conv.bias.detach().float(), conv.dilation[0], conv.padding[0])


def _rise_taps(conv: Any, dtype: torch.dtype) -> Taps:
    """A transposed convolution of twice its stride: output i * stride + k is made of input i through number
    k of its kernel and of input i - 1 through number stride + k."""
    weight = conv.weight.detach()  # [in, out, 2 * stride]
    stride = conv.stride[0]
    this, before = weight[..., :stride], weight[..., stride:]
    pairs = torch.stack((before, this))  # in the order of time
    weight = pairs.permute(3, 2, 0, 1).reshape(-1, 2, weight.shape[0]).to(dtype).contiguous()
    return Taps(weight, conv.bias.detach().float().repeat(stride), reach=1)


def _curve(snake: Any) -> Tensor:
    alpha = snake.alpha.detach().flatten().float()
    return torch.stack((alpha, (alpha + 1e-9).reciprocal())).contiguous()
