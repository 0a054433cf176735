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
from typing import Protocol

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import linear

from polychoir.kernels import plain
from polychoir.kernels.attention import Runs, choose
from polychoir.models.omnivoice.config import OmniVoiceConfig

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer. Query, key and value are one matrix; so are gate and up, line by line in turn."""

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


class Ops(Protocol):
    """What stands between the plain matrix products; `kernels.plain` says what each must compute."""

    def embed_norm(
        self, arena: Tensor, source: Tensor, text: Tensor, audio: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]: ...

    def qk_norm_rope_(
        self,
        qkv: Tensor,
        q_norm: Tensor,
        k_norm: Tensor,
        cos: Tensor,
        sin: Tensor,
        position: Tensor,
        heads: int,
        kv_heads: int,
        eps: float,
    ) -> None: ...

    def add_norm_(self, hidden: Tensor, update: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def gated_product(self, x: Tensor, weight: Tensor) -> Tensor: ...


Attend = Callable[[Tensor], Tensor]
"""From [N, (heads + 2 kv_heads) * head_dim], normed and rotated, to [N, heads * head_dim]."""


class Network:
    """Packed forward of one set of weights, on one device in one dtype."""

    def __init__(self, config: OmniVoiceConfig, weights: Weights, ops: Ops = plain) -> None:
        self.config = config
        self.weights = weights
        self.device = weights.norm.device
        self.dtype = weights.norm.dtype
        self._ops = ops
        self.attention, self._attend = choose(
            self.device, self.dtype, (config.heads, config.kv_heads, config.head_dim)
        )
        self._cos, self._sin = self._rope_table(config.context)

    @torch.inference_mode()
    def hidden(self, arena: Tensor, source: Tensor, position: Tensor, attend: Attend) -> Tensor:
        """Final hidden states [N, hidden], normed, of N packed tokens.

        arena: int32 [T, codebooks], the token store of kernels/tables.py. source: [N] row of the arena of
        each token, -1 for none. position: [N], from 0 in each run.
        """
        config, ops, layers = self.config, self._ops, self.weights.layers
        hidden, normed = ops.embed_norm(
            arena,
            source,
            self.weights.text_embeddings,
            self.weights.audio_embeddings,
            layers[0].norm_in,
            config.norm_eps,
        )
        following = [layer.norm_in for layer in layers[1:]] + [self.weights.norm]
        for layer, norm in zip(layers, following, strict=True):
            qkv = linear(normed, layer.qkv)
            ops.qk_norm_rope_(
                qkv,
                layer.q_norm,
                layer.k_norm,
                self._cos,
                self._sin,
                position,
                config.heads,
                config.kv_heads,
                config.norm_eps,
            )
            attended = linear(attend(qkv), layer.out)
            normed = ops.add_norm_(hidden, attended, layer.norm_mid, config.norm_eps)
            update = linear(ops.gated_product(normed, layer.gate_up), layer.down)
            normed = ops.add_norm_(hidden, update, norm, config.norm_eps)
        return normed

    def logits(self, normed: Tensor) -> Tensor:
        """[L, codebooks, audio vocabulary] of final hidden states [L, hidden], in the network's dtype."""
        return linear(normed, self.weights.heads).view(
            -1, self.config.codebooks, self.config.audio_vocabulary
        )

    def attend_runs(self, runs: Runs) -> Attend:
        """Attention of the runs, each whole and by itself, with what torch has."""
        heads, kv_heads = self.config.heads, self.config.kv_heads

        def attend(qkv: Tensor) -> Tensor:
            parts = qkv.view(-1, heads + 2 * kv_heads, self.config.head_dim)
            q, k, v = torch.split(parts, [heads, kv_heads, kv_heads], dim=1)
            return self._attend(q, k, v, runs).flatten(1)

        return attend

    def _rope_table(self, length: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines [length, head_dim / 2]. Angles are made in float32 whatever the network's
        dtype, as the published model does."""
        half = torch.arange(0, self.config.head_dim, 2, dtype=torch.float32, device=self.device)
        frequency = 1.0 / (self.config.rope_theta ** (half / self.config.head_dim))
        angle = torch.arange(length, dtype=torch.float32, device=self.device)[:, None] * frequency
        return angle.cos().to(self.dtype), angle.sin().to(self.dtype)


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
        gate, up = layer.gate_up[0::2], layer.gate_up[1::2]
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
