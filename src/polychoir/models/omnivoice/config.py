"""The facts of a checkpoint that decide shapes, read from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polychoir.errors import ModelLoadError

MODEL_TYPE = "omnivoice"


@dataclass(frozen=True, slots=True)
class OmniVoiceConfig:
    """Sizes of the Qwen3 backbone and of the audio side."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    text_vocabulary: int
    context: int
    """Most tokens of one run."""
    norm_eps: float
    rope_theta: float
    codebooks: int
    audio_vocabulary: int
    """Entries of one codebook, the mask included."""
    mask_id: int

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of model.safetensors that the network needs, by its published name."""
        hidden, inner = self.hidden, self.intermediate
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        audio = self.codebooks * self.audio_vocabulary
        shapes: dict[str, tuple[int, ...]] = {
            "llm.embed_tokens.weight": (self.text_vocabulary, hidden),
            "llm.norm.weight": (hidden,),
            "audio_embeddings.weight": (audio, hidden),
            "audio_heads.weight": (audio, hidden),
        }
        of_layer = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "self_attn.q_norm": (self.head_dim,),
            "self_attn.k_norm": (self.head_dim,),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        for layer in range(self.layers):
            shapes |= {f"llm.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
        return shapes


def parse_config(values: Mapping[str, Any], where: str) -> OmniVoiceConfig:
    """Read config.json's object. `where` names the file in errors.

    Raises ModelLoadError for another model type, a missing or odd value, or a backbone that we don't run.
    """
    if values.get("model_type") != MODEL_TYPE:
        raise ModelLoadError(f"{where}: model_type is {values.get('model_type')!r}, not {MODEL_TYPE!r}")
    llm = values.get("llm_config")
    if not isinstance(llm, dict):
        raise ModelLoadError(f"{where}: llm_config is missing")
    _refuse_other_backbones(llm, where)
    hidden, heads = _positive(llm, "hidden_size", where), _positive(llm, "num_attention_heads", where)
    config = OmniVoiceConfig(
        hidden=hidden,
        layers=_positive(llm, "num_hidden_layers", where),
        heads=heads,
        kv_heads=_positive(llm, "num_key_value_heads", where, heads),
        head_dim=_positive(llm, "head_dim", where, hidden // heads),
        intermediate=_positive(llm, "intermediate_size", where),
        text_vocabulary=_positive(llm, "vocab_size", where),
        context=_positive(llm, "max_position_embeddings", where, 40_960),
        norm_eps=float(llm.get("rms_norm_eps", 1e-6)),
        rope_theta=_rope_theta(llm),
        codebooks=_positive(values, "num_audio_codebook", where, 8),
        audio_vocabulary=_positive(values, "audio_vocab_size", where, 1_025),
        mask_id=_positive(values, "audio_mask_id", where, 1_024),
    )
    _check_sense(config, where)
    return config


def _refuse_other_backbones(llm: Mapping[str, Any], where: str) -> None:
    if llm.get("model_type") != "qwen3":
        raise ModelLoadError(f"{where}: llm_config.model_type is {llm.get('model_type')!r}, not 'qwen3'")
    if llm.get("attention_bias"):
        raise ModelLoadError(f"{where}: a backbone with attention biases is not supported")
    if llm.get("hidden_act", "silu") != "silu":
        raise ModelLoadError(f"{where}: hidden_act {llm['hidden_act']!r} is not supported, only 'silu'")
    rope = llm.get("rope_parameters") or llm.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ModelLoadError(f"{where}: rope type {kind!r} is not supported, only 'default'")
    if llm.get("use_sliding_window"):
        raise ModelLoadError(f"{where}: a sliding attention window is not supported")


def _check_sense(config: OmniVoiceConfig, where: str) -> None:
    if config.heads % config.kv_heads:
        raise ModelLoadError(
            f"{where}: {config.heads} query heads do not share {config.kv_heads} key heads evenly"
        )
    if config.mask_id >= config.audio_vocabulary:
        raise ModelLoadError(f"{where}: audio_mask_id {config.mask_id} is outside the audio vocabulary")


def _positive(values: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    value = values.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ModelLoadError(f"{where}: {key} is {value!r}, not a positive whole number")
    return value


def _rope_theta(llm: Mapping[str, Any]) -> float:
    """Newer files keep it under rope_parameters, older ones beside the sizes."""
    rope = llm.get("rope_parameters") or {}
    return float(rope.get("rope_theta", llm.get("rope_theta", 1_000_000.0)))
