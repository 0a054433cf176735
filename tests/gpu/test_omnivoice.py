"""What only a GPU can show: the same noise, attention that agrees, the package's tokens.

On a machine without the server's packages: `pytest -c /dev/null --rootdir . -p no:cacheprovider tests/gpu`.
The times are measured by `tests.gpu.omnivoice_check`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra [omnivoice]")

from polychoir.kernels.attention import attend_grouped, choose, make_runs  # noqa: E402
from polychoir.kernels.noise import CLASS, NoiseKeys, uniform  # noqa: E402

pytestmark = pytest.mark.gpu


def test_noise_has_the_same_bits_on_the_gpu() -> None:
    keys = NoiseKeys(*(torch.tensor(value) for value in (0xFFFFFFFF, 0x12345678, 7 << 24, 31)))
    position, codebook = torch.arange(50)[:, None, None], torch.arange(8)[:, None]
    entry = torch.arange(1_025)
    here = uniform(keys, CLASS, position, codebook, entry)
    moved = NoiseKeys(keys.key_lo.cuda(), keys.key_hi.cuda(), keys.stream.cuda(), keys.step.cuda())
    there = uniform(moved, CLASS, position.cuda(), codebook.cuda(), entry.cuda())
    assert (here == there.cpu()).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_varlen_attention_is_taken_and_agrees(dtype: torch.dtype) -> None:
    device = torch.device("cuda")
    name, attend = choose(device, dtype, (16, 8, 128))
    assert name.startswith("varlen")
    lengths = [1, 149, 125, 288, 7]
    q, k, v = (torch.randn(sum(lengths), n, 128, device=device, dtype=dtype) for n in (16, 8, 8))
    runs = make_runs(lengths, device)
    assert (attend(q, k, v, runs) - attend_grouped(q, k, v, runs)).abs().max() < 2e-2


def test_tokens_equal_the_package_on_cuda(tmp_path: Path) -> None:
    pytest.importorskip("omnivoice", reason="needs the published package as its oracle")
    from tests.gpu.omnivoice_check import MOST_DIFFERING_ROWS, check_parity
    from tests.support.checkpoint import small_checkpoint

    counts = check_parity(small_checkpoint(tmp_path), "cuda", ["eager", "triton", "hybrid"])
    assert max(count["differing_rows"] for count in counts.values()) <= MOST_DIFFERING_ROWS
