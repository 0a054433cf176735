"""Which languages a voice of one language takes as its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polychoir.errors import UnsupportedByModel
from polychoir.models.onnx_voice.refusals import language_warnings
from polychoir.models.onnx_voice.vits.config import VitsConfig
from polychoir.types import ModelInfo

INFO = ModelInfo("v", "one_shot", 22_050, ("de",))
LANGUAGE = {"code": "de_DE", "name_native": "Deutsch", "name_english": "German"}


@pytest.fixture
def config(tmp_path: Path) -> VitsConfig:
    ids = {"_": [0], "^": [1], "$": [2]}
    settings = {"audio": {"sample_rate": 22_050}, "phoneme_id_map": ids, "language": LANGUAGE}
    (tmp_path / "v.onnx.json").write_text(json.dumps(settings), encoding="utf-8")
    return VitsConfig.read(tmp_path / "v.onnx.json")


@pytest.mark.parametrize("language", [None, "de", "de-DE", "DE_de", "German", " deutsch "])
def test_its_language_by_code_or_name(config: VitsConfig, language: str | None) -> None:
    assert language_warnings(language, INFO, config.accent, config.language_names) == ()


def test_another_accent_or_language(config: VitsConfig) -> None:
    warned = language_warnings("de-AT", INFO, config.accent, config.language_names)
    assert warned == ("language_variant_ignored",)
    with pytest.raises(UnsupportedByModel) as caught:
        language_warnings("English", INFO, config.accent, config.language_names)
    assert caught.value.param == "language"
