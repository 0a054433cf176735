"""Defaults by device class: the H200's are measured, the others follow from their peak rates."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the runner needs the extra [omnivoice]")

from polychoir.runner.device_class import _estimate, device_class  # noqa: E402


@pytest.mark.parametrize(
    ("capability", "multiprocessors", "dtype", "tokens"),
    [
        ((7, 5), 40, "float16", 1_024),  # T4
        ((8, 0), 108, "bfloat16", 3_584),  # A100
        ((8, 6), 84, "bfloat16", 1_536),  # RTX 3090, A10
        ((8, 9), 142, "bfloat16", 2_048),  # L40S
        ((8, 9), 58, "bfloat16", 1_024),  # L4
        ((9, 0), 132, "bfloat16", 8_192),  # H100, H200
        ((10, 0), 148, "bfloat16", 8_192),  # B200
        ((6, 1), 20, "float16", 1_024),  # older than anything known
    ],
)
def test_a_class_follows_its_peak_rate(
    capability: tuple[int, int], multiprocessors: int, dtype: str, tokens: int
) -> None:
    found = _estimate(capability, multiprocessors)
    assert (found.dtype, found.step_tokens) == (dtype, tokens)


def test_a_cpu_computes_in_float32() -> None:
    assert device_class(torch.device("cpu")).dtype == "float32"
