"""The codec's encoder on clips with padding behind them, as if each were alone and the padding not there.

The same function as transformers' HiggsAudioV2TokenizerModel.encode, through the same modules, but for
numbers of frames that lie on the device: one CUDA graph then serves all clips up to its size. Whatever
would carry the padding into a clip is kept from it: convolutions find zeros past its end, attention does
not look there, and the one norm over time counts only the clip. Float32: codes are decided by distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import elu, pad

from polychoir.models.omnivoice.codec_graphs import CodecGraphs
from polychoir.models.omnivoice.resample import resample
from polychoir.models.omnivoice.row import FRAME_SAMPLES
from polychoir.runner.cuda import mark

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polychoir.types import Samples

    Codes = NDArray[np.int16]

SIZES = {1: (25, 50, 75, 100, 125, 150, 175, 200, 250, 300, 375), 4: (75, 125, 250)}
"""Frames worth a graph, by the number of clips it takes: clips of 1 to 15 s, longer ones are rare. Four clips
fill a large card; few sizes for them, as each costs some tenths of a second at the start, and up to 1,000
frames: more would only hold more memory for ever, 1 MB of activations a frame."""
LAUNCH_FRAMES = 216
"""What a launch costs beside its frames, in frames: a thousand small kernels, one behind the other. Fitted on
an H200: 6.3 ms, and 2.9 for a hundred frames."""
SEMANTIC_PAD = 160
"""Samples at 16 kHz on either side, so that the semantic frames come out one per 320 samples."""


def can_pad(model: Any) -> bool:
    """Whether the semantic model is of the one make (HuBERT base) whose parts are known here."""
    config = model.config.semantic_model_config
    return (
        config.model_type == "hubert"
        and config.feat_extract_norm == "group"
        and not config.do_stable_layer_norm
        and model.config.semantic_downsample_factor == 2
        and all(conv.stride == (1,) for conv in model.encoder_semantic.modules() if hasattr(conv, "stride"))
    )


class PaddedEncoder:
    """Forward over the modules of transformers' codec class; see `can_pad`."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @torch.inference_mode()
    def forward(self, wave: Tensor, frames: Tensor) -> Tensor:
        """Codes int64 [clips, codebooks, frames of wave]; those behind a clip's own frames are void.

        wave: float32 [clips, 1, 960 * frames of wave], anything finite behind a clip.
        frames: int64 [clips], each clip's own, at least one.
        """
        model = self._model
        frames = frames[:, None, None]
        wave = _kept(wave, frames * FRAME_SAMPLES)
        semantic = self._semantic(self._hear(wave, frames), frames)
        embeddings = torch.cat((self._acoustic(wave, frames), semantic), dim=1)
        embeddings = model.fc(embeddings.transpose(1, 2)).transpose(1, 2)
        codes: Tensor = model.quantizer.encode(embeddings, model.config.target_bandwidths[-1])
        return codes.transpose(0, 1)

    # Below, frames and lengths are [clips, 1, 1] beside activations [clips, channels, time].

    def _hear(self, wave: Tensor, frames: Tensor) -> Tensor:
        """Mean of the semantic model's layers on each clip: [clips, channels, frames of wave]."""
        config, hubert = self._model.config, self._model.semantic_model
        heard = resample(wave[:, 0], config.sample_rate, config.semantic_sample_rate)
        length = frames * (heard.shape[-1] * FRAME_SAMPLES // wave.shape[-1])
        x = pad(_kept(heard[:, None], length), (SEMANTIC_PAD, SEMANTIC_PAD))
        first, *others = hubert.feature_extractor.conv_layers
        x = first.conv(x)
        reached = (length + 2 * SEMANTIC_PAD - first.conv.kernel_size[0]) // first.conv.stride[0] + 1
        x = first.activation(_norm_over_time(x, reached, first.layer_norm))
        for layer in others:
            x = layer(x)
        x = hubert.feature_projection(x.transpose(1, 2))
        real = torch.arange(x.shape[1], device=x.device) < 2 * frames
        x = x * real.transpose(1, 2)
        x = hubert.encoder.layer_norm(x + hubert.encoder.pos_conv_embed(x))
        total = x
        for layer in hubert.encoder.layers:
            x = layer(x, attention_mask=real[:, None].expand(-1, -1, x.shape[1], -1))
            total = total + x
        mean: Tensor = total / (len(hubert.encoder.layers) + 1)
        return mean[:, ::2].transpose(1, 2)

    def _semantic(self, x: Tensor, frames: Tensor) -> Tensor:
        encoder = self._model.encoder_semantic
        x = encoder.conv(_kept(x, frames))
        for block in encoder.conv_blocks:
            for unit in block.res_units:
                x = x + unit.conv2(elu(unit.conv1(_kept(elu(x), frames))))
            x = block.conv(_kept(x, frames))
        return x

    def _acoustic(self, wave: Tensor, frames: Tensor) -> Tensor:
        encoder = self._model.acoustic_encoder
        x, length = encoder.conv1(wave), frames * FRAME_SAMPLES
        for block in encoder.block:
            for unit in (block.res_unit1, block.res_unit2, block.res_unit3):
                x = x + unit.conv2(unit.snake2(unit.conv1(_kept(unit.snake1(x), length))))
            x = block.conv1(_kept(block.snake1(x), length))
            length = length // block.conv1.stride[0]
        out: Tensor = encoder.conv2(_kept(encoder.snake1(x), length))
        return out


@dataclass(frozen=True, slots=True)
class Launch:
    """One run: the clips in it by their numbers, how many it has room for, and the frames it gives each."""

    clips: tuple[int, ...]
    room: int
    size: int


def launches(frames: Sequence[int]) -> list[Launch]:
    """The cheapest way of clips of so many frames through the graphs; longer ones than all of these are left
    out. Clips in order of length, and as many in each launch as it has room for: only its longest counts."""
    most = SIZES[1][-1]
    order = sorted((number for number, own in enumerate(frames) if own <= most), key=lambda n: frames[n])
    ways: list[tuple[int, list[Launch]]] = [(0, [])]  # cost and launches of the first so many
    for count in range(1, len(order) + 1):
        longest = frames[order[count - 1]]
        options = []
        for room, sizes in SIZES.items():
            size = next((size for size in sizes if size >= longest), None)
            if size is not None:
                first = max(0, count - room)
                cost, before = ways[first]
                last = Launch(tuple(order[first:count]), room, size)
                options.append((cost + LAUNCH_FRAMES + room * size, [*before, last]))
        ways.append(min(options, key=lambda way: way[0]))
    return ways[-1][1]


class GraphedEncoder:
    """Encodes on one CUDA device. One call at a time, always on the same stream."""

    def __init__(self, model: Any, device: torch.device, utilization: float) -> None:
        """Captures a graph of each size there is memory for; takes seconds."""
        largest = max(room * sizes[-1] for room, sizes in SIZES.items())
        self._wave = torch.zeros(largest * FRAME_SAMPLES, device=device)
        self._frames = torch.ones(max(SIZES), dtype=torch.int64, device=device)
        self._encoder = PaddedEncoder(model)
        pool = torch.cuda.graph_pool_handle()
        # The largest first here too: all share its memory.
        self._graphs = {
            room: CodecGraphs(
                f"encoder of {room}", partial(self._forward, room), SIZES[room], device, utilization, pool
            )
            for room in sorted(SIZES, reverse=True)
        }

    @torch.inference_mode()
    def encode(self, items: Sequence[Samples]) -> dict[int, Codes]:
        """int16 [codebooks, frames] of each item, by its place among them; items are whole frames of samples.
        One longer than all graphs is left out."""
        frames = [samples.size // FRAME_SAMPLES for samples in items]
        coming = [(launch, self._launch(launch, items)) for launch in launches(frames)]
        mark(torch.cuda.current_stream()).synchronize()
        return {
            number: codes[:, : frames[number]].copy()
            for launch, host in coming
            for number, codes in zip(launch.clips, host.numpy(), strict=False)
        }

    def _launch(self, launch: Launch, items: Sequence[Samples]) -> Tensor:
        """Pinned codes int16 [room, codebooks, size], there once the stream has come so far."""
        wave, frames = self._inputs(launch.room, launch.size)
        padded = torch.zeros(wave.shape, pin_memory=True)
        own = torch.ones(launch.room, dtype=torch.int64, pin_memory=True)
        for place, number in enumerate(launch.clips):
            padded.numpy()[place, 0, : items[number].size] = items[number]
            own[place] = items[number].size // FRAME_SAMPLES
        wave.copy_(padded, non_blocking=True)
        frames.copy_(own, non_blocking=True)
        codes = self._graphs[launch.room].run(launch.size).to(torch.int16)
        host = torch.empty(codes.shape, dtype=codes.dtype, pin_memory=True)
        host.copy_(codes, non_blocking=True)
        return host

    def _forward(self, room: int, size: int) -> Tensor:
        return self._encoder.forward(*self._inputs(room, size))

    def _inputs(self, room: int, size: int) -> tuple[Tensor, Tensor]:
        """Where graphs of this room and size read the waves and the frames of their clips."""
        samples = size * FRAME_SAMPLES
        return self._wave[: room * samples].view(room, 1, samples), self._frames[:room]


def _kept(x: Tensor, length: Tensor) -> Tensor:
    """x [clips, channels, time], each clip zero from its `length` on."""
    return x * (torch.arange(x.shape[-1], device=x.device) < length)


def _norm_over_time(x: Tensor, length: Tensor, norm: Any) -> Tensor:
    """Each channel of [clips, channels, time] normed by the mean and variance of its first `length`."""
    mean = _kept(x, length).sum(-1, keepdim=True) / length
    gap = x - mean
    variance = _kept(gap, length).square().sum(-1, keepdim=True) / length
    normed: Tensor = gap * torch.rsqrt(variance + norm.eps) * norm.weight[:, None] + norm.bias[:, None]
    return normed
