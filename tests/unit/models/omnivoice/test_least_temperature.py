"""A temperature is 0 or large enough to divide by in float32."""

from __future__ import annotations

import pytest

from polychoir.errors import InvalidRequest
from polychoir.models.omnivoice.settings import LEAST_TEMPERATURE, settings_from
from polychoir.types import SamplingParams


@pytest.mark.parametrize("name", ["position_temperature", "class_temperature"])
def test_tiny_temperatures_are_refused_by_name(name: str) -> None:
    for tiny in (1e-50, 1e-40, 1e-37, 5e-4):
        with pytest.raises(InvalidRequest) as caught:
            settings_from(SamplingParams(**{name: tiny}), {})
        assert caught.value.param == name
    for fine in (0.0, LEAST_TEMPERATURE, 0.3, 5.0):
        assert getattr(settings_from(SamplingParams(**{name: fine}), {}), name) == fine
