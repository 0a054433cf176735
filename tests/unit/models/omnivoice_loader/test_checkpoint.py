"""A checkpoint that cannot be used is refused in seconds, by name, without reading weights."""

from __future__ import annotations

import json
import math
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polychoir.errors import ModelLoadError
from polychoir.models.omnivoice import checkpoint
from polychoir.models.omnivoice.checkpoint import open_checkpoint, resolve
from polychoir.models.omnivoice.config import parse_config
from polychoir.models.omnivoice.plugin import omnivoice

LLM = {
    "model_type": "qwen3", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 16, "vocab_size": 20,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}  # fmt: skip
CONFIG = {"model_type": "omnivoice", "llm_config": LLM}


def write_safetensors(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A file of zeros with the right header."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * end)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint that passes every check."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tokenizer.json").write_text("{}")
    write_safetensors(tmp_path / "model.safetensors", shapes())
    codec = tmp_path / "audio_tokenizer"
    codec.mkdir()
    (codec / "config.json").write_text(json.dumps({"model_type": "higgs_audio_v2_tokenizer"}))
    write_safetensors(codec / "model.safetensors", {"w": (3,)})
    return tmp_path


def shapes() -> dict[str, tuple[int, ...]]:
    return parse_config(CONFIG, "here").tensor_shapes() | {"codebook_layer_offsets": (8,)}


def shard(folder: Path) -> None:
    """Split the weights in two files with an index."""
    every = list(shapes().items())
    (folder / "model.safetensors").unlink()
    parts = {"model-1.safetensors": every[::2], "model-2.safetensors": every[1::2]}
    for name, part in parts.items():
        write_safetensors(folder / name, dict(part))
    weight_map = {tensor: name for name, part in parts.items() for tensor, _ in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_a_whole_checkpoint_passes(folder: Path) -> None:
    found = open_checkpoint(str(folder))
    assert found.config.layers == 2
    assert found.config.context == 40_960
    assert found.codec_folder == folder / "audio_tokenizer"
    assert set(found.tensors) == set(parse_config(CONFIG, "").tensor_shapes())
    assert found.unused == ()


def test_shards_are_found_by_the_index(folder: Path) -> None:
    shard(folder)
    found = open_checkpoint(str(folder))
    assert {path.name for path in found.tensors.values()} == {"model-1.safetensors", "model-2.safetensors"}


def test_unknown_tensors_are_reported(folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", shapes() | {"adapter.weight": (2, 2)})
    assert open_checkpoint(str(folder)).unused == ("adapter.weight",)


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: (folder / "config.json").write_text(json.dumps({**CONFIG, **changes})) and None


def weights(change: Callable[[dict[str, tuple[int, ...]]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        table = shapes()
        change(table)
        write_safetensors(folder / "model.safetensors", table)

    return damage


def cut(name: str, keep: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(keep((folder / name).read_bytes())) and None


def shard_and_lose_one(folder: Path) -> None:
    shard(folder)
    (folder / "model-2.safetensors").unlink()


def index_points_outside(folder: Path) -> None:
    shard(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-2", "../model-2"))


DAMAGES = {
    "no config": (without("config.json"), r"config\.json: missing"),
    "no weights": (without("model.safetensors"), r"model\.safetensors: missing"),
    "no tokenizer": (without("tokenizer.json"), r"tokenizer\.json: missing"),
    "no codec config": (without("audio_tokenizer/config.json"), r"audio_tokenizer/config\.json: missing"),
    "no codec weights": (without("audio_tokenizer/model.safetensors"), r"audio_tokenizer/model.\S+ missing"),
    "config not JSON": (cut("config.json", lambda b: b[:-3]), r"config\.json: not JSON"),
    "config a list": (cut("config.json", lambda b: b"[]"), r"config\.json: not a JSON object"),
    "another model": (config(model_type="bert"), r"model_type is 'bert', not 'omnivoice'"),
    "no backbone": (config(llm_config=None), "llm_config is missing"),
    "another backbone": (config(llm_config={**LLM, "model_type": "llama"}), "'llama', not 'qwen3'"),
    "odd size": (config(llm_config={**LLM, "hidden_size": "8"}), "hidden_size is '8', not a positive"),
    "odd heads": (config(llm_config={**LLM, "num_key_value_heads": 3}), "do not share 3 key heads evenly"),
    "odd rope": (
        config(llm_config={**LLM, "rope_parameters": {"rope_type": "yarn"}}),
        "rope type 'yarn' is not supported",
    ),
    "mask outside": (config(audio_mask_id=2_000), "audio_mask_id 2000 is outside"),
    "tensor missing": (weights(lambda t: t.pop("llm.norm.weight")), r"tensor llm\.norm\.weight is missing"),
    "tensors missing": (
        weights(lambda t: [t.pop("llm.norm.weight"), t.pop("audio_heads.weight")]),
        "and 1 more are missing",
    ),
    "wrong shape": (
        weights(lambda t: t.update({"llm.norm.weight": (9,)})),
        r"llm\.norm\.weight has shape \[9\], config\.json says \[8\]",
    ),
    "data truncated": (cut("model.safetensors", lambda b: b[:-1]), "truncated, .* bytes are there"),
    "header truncated": (cut("model.safetensors", lambda b: b[:50]), "truncated inside its header"),
    "empty file": (cut("model.safetensors", lambda b: b""), "not a safetensors file"),
    "not safetensors": (cut("model.safetensors", lambda b: b"<html>" * 99), "not a safetensors file"),
    "codec truncated": (cut("audio_tokenizer/model.safetensors", lambda b: b[:-1]), "truncated"),
    "codec of another kind": (cut("audio_tokenizer/config.json", lambda b: b'{"model_type": "x"}'), "'x'"),
    "shard missing": (shard_and_lose_one, r"model-2\.safetensors: missing"),
    "shard outside": (index_points_outside, "is not a plain file name"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_every_damage_has_its_own_message(folder: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(folder)
    with pytest.raises(ModelLoadError, match=message) as caught:
        open_checkpoint(str(folder))
    assert "\n" not in caught.value.message
    assert str(folder) in caught.value.message


def test_no_weights_are_read(folder: Path) -> None:
    """A header that promises half a terabyte is checked as quickly: the file has holes in place of data."""
    write_safetensors(folder / "model.safetensors", shapes())
    whole = folder / "model.safetensors"
    with whole.open("rb+") as file:
        file.truncate(1 << 39)
    started = time.perf_counter()
    open_checkpoint(str(folder))
    assert time.perf_counter() - started < 2.0


def test_a_missing_codec_is_looked_for_on_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def nobody(reference: str) -> Path:
        asked.append(reference)
        raise ModelLoadError(f"{reference}: not there")

    monkeypatch.setattr(checkpoint, "resolve", nobody)
    for path in (folder / "audio_tokenizer").iterdir():
        path.unlink()
    (folder / "audio_tokenizer").rmdir()
    with pytest.raises(ModelLoadError, match="audio_tokenizer: missing, and instead of it: eustlb/higgs"):
        checkpoint._check_codec(folder)
    assert asked == ["eustlb/higgs-audio-v2-tokenizer"]


@pytest.mark.parametrize("reference", ["./nowhere", "/no/such/folder", "nowhere", "a/b/c"])
def test_a_path_that_is_not_there(reference: str) -> None:
    with pytest.raises(ModelLoadError, match=re.escape(f"{reference}: no such folder")):
        resolve(reference)


def test_claims(folder: Path, tmp_path: Path) -> None:
    assert omnivoice.claims(str(folder))
    assert omnivoice.claims("k2-fsa/OmniVoice")
    assert omnivoice.claims("someone/my-omnivoice-tune")
    assert not omnivoice.claims("hexgrad/Kokoro-82M")
    assert not omnivoice.claims(str(tmp_path / "audio_tokenizer"))
    assert not omnivoice.claims(str(folder / "config.json"))
    assert not omnivoice.claims("omnivoice")


HUB_SCRIPT = """
import sys, time
from polychoir.errors import ModelLoadError
from polychoir.models.omnivoice.checkpoint import resolve
started = time.perf_counter()
try:
    resolve("k2-fsa/OmniVoice")
except ModelLoadError as error:
    print(f"{time.perf_counter() - started:.1f}", error)
"""


def ask_hub(tmp_path: Path, **environment: str) -> tuple[float, str]:
    """Seconds and message, from a process of its own: the hub reads its settings once."""
    pytest.importorskip("huggingface_hub", reason="hub ids need the extra [omnivoice]")
    env = {"HF_HOME": str(tmp_path / "hub"), "PATH": "", **environment}
    done = subprocess.run(
        [sys.executable, "-c", HUB_SCRIPT], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    seconds, message = done.stdout.strip().split(" ", 1)
    return float(seconds), message


def test_offline_fails_at_once(tmp_path: Path) -> None:
    seconds, message = ask_hub(tmp_path, HF_HUB_OFFLINE="1")
    assert seconds < 10
    assert message == f"k2-fsa/OmniVoice: not in the cache {tmp_path}/hub/hub, and HF_HUB_OFFLINE is set"


def test_a_hub_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        seconds, message = ask_hub(tmp_path, HF_ENDPOINT=endpoint)
    assert seconds < 10
    assert f"and {endpoint} cannot be reached" in message


def test_a_cached_snapshot_is_used_offline(tmp_path: Path, folder: Path) -> None:
    repo = tmp_path / "hub" / "hub" / "models--k2-fsa--OmniVoice"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("abc")
    (repo / "snapshots").mkdir()
    (repo / "snapshots" / "abc").symlink_to(folder, target_is_directory=True)
    pytest.importorskip("huggingface_hub", reason="hub ids need the extra [omnivoice]")
    script = (
        "from polychoir.models.omnivoice.checkpoint import open_checkpoint\n"
        "print(open_checkpoint('k2-fsa/OmniVoice').config.hidden)\n"
    )
    env = {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "8"
