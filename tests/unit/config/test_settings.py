from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

import polychoir
from polychoir.config import ModelReference, Settings
from polychoir.config.settings import REQUEST_DEFAULTS
from polychoir.config.unbuilt import UNBUILT
from polychoir.errors import SettingError


def test_defaults_are_those_of_the_contract() -> None:
    settings = Settings()
    assert (settings.host, settings.port, settings.device, settings.dtype) == (
        "127.0.0.1",
        8000,
        "auto",
        "auto",
    )
    assert (settings.queue_limit, settings.request_timeout_s, settings.drain_timeout) == (2000, 600, 30)
    assert settings.batch and settings.public_lists
    assert not settings.log_requests and not settings.strict_fields and not settings.strict_instructions
    assert settings.model_settings == {
        "fake_step_ms": 1,
        "fake_us_per_token": 2,
        "fake_steps": 8,
        "fake_tokens_per_char": 4,
        "fake_fail_rate": 0,
        "prompt_cache_mb": 256,
        "runner_mode": "auto",
        "gpu_memory_utilization": 0.9,
    }


def test_settings_cannot_be_changed() -> None:
    settings = Settings()
    with pytest.raises(ValidationError):
        settings.port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("written", "parsed"),
    [
        ("fake", ModelReference("fake")),
        ("alto=./voices/alto", ModelReference("./voices/alto", "alto")),
        ("./odd=path/voice", ModelReference("./odd=path/voice")),
        ("k2-fsa/OmniVoice", ModelReference("k2-fsa/OmniVoice")),
    ],
)
def test_a_model_may_bring_its_served_name(written: str, parsed: ModelReference) -> None:
    assert Settings(model=(written,)).models == (parsed,)


def test_served_model_name_is_for_one_model() -> None:
    assert Settings(model=("fake",), served_model_name="x").models == (ModelReference("fake", "x"),)
    with pytest.raises(SettingError, match="several"):
        Settings(model=("a", "b"), served_model_name="x")


def test_two_served_names_for_one_model_must_be_one() -> None:
    with pytest.raises(SettingError, match="'b' and 'a'") as caught:
        Settings(model=("a=fake",), served_model_name="b")
    assert caught.value.param == "served_model_name"
    assert Settings(model=("a=fake",), served_model_name="a").models == (ModelReference("fake", "a"),)


@pytest.mark.parametrize("models", [(), ("",), ("x=",), ("=y",), ("a", "a"), ("b", "b=c"), ("m",) * 17])
def test_model_lists_that_cannot_be_served(models: tuple[str, ...]) -> None:
    with pytest.raises(SettingError) as caught:
        Settings(model=models)
    assert caught.value.param == "model"


def test_only_the_request_defaults_that_were_set_are_reported() -> None:
    settings = Settings(num_step=8, position_temperature=0, postprocess_output=False)
    assert settings.request_defaults == {
        "num_step": 8,
        "position_temperature": 0,
        "postprocess_output": False,
    }


@pytest.mark.parametrize("name", sorted(UNBUILT))
def test_what_is_not_built_is_off_by_default_and_refused_by_name(name: str) -> None:
    wanted = {
        "api_workers": 2,
        "batch_timeout_ms": 50,
        "group_step_tolerance": 2,
        "ttfa_target_ms": 300,
        "adapter": ("a=b",),
        "quantization": "fp8",
        "runtime": "onnx",
        "max_clone_audio_prompt_cache": 32,
        "max_continuity_audio_tokens": 64,
        "max_continuity_text_words": 24,
        "text_chunk_words": 32,
        "keys_file": Path("keys"),
        "log_dir": Path("logs"),
        "log_run_id": "run",
    }
    assert getattr(Settings(), name) in UNBUILT[name][0]
    with pytest.raises(SettingError, match=f"{name} = .* not built yet") as caught:
        Settings(**{name: wanted.get(name, True)})
    assert caught.value.param == name


def test_dtype_and_runner_mode_take_older_words() -> None:
    assert Settings(dtype="fp16").dtype == "float16"  # type: ignore[arg-type]
    assert Settings(runner_mode="official").runner_mode == "eager"  # type: ignore[arg-type]


def test_certificate_and_key_belong_together() -> None:
    with pytest.raises(SettingError, match="belong together"):
        Settings(ssl_certfile=Path("c.pem"))


def test_the_key_is_not_in_the_representation() -> None:
    assert "hunter2" not in repr(Settings(api_key="hunter2"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_are_finite(value: float) -> None:
    with pytest.raises(ValidationError):
        Settings(request_timeout_s=value)


def test_every_setting_that_is_built_is_read_by_somebody() -> None:
    """A setting that nobody reads is accepted and ignored."""
    package = Path(polychoir.__file__).parent
    sources = [path for path in package.rglob("*.py") if package / "config" not in path.parents]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    through = {"model": "models", "served_model_name": "models"}
    through |= dict.fromkeys(REQUEST_DEFAULTS, "request_defaults")
    through |= dict.fromkeys(Settings().model_settings, "model_settings")
    unread = [
        name
        for name in Settings.model_fields
        if name not in UNBUILT and not re.search(rf"settings\.{through.get(name, name)}\b", text)
    ]
    assert not unread
