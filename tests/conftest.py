"""Shared by every suite: the small checkpoint; long and GPU tests say why they were skipped."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from hypothesis import settings

# Machines are shared and noisy, so no example has a deadline; CI repeats the same examples, people explore.
settings.register_profile("polychoir", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("polychoir")


@pytest.fixture(scope="session")
def checkpoint_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random OmniVoice checkpoint in the published layout; made once, in seconds."""
    pytest.importorskip("torch", reason="OmniVoice's tests need the extra [omnivoice]")
    from tests.support.checkpoint import small_checkpoint

    return small_checkpoint(tmp_path_factory.mktemp("omnivoice"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marked = config.getoption("-m", default="")
    for item in items:
        if item.get_closest_marker("slow") and "slow" not in marked:
            item.add_marker(pytest.mark.skip(reason="long form; run with -m slow"))
        if item.get_closest_marker("gpu") and not _has_gpu():
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU; none is here"))


def _has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()
