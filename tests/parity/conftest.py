"""One oracle for the whole run: it takes seconds, the tests milliseconds."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def oracle(checkpoint_dir: Path) -> Any:
    """The published package's model on it, float32."""
    return _load_oracle(checkpoint_dir, "float32")


@pytest.fixture(scope="session")
def oracle64(checkpoint_dir: Path) -> Any:
    """The same with its backbone in float64."""
    return _load_oracle(checkpoint_dir, "float64")


def _load_oracle(folder: Path, dtype: str) -> Any:
    if find_spec("omnivoice") is None:
        pytest.skip("the parity tests need the published package `omnivoice` as their oracle")
    import torch

    from tests.parity import oracle as published

    return published.load(folder, getattr(torch, dtype))
