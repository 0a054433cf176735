"""The backbone on packed runs: Qwen3 layers without causality, audio embeddings in, codebook logits out.

Source: the published checkpoint's shapes and the Qwen3 report (arXiv 2505.09388): pre-norm RMSNorm,
per-head norm of queries and keys, rotary positions, grouped-query attention, SwiGLU. Here all runs lie
end to end as [tokens, hidden]: nothing is padded, and a run meets no other anywhere.

It knows nothing of steps, guidance or sampling.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import embedding, linear, silu

from polychoir.kernels.attention import Runs, choose
from polychoir.models.omnivoice.config import OmniVoiceConfig

_log = logging.getLogger(__name__)
_ROPE_START = 1_024


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """What the tokens of a step are and where: int64 indices into the N packed tokens.

    text_index, text_ids: [X] text tokens. audio_index: [A] audio tokens, whose codes are given to
    `forward` in this order. positions: [N], from 0 in each run. targets: [L] tokens whose logits are wanted.
    """

    text_index: Tensor
    text_ids: Tensor
    audio_index: Tensor
    positions: Tensor
    targets: Tensor
    runs: Runs


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer; query, key and value are one matrix, and so are gate and up."""

    norm_in: Tensor
    qkv: Tensor
    q_norm: Tensor
    k_norm: Tensor
    out: Tensor
    norm_mid: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    text_embeddings: Tensor
    audio_embeddings: Tensor
    heads: Tensor
    norm: Tensor
    layers: tuple[Layer, ...]


