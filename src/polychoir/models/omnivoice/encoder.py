"""The codec's encoder on a clip with silence behind it, as if the silence were not there.

The same function as transformers' HiggsAudioV2TokenizerModel.encode, through the same modules, but for a
number of frames that lies on the device: one CUDA graph then serves all clips up to its size. Whatever
would carry the padding into the clip is kept from it: convolutions find zeros past its end, attention does
not look there, and the one norm over time counts only the clip. Float32: codes are decided by distances.
"""

from __future__ import annotations

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

SIZES = (25, 50, 75, 100, 125, 150, 175, 200, 250, 300, 375)
"""Frames worth a graph: clips of 1 to 15 s. Longer ones are rare, and their memory would be held for ever."""
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
        """Codes [codebooks, frames of wave] of the first `frames` (an int64 scalar); those behind are void.

        wave: float32 [1, 1, 960 * frames of wave], zero behind the clip.
        """
        model = self._model
        semantic = self._semantic(self._hear(wave, frames), frames)
        embeddings = torch.cat((self._acoustic(wave, frames), semantic), dim=1)
        embeddings = model.fc(embeddings.transpose(1, 2)).transpose(1, 2)
        codes: Tensor = model.quantizer.encode(embeddings, model.config.target_bandwidths[-1])
        return codes[:, 0]

    def _hear(self, wave: Tensor, frames: Tensor) -> Tensor:
        """Mean of the semantic model's layers on the clip: [1, channels, frames of wave]."""
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
        x = x * real[:, None]
        x = hubert.encoder.layer_norm(x + hubert.encoder.pos_conv_embed(x))
        total = x
        for layer in hubert.encoder.layers:
            x = layer(x, attention_mask=real[None, None, None, :].expand(1, 1, x.shape[1], -1))
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


class GraphedEncoder:
    """Encodes on one CUDA device. One call at a time, always on the same stream."""

    def __init__(self, model: Any, device: torch.device, utilization: float) -> None:
        """Captures a graph of each size there is memory for; takes seconds."""
        self._wave = torch.zeros(1, 1, SIZES[-1] * FRAME_SAMPLES, device=device)
        self._frames = torch.full((), SIZES[0], device=device)
        encoder = PaddedEncoder(model)
        self._graphs = CodecGraphs(
            "encoder",
            lambda size: encoder.forward(self._wave[..., : size * FRAME_SAMPLES], self._frames),
            SIZES,
            device,
            utilization,
        )

    @torch.inference_mode()
    def encode(self, samples: Samples) -> Codes | None:
        """int16 [codebooks, frames] of whole frames of samples; None for a clip longer than all graphs."""
        frames = samples.size // FRAME_SAMPLES
        size = self._graphs.fit(frames)
        if size is None:
            return None
        padded = np.zeros(size * FRAME_SAMPLES, np.float32)
        padded[: samples.size] = samples
        self._wave[0, 0, : padded.size].copy_(torch.from_numpy(padded).pin_memory(), non_blocking=True)
        self._frames.fill_(frames)
        codes = self._graphs.run(size).to(torch.int16)
        host = torch.empty_like(codes, device="cpu", pin_memory=True)
        host.copy_(codes, non_blocking=True)
        mark(torch.cuda.current_stream()).synchronize()
        return np.ascontiguousarray(host.numpy()[:, :frames])


def _kept(x: Tensor, length: Tensor) -> Tensor:
    """x [1, channels, time], zero from `length` on."""
    return x * (torch.arange(x.shape[-1], device=x.device) < length)


def _norm_over_time(x: Tensor, length: Tensor, norm: Any) -> Tensor:
    """Each channel of [1, channels, time] normed by the mean and variance of its first `length`."""
    mean = _kept(x, length).sum(-1, keepdim=True) / length
    gap = x - mean
    variance = _kept(gap, length).square().sum(-1, keepdim=True) / length
    normed: Tensor = gap * torch.rsqrt(variance + norm.eps) * norm.weight[:, None] + norm.bias[:, None]
    return normed
