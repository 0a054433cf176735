"""From settings to speakers: every setting reaches a model that reads it, or stops the start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import polychoir.assembly
from polychoir.assembly import build_speakers
from polychoir.config import Settings
from polychoir.errors import SettingError
from polychoir.models.base import Model
from polychoir.models.omnivoice.model import _runner_plan
from polychoir.models.registry import open_model
from polychoir.types import ModelOptions

pytest.importorskip("hibari", reason="the embedded voice is not installed")


def build(folder: Path, *models: str, **settings: Any) -> dict[str, Any]:
    return build_speakers(Settings(model=models, data_dir=folder, **settings))


def test_a_request_default_reaches_the_model(tmp_path: Path) -> None:
    assert build(tmp_path, "fake", num_step=3, fake_steps=7)["fake"].info.defaults == {"num_step": 3}
    assert build(tmp_path, "fake", fake_steps=7)["fake"].info.defaults == {"num_step": 7}


def test_a_request_default_is_for_the_models_that_have_the_field(tmp_path: Path) -> None:
    speakers = build(tmp_path, "hibari", "fake", num_step=3)
    assert speakers["fake"].info.defaults == {"num_step": 3}
    assert speakers["hibari"].info.defaults == {}


@pytest.mark.parametrize(
    ("models", "name", "value"),
    [
        (("hibari",), "num_step", 8),
        (("hibari", "fake"), "guidance_scale", 2.0),
        (("hibari",), "fake_step_ms", 5.0),
        (("hibari",), "fake_fail_rate", 0.0),
        (("fake",), "prompt_cache_mb", 64),
    ],
)
def test_a_setting_that_no_model_reads_stops_the_start(
    tmp_path: Path, models: tuple[str, ...], name: str, value: float
) -> None:
    with pytest.raises(SettingError, match=f"{name} is set.*{', '.join(models)}") as caught:
        build(tmp_path, *models, **{name: value})
    assert caught.value.param == name


def test_a_models_own_settings_are_fine_beside_another_model(tmp_path: Path) -> None:
    assert build(tmp_path, "hibari", "fake", fake_step_ms=5.0)["fake"].model.settings.fake_step_ms == 5.0


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_seqs": 8},
        {"max_resident_seqs": 300},
        {"max_num_seqs": 8, "max_resident_seqs": 9},
        {"batch": False},
        {"batch": False, "max_num_seqs": 8, "max_resident_seqs": 9},
    ],
)
def test_a_runner_has_as_many_slots_as_the_engine_fills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    given: list[ModelOptions] = []

    def opened(reference: str | None, options: ModelOptions) -> Model:
        given.append(options)
        return open_model(reference, replace(options))

    monkeypatch.setattr(polychoir.assembly, "open_model", opened)
    speaker = build(tmp_path, "fake", **settings)["fake"]
    pytest.importorskip("torch", reason="the device side needs the extra [omnivoice]")
    plan, limits = _runner_plan(given[0]), speaker.engine.limits
    assert plan.resident_rows == limits.max_resident_seqs
    assert plan.max_rows >= limits.max_num_seqs
    assert plan.step_tokens in (None, limits.max_num_batched_tokens)


@pytest.mark.parametrize("inside", [False, True])
def test_a_data_folder_that_cannot_be_made_stops_the_start(tmp_path: Path, inside: bool) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(SettingError, match="cannot make data_dir") as caught:
        build(file / "data" if inside else file, "fake")
    assert caught.value.param == "data_dir"


def test_the_data_folder_is_made(tmp_path: Path) -> None:
    build(tmp_path / "a" / "b", "fake")
    assert (tmp_path / "a" / "b").is_dir()
