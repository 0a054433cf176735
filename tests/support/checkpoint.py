"""Random OmniVoice checkpoints in the published layout: small ones for tests, full size for measurements.

    model/  config.json  model.safetensors  tokenizer.json  tokenizer_config.json
            audio_tokenizer/  config.json  model.safetensors  preprocessor_config.json

Needs only torch, transformers, numpy, safetensors and the Qwen vocabulary file, so that it also runs on a
bare GPU machine: `python -m tests.support.checkpoint FOLDER [--full] [--ranks FILE] [--device cuda]`.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from .qwen_tokenizer import write_tokenizer
from .torchaudio_shim import pretending_torchaudio

CODEBOOKS, AUDIO_VOCAB, MASK_ID, TEXT_VOCAB = 8, 1025, 1024, 151_676
RATIOS = [8, 5, 4, 2, 3]
_SAMPLE_FRAMES = 50
_LEVEL = 0.125
_VECTOR_STD = 0.1


@dataclass(frozen=True, slots=True)
class Size:
    """Shapes, and the spread of the backbone's weights."""

    llm: dict[str, int]
    acoustic: dict[str, int]
    semantic: dict[str, Any]
    std: float
    dtype: torch.dtype


SMALL = Size(
    llm={"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 32, "intermediate_size": 128},
    acoustic={"encoder_hidden_size": 8, "decoder_hidden_size": 128, "hidden_size": 64},
    semantic={"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
              "conv_dim": [32] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4},
    std=0.15,
    dtype=torch.float32,
)  # fmt: skip
FULL = Size(
    llm={"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
         "head_dim": 128, "intermediate_size": 3072},
    acoustic={"encoder_hidden_size": 64, "decoder_hidden_size": 1024, "hidden_size": 256},
    semantic={},
    std=0.02,
    dtype=torch.bfloat16,
)  # fmt: skip


def build(folder: Path, size: Size = SMALL, *, ranks: Path | None = None, device: str = "cpu") -> Path:
    """Write a checkpoint into `folder`; the same call gives the same weights. Returns `folder`."""
    (folder / "audio_tokenizer").mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, ranks)
    _write_backbone(folder, size, device)
    _write_codec(folder / "audio_tokenizer", size, device)
    return folder


def small_checkpoint(folder: Path) -> Path:
    """The small checkpoint every test of the model uses: about 45 MB, built in seconds."""
    return build(folder, SMALL)


def llm_config(size: Size) -> Any:
    """The backbone's configuration, as the published one but for its sizes."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=TEXT_VOCAB,
        rms_norm_eps=1e-6,
        max_position_embeddings=40_960,
        rope_parameters={"rope_theta": 1_000_000, "rope_type": "default"},
        tie_word_embeddings=True,
        attention_bias=False,
        **size.llm,
    )


def codec_config(size: Size) -> Any:
    """The codec's configuration: 24 kHz, 8 codebooks at 2 kbps, 25 frames a second."""
    from transformers import HiggsAudioV2TokenizerConfig

    acoustic = {
        "model_type": "dac", "hop_length": math.prod(RATIOS), "downsampling_ratios": RATIOS,
        "upsampling_ratios": RATIOS, "sampling_rate": 16_000, "codebook_size": 1024, "codebook_dim": 8,
        "n_codebooks": 9, **size.acoustic,
    }  # fmt: skip
    return HiggsAudioV2TokenizerConfig(
        sample_rate=24_000,
        semantic_sample_rate=16_000,
        codebook_size=1024,
        codebook_dim=64,
        target_bandwidths=[0.5, 1, 1.5, 2],
        acoustic_model_config=acoustic,
        semantic_model_config={"model_type": "hubert", "mask_time_prob": 0.0, **size.semantic},
    )


