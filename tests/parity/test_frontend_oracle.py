"""The oracle itself: what stands in for torchaudio and for the published tokenizer must be right first."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.support.torchaudio_shim import windowed_sinc

DATA = Path(__file__).parent.parent / "data"
VECTORS = json.loads((DATA / "resample_vectors.json").read_text())["cases"]


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: f"{case['src']}-{case['dst']}")
def test_stand_in_equals_torchaudio(case: dict[str, Any]) -> None:
    out = windowed_sinc(np.array(case["input"]), case["src"], case["dst"])
    assert out.shape == (len(case["output"]),)
    np.testing.assert_allclose(out, case["output"], atol=1e-8)


def test_nobody_else_sees_the_stand_in(oracle: Any) -> None:
    from transformers.utils import is_torchaudio_available

    assert oracle.sampling_rate == 24_000
    assert "torchaudio" not in sys.modules
    assert not is_torchaudio_available()


def test_tokenizer_has_the_published_ids(checkpoint_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(checkpoint_dir / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 151_676
    assert tokenizer.token_to_id("<|endoftext|>") == 151_643
    assert tokenizer.token_to_id("</think>") == 151_668
    assert tokenizer.token_to_id("<|denoise|>") == 151_669
    assert tokenizer.token_to_id("<|text_end|>") == 151_675


def test_same_texts_give_the_same_ids_in_both_readers(checkpoint_dir: Path, oracle: Any) -> None:
    ours = Tokenizer.from_file(str(checkpoint_dir / "tokenizer.json"))
    texts = [json.loads(line)["text"] for line in (DATA / "texts.jsonl").read_text().splitlines()]
    for text in texts:
        assert ours.encode(text).ids == oracle.text_tokenizer(text).input_ids
