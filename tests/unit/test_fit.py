"""What a model's card allows: every optional field is in it, left out with a word, or refused by name."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from polychoir.errors import UnsupportedByModel
from polychoir.fit import fit
from polychoir.types import ModelInfo, ReferenceClip, SamplingParams, SpeechRequest

PLAIN = SpeechRequest("r", "Hello.", seed=1)
NOTHING = ModelInfo("bare", "one_shot", 24_000, ("en",))
SAMPLING: dict[str, Any] = {
    "num_step": 8,
    "guidance_scale": 0.0,
    "t_shift": 0.1,
    "position_temperature": 0.0,
    "class_temperature": 0.0,
    "layer_penalty_factor": 0.0,
    "denoise": False,
    "preprocess_prompt": False,
    "postprocess_output": False,
}
ASKED = {
    name: replace(PLAIN, sampling=SamplingParams(**{name: value})) for name, value in SAMPLING.items()
} | {
    "duration": replace(PLAIN, duration=2.0),
    "ref_audio": replace(PLAIN, reference=ReferenceClip(b"RIFF", "Hi.")),
    "language": replace(PLAIN, language="en"),
    "speed": replace(PLAIN, speed=1.5),
    "instructions": replace(PLAIN, instructions="male"),
}


def test_every_sampling_field_is_asked_here() -> None:
    assert set(SAMPLING) == {field.name for field in fields(SamplingParams)}


@pytest.mark.parametrize("name", ASKED)
def test_a_field_of_the_card_goes_through(name: str) -> None:
    card = replace(NOTHING, fields=frozenset({name}))
    assert fit(ASKED[name], card, strict=True) == (ASKED[name], ())


@pytest.mark.parametrize("name", sorted(ASKED.keys() - {"instructions"}))
def test_any_other_is_refused_by_its_public_name(name: str) -> None:
    card = replace(NOTHING, fields=frozenset(ASKED) - {name})
    with pytest.raises(UnsupportedByModel, match=f"bare.*{name}") as caught:
        fit(ASKED[name], card, strict=False)
    assert caught.value.param == name


def test_instructions_are_left_out_with_a_word_or_refused() -> None:
    assert fit(ASKED["instructions"], NOTHING, strict=False) == (PLAIN, ("instructions_ignored",))
    with pytest.raises(UnsupportedByModel) as caught:
        fit(ASKED["instructions"], NOTHING, strict=True)
    assert caught.value.param == "instructions"


def test_a_plain_request_fits_any_card() -> None:
    assert fit(PLAIN, NOTHING, strict=True) == (PLAIN, ())


@pytest.mark.parametrize(("speed", "fits"), [(0.5, True), (2.0, True), (0.49, False), (2.01, False)])
def test_speed_stays_in_the_models_range(speed: float, fits: bool) -> None:
    card = replace(NOTHING, fields=frozenset({"speed"}), speed_range=(0.5, 2.0))
    request = replace(PLAIN, speed=speed)
    if fits:
        assert fit(request, card, strict=False) == (request, ())
        return
    with pytest.raises(UnsupportedByModel, match=r"0\.5 to 2") as caught:
        fit(request, card, strict=False)
    assert caught.value.param == "speed"


def test_no_number_is_no_speed() -> None:
    card = replace(NOTHING, fields=frozenset({"speed"}))
    with pytest.raises(UnsupportedByModel):
        fit(replace(PLAIN, speed=float("nan")), card, strict=False)


@pytest.mark.parametrize("does", [False, True])
def test_text_is_normalised_as_the_model_does_it_anyway(does: bool) -> None:
    card = replace(NOTHING, fields=frozenset({"normalize_text"} if does else ()))
    same = replace(PLAIN, normalize_text=does)
    assert fit(same, card, strict=False) == (same, ())
    with pytest.raises(UnsupportedByModel) as caught:
        fit(replace(PLAIN, normalize_text=not does), card, strict=False)
    assert caught.value.param == "normalize_text"