def _write_backbone(folder: Path, size: Size, device: str) -> None:
    from transformers import Qwen3Model

    config = llm_config(size)
    torch.manual_seed(0)
    with torch.device(device):
        backbone = Qwen3Model(config).to(size.dtype)
        embeddings = nn.Embedding(CODEBOOKS * AUDIO_VOCAB, config.hidden_size, dtype=size.dtype)
        heads = nn.Linear(config.hidden_size, CODEBOOKS * AUDIO_VOCAB, bias=False, dtype=size.dtype)
    model = nn.ModuleDict({"llm": backbone, "audio_embeddings": embeddings, "audio_heads": heads})
    _draw(model, size.std, seed=1)
    tensors = {name: tensor.contiguous().cpu() for name, tensor in model.state_dict().items()}
    tensors["codebook_layer_offsets"] = torch.arange(CODEBOOKS) * AUDIO_VOCAB
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    described = {
        "architectures": ["OmniVoice"],
        "model_type": "omnivoice",
        "audio_vocab_size": AUDIO_VOCAB,
        "audio_mask_id": MASK_ID,
        "num_audio_codebook": CODEBOOKS,
        "audio_codebook_weights": [8, 8, 6, 6, 4, 4, 2, 2],
        "dtype": str(size.dtype).removeprefix("torch."),
        "llm_config": config.to_dict(),
    }
    (folder / "config.json").write_text(json.dumps(described, indent=2), encoding="utf-8")


def _write_codec(folder: Path, size: Size, device: str) -> None:
    with pretending_torchaudio():
        from transformers.models.higgs_audio_v2_tokenizer import modeling_higgs_audio_v2_tokenizer as higgs

        torch.manual_seed(0)
        with torch.device(device):
            codec = higgs.HiggsAudioV2TokenizerModel(codec_config(size)).float().eval()
    _draw(codec, None, seed=2)
    _balance(codec, device)
    tensors = {name: tensor.contiguous().cpu() for name, tensor in codec.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    codec.config.architectures = ["HiggsAudioV2TokenizerModel"]
    codec.config.save_pretrained(folder)
    features = {
        "feature_extractor_type": "DacFeatureExtractor", "sampling_rate": 24_000, "hop_length": 960,
        "feature_size": 1, "padding_side": "right", "padding_value": 0.0, "return_attention_mask": True,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(features, indent=2), encoding="utf-8")


def _draw(model: nn.Module, std: float | None, seed: int) -> None:
    """Normal weights everywhere, the vectors that scale something around one, so that none can be forgotten.

    `std` None: as much as keeps the signal at its level through each layer, one over the root of the fan-in.
    """
    generators: dict[str, torch.Generator] = {}
    tensors = {**dict(model.named_parameters()), **_codebooks(model)}
    with torch.no_grad():
        for name, tensor in sorted(tensors.items()):
            where = tensor.device.type
            draw = generators.setdefault(where, torch.Generator(where).manual_seed(seed))
            matrix = sum(side > 1 for side in tensor.shape) >= 2
            spread = std or (tensor[0].numel() ** -0.5 if matrix else _VECTOR_STD)
            if name.endswith("codebook.embed"):
                spread = 1.0
            noise = torch.empty_like(tensor).normal_(0.0, spread, generator=draw)
            tensor.copy_(noise if matrix or name.endswith("bias") else 1.0 + noise)


def _codebooks(model: nn.Module) -> dict[str, torch.Tensor]:
    """The code vectors are buffers, and zero in a fresh model."""
    return {name: tensor for name, tensor in model.named_buffers() if name.endswith("codebook.embed")}


def _balance(codec: Any, device: str) -> None:
    """Decode noise near the level of speech, so that trimming of silence has something to do, and make both
    halves of the encoder count alike, so that a wrong resampler in front of the semantic half shows."""
    draw = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 1024, (1, CODEBOOKS, _SAMPLE_FRAMES), generator=draw)
    wave = torch.empty(1, 1, _SAMPLE_FRAMES * math.prod(RATIOS)).normal_(0.0, 0.1, generator=draw)
    with torch.no_grad():
        _set_level(codec.acoustic_decoder.conv2, codec.decode(codes.to(device)).audio_values, _LEVEL)
        _set_level(codec.acoustic_encoder.conv2, codec.acoustic_encoder(wave.to(device)), 1.0)


def _set_level(last: nn.Module, output: torch.Tensor, wanted: float) -> None:
    """Scale a last layer by a power of two, which is exact and therefore the same on every machine."""
    factor = 2.0 ** round(math.log2(wanted / float(output.std())))
    for parameter in last.parameters():
        parameter.mul_(factor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--ranks", type=Path)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    build(args.folder, FULL if args.full else SMALL, ranks=args.ranks, device=args.device)


if __name__ == "__main__":
    main()