class Network:
    """Packed forward of one set of weights, on one device in one dtype."""

    def __init__(self, config: OmniVoiceConfig, weights: Weights) -> None:
        self.config = config
        self.weights = weights
        self.device = weights.norm.device
        self.dtype = weights.norm.dtype
        self.attention, self._attend = choose(
            self.device, self.dtype, (config.heads, config.kv_heads, config.head_dim)
        )
        self._offsets = torch.arange(config.codebooks, device=self.device) * config.audio_vocabulary
        self._cos, self._sin = self._rope_table(_ROPE_START)

    @torch.inference_mode()
    def forward(self, tokens: PackedTokens, codes: Tensor) -> Tensor:
        """Logits [L, codebooks, audio vocabulary] at `tokens.targets`, in the network's dtype.

        codes: integers [A, codebooks], the mask id where nothing is revealed.
        """
        hidden = self._embed(tokens, codes)
        cos, sin = self._rotation(tokens)
        for layer in self.weights.layers:
            hidden = hidden + self._attention(layer, hidden, cos, sin, tokens.runs)
            hidden = hidden + self._mlp(layer, hidden)
        wanted = rms_norm(hidden[tokens.targets], self.weights.norm, self.config.norm_eps)
        logits = linear(wanted, self.weights.heads)
        return logits.view(-1, self.config.codebooks, self.config.audio_vocabulary)

    def _embed(self, tokens: PackedTokens, codes: Tensor) -> Tensor:
        count = tokens.positions.numel()
        hidden = torch.empty(count, self.config.hidden, dtype=self.dtype, device=self.device)
        hidden[tokens.text_index] = embedding(tokens.text_ids, self.weights.text_embeddings)
        hidden[tokens.audio_index] = embedding(codes + self._offsets, self.weights.audio_embeddings).sum(
            dim=1
        )
        return hidden

    def _attention(self, layer: Layer, hidden: Tensor, cos: Tensor, sin: Tensor, runs: Runs) -> Tensor:
        heads, kv_heads, head_dim = self.config.heads, self.config.kv_heads, self.config.head_dim
        normed = rms_norm(hidden, layer.norm_in, self.config.norm_eps)
        fused = linear(normed, layer.qkv).view(-1, heads + 2 * kv_heads, head_dim)
        q, k, v = torch.split(fused, [heads, kv_heads, kv_heads], dim=1)
        q = rotate(rms_norm(q, layer.q_norm, self.config.norm_eps), cos, sin)
        k = rotate(rms_norm(k, layer.k_norm, self.config.norm_eps), cos, sin)
        return linear(self._attend(q, k, v.contiguous(), runs).flatten(1), layer.out)

    def _mlp(self, layer: Layer, hidden: Tensor) -> Tensor:
        gate, up = linear(rms_norm(hidden, layer.norm_mid, self.config.norm_eps), layer.gate_up).chunk(
            2, dim=-1
        )
        return linear(silu(gate) * up, layer.down)

    def _rotation(self, tokens: PackedTokens) -> tuple[Tensor, Tensor]:
        """Cosines and sines [N, 1, head_dim] of the positions; the table grows to the longest run."""
        if tokens.runs.longest > self._cos.shape[0]:
            self._cos, self._sin = self._rope_table(2 * tokens.runs.longest)
        return self._cos[tokens.positions][:, None], self._sin[tokens.positions][:, None]

    def _rope_table(self, length: int) -> tuple[Tensor, Tensor]:
        """Angles are made in float32 whatever the network's dtype, as the published model does."""
        half = torch.arange(0, self.config.head_dim, 2, dtype=torch.float32, device=self.device)
        frequency = 1.0 / (self.config.rope_theta ** (half / self.config.head_dim))
        angle = torch.arange(length, dtype=torch.float32, device=self.device)[:, None] * frequency
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos().to(self.dtype), angle.sin().to(self.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis. In float32 whatever the dtype, as the published model does:
    a float64 run has to follow it there, or it would not be the same function."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of [N, heads, head_dim]: halves of a head are the two coordinates."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def load_weights(
    config: OmniVoiceConfig, files: Mapping[str, Path], device: torch.device, dtype: torch.dtype
) -> Weights:
    """Read the tensors of `config.tensor_shapes()` into fused matrices on the device.

    files: which safetensors file holds each tensor (checked before, see checkpoint.py). Each is copied
    from the mapped file straight to its place; the whole checkpoint is never in memory twice.
    """
    targets = dict(_places(weights := _empty_weights(config, device, dtype), config))
    by_file: dict[Path, list[str]] = {}
    for name in targets:
        by_file.setdefault(files[name], []).append(name)
    for path, names in by_file.items():
        with safe_open(str(path), framework="pt", device="cpu") as tensors:
            for name in names:
                targets[name].copy_(tensors.get_tensor(name))
    _log.info("read %d tensors from %d file(s)", len(targets), len(by_file))
    return weights


def _empty_weights(config: OmniVoiceConfig, device: torch.device, dtype: torch.dtype) -> Weights:
    def empty(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device=device)

    return Weights(
        text_embeddings=empty(config.text_vocabulary, config.hidden),
        audio_embeddings=empty(config.codebooks * config.audio_vocabulary, config.hidden),
        heads=empty(config.codebooks * config.audio_vocabulary, config.hidden),
        norm=empty(config.hidden),
        layers=tuple(_empty_layer(config, empty) for _ in range(config.layers)),
    )


def _empty_layer(config: OmniVoiceConfig, empty: Callable[..., Tensor]) -> Layer:
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return Layer(
        norm_in=empty(config.hidden),
        qkv=empty(queries + 2 * keys, config.hidden),
        q_norm=empty(config.head_dim),
        k_norm=empty(config.head_dim),
        out=empty(config.hidden, queries),
        norm_mid=empty(config.hidden),
        gate_up=empty(2 * config.intermediate, config.hidden),
        down=empty(config.hidden, config.intermediate),
    )


def _places(weights: Weights, config: OmniVoiceConfig) -> Iterator[tuple[str, Tensor]]:
    """Published name and the part of a fused matrix it fills."""
    yield "llm.embed_tokens.weight", weights.text_embeddings
    yield "llm.norm.weight", weights.norm
    yield "audio_embeddings.weight", weights.audio_embeddings
    yield "audio_heads.weight", weights.heads
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    for number, layer in enumerate(weights.layers):
        q, k, v = torch.split(layer.qkv, [queries, keys, keys])
        gate, up = layer.gate_up.chunk(2)
        parts = {
            "input_layernorm": layer.norm_in,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": layer.out,
            "self_attn.q_norm": layer.q_norm,
            "self_attn.k_norm": layer.k_norm,
            "post_attention_layernorm": layer.norm_mid,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.down,
        }
        for name, part in parts.items():
            yield f"llm.layers.{number}.{name}.weight", part
