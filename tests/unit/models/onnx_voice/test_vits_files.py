"""Reading a VITS voice's two files: precise errors, and the graph's hidden frame counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polychoir.errors import ModelLoadError
from polychoir.models.onnx_voice.plugin import VitsPlugin
from polychoir.models.onnx_voice.session import open_session
from polychoir.models.onnx_voice.vits.config import VitsConfig
from polychoir.models.onnx_voice.vits.frontend import bucket
from polychoir.models.onnx_voice.vits.graph import with_frame_counts
from polychoir.models.onnx_voice.vits.stage import load_stage
from polychoir.types import ModelOptions

GOOD = {
    "audio": {"sample_rate": 16_000},
    "phoneme_type": "text",
    "phoneme_id_map": {"_": [0], "^": [1], "$": [2], "a": [5], "b": [6, 7]},
    "inference": {"length_scale": 1.1},
    "language": {"code": "de_DE"},
    "speaker_id_map": {"zoe": 0, "adam": 1},
}


def message(number: int, *parts: bytes) -> bytes:
    """A length-delimited field, as protocol buffers write it."""
    body = b"".join(parts)
    size = bytearray()
    rest = len(body)
    while rest > 127:
        size.append(rest % 128 + 128)
        rest //= 128
    return bytes([number * 8 + 2, *size, rest]) + body


def node(kind: str, read: str, write: str) -> bytes:
    return message(1, message(1, read.encode()), message(2, write.encode()), message(4, kind.encode()))


def graph_of(*nodes: bytes) -> bytes:
    """A model with a version (varint), a producer (string), then the graph."""
    return b"\x08\x08" + message(2, b"a" * 300) + message(7, *nodes)


CHAIN = (
    node("Ceil", "w", "rounded"),
    node("CumSum", "rounded", "other"),
    node("ReduceSum", "rounded", "sum"),
    node("Clip", "sum", "least"),
    node("Cast", "least", "frames/of\u00e9ach"),
)


def test_the_frame_counts_are_found_by_the_shape_of_the_graph() -> None:
    model = graph_of(*CHAIN)
    longer, name = with_frame_counts(model)
    assert name == "frames/ofé" + "ach"
    assert longer == model + message(7, message(12, message(1, name.encode())))


@pytest.mark.parametrize("nodes", [CHAIN[:4], (), (*CHAIN, node("Cast", "least", "second"))])
def test_a_graph_without_exactly_one_such_tensor_is_no_vits_voice(nodes: tuple[bytes, ...]) -> None:
    with pytest.raises(ModelLoadError, match="not a VITS voice"):
        with_frame_counts(graph_of(*nodes))


@given(st.integers(1, len(graph_of(*CHAIN)) - 1))
def test_a_file_cut_short_is_said_to_be_so(size: int) -> None:
    with pytest.raises(ModelLoadError):
        with_frame_counts(graph_of(*CHAIN)[:size])


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_clearly(data: bytes) -> None:
    with pytest.raises(ModelLoadError):
        with_frame_counts(data)


def test_what_onnx_runtime_cannot_load_is_named() -> None:
    with pytest.raises(ModelLoadError, match=r"voice\.onnx cannot be loaded"):
        open_session(b"\x08\x08not a model", "voice.onnx")


def test_missing_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"gone\.onnx: cannot be read"):
        load_stage(tmp_path / "gone.onnx")


def voice_in(folder: Path, settings: Any) -> Path:
    weights = folder / "voice.onnx"
    weights.write_bytes(graph_of(*CHAIN))
    text = settings if isinstance(settings, str) else json.dumps(settings)
    (folder / "voice.onnx.json").write_text(text, encoding="utf-8")
    return weights


def test_a_good_voice_is_opened_without_loading(tmp_path: Path) -> None:
    plugin = VitsPlugin(lambda name: None)
    path = str(voice_in(tmp_path, GOOD))
    assert plugin.claims(path)
    info = plugin.open(path, ModelOptions(name="mine")).info
    assert (info.name, info.sample_rate, info.languages) == ("mine", 16_000, ("de",))
    assert info.voices == ("zoe", "adam")
    assert (info.kind, info.max_rows) == ("one_shot", None)


@pytest.mark.parametrize("reference", ["fake", "k2-fsa/OmniVoice", "v.onnx", "/nowhere/v.onnx", "\0.onnx"])
def test_what_is_no_such_voice_is_not_claimed(reference: str) -> None:
    assert not VitsPlugin(lambda name: None).claims(reference)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("{", "is not JSON"),
        ([], "not a VITS voice's settings"),
        ({}, "phoneme_id_map"),
        ({**GOOD, "phoneme_id_map": {"a": [1]}}, r"without \['\$', '\^', '_'\]"),
        ({**GOOD, "audio": {}}, "sample_rate"),
        ({**GOOD, "phoneme_id_map": {"_": ["x"]}}, "voice.onnx.json"),
        ({**GOOD, "phoneme_type": "espeak"}, "phonemiser 'espeak'"),
    ],
)
def test_a_bad_settings_file_is_named_with_its_fault(tmp_path: Path, settings: Any, words: str) -> None:
    path = str(voice_in(tmp_path, settings))
    with pytest.raises(ModelLoadError, match=words) as caught:
        VitsPlugin(lambda name: None).open(path, ModelOptions())
    assert path in caught.value.message


def test_a_missing_file_or_name_is_said(tmp_path: Path) -> None:
    plugin = VitsPlugin(lambda name: None)
    with pytest.raises(ModelLoadError, match="no such file"):
        plugin.open(str(tmp_path / "x.onnx"), ModelOptions())
    with pytest.raises(ModelLoadError, match="named by its file"):
        plugin.open(None, ModelOptions())


def test_phonemes_become_ids_with_pads_between(tmp_path: Path) -> None:
    voice_in(tmp_path, GOOD)
    config = VitsConfig.read(tmp_path / "voice.onnx.json")
    assert config.encode("ab?") == (1, 0, 5, 0, 6, 7, 0, 2)


@given(st.integers(1, 5_000))
def test_a_bucket_holds_its_rows_and_wastes_less_than_a_third(tokens: int) -> None:
    assert tokens <= bucket(tokens)
    assert bucket(tokens) == 32 or tokens > bucket(tokens) * 2 / 3
    assert bucket(bucket(tokens)) == bucket(tokens)
