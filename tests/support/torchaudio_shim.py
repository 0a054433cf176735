"""The one function of torchaudio that the codec and the published package call, written from its definition.

torchaudio.functional.resample with its default settings is a windowed sinc: with rates divided by their
common factor, cut-off b = 0.99 * min(rates) and half width 6 zero crossings,

    y[n] = sum_m x[m] * (b / src) * sinc(b * t) * cos(pi * b * t / 12) ** 2
    where t = m / src - n / dst and only |b * t| <= 6 counts,

evaluated here sample by sample in float64, with no filter bank: slow, plain, and nothing shared with the
product's own resampler. `tests/data/resample_vectors.json` holds outputs of torchaudio 2.11.1 to check it.
"""

from __future__ import annotations

import importlib.machinery
import math
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_ZERO_CROSSINGS = 6
_ROLL_OFF = 0.99
_BLOCK = 1 << 15


def windowed_sinc(wave: NDArray[Any], src: int, dst: int) -> NDArray[np.float64]:
    """Resample [..., samples] from `src` Hz to `dst` Hz; ceil(samples * dst / src) samples come out."""
    common = math.gcd(src, dst)
    src, dst = src // common, dst // common
    cut = _ROLL_OFF * min(src, dst)
    reach = math.ceil(_ZERO_CROSSINGS * src / cut) + 1
    samples = wave.shape[-1]
    length = -(-samples * dst // src)
    padded = np.pad(wave.astype(np.float64), [(0, 0)] * (wave.ndim - 1) + [(reach, reach + 1)])
    out = np.empty((*wave.shape[:-1], length))
    for start in range(0, length, _BLOCK):
        n = np.arange(start, min(start + _BLOCK, length))
        m = (n * src // dst)[:, None] + np.arange(-reach, reach + 2)
        x = cut * (m / src - n[:, None] / dst)
        weight = np.where(np.abs(x) <= _ZERO_CROSSINGS, np.cos(np.pi * x / (2 * _ZERO_CROSSINGS)) ** 2, 0.0)
        weight *= np.sinc(x) * cut / src
        inside = np.clip(m + reach, 0, padded.shape[-1] - 1)
        out[..., n] = (padded[..., inside] * weight).sum(-1)
    return out


def resample(waveform: torch.Tensor, orig_freq: int, new_freq: int) -> torch.Tensor:
    """Stands in for torchaudio.functional.resample; keeps dtype and device."""
    if orig_freq == new_freq:
        return waveform
    out = windowed_sinc(waveform.detach().cpu().numpy(), orig_freq, new_freq)
    return torch.from_numpy(out).to(waveform)


def make_module() -> types.ModuleType:
    """A module object that passes for torchaudio where only `functional.resample` is called."""
    module, functional = types.ModuleType("torchaudio"), types.ModuleType("torchaudio.functional")
    module.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
    functional.resample = resample  # type: ignore[attr-defined]
    module.functional = functional  # type: ignore[attr-defined]
    module.__version__ = "0"  # type: ignore[attr-defined]
    return module


@contextmanager
def pretending_torchaudio() -> Iterator[types.ModuleType]:
    """Within the block `import torchaudio` gives the stand-in and transformers believes it is installed.

    Everything is put back afterwards; modules imported inside keep the stand-in they saw.
    """
    from transformers.utils import import_utils

    real = sys.modules.get("torchaudio")
    shim = make_module()
    sys.modules["torchaudio"] = shim
    import_utils.is_torchaudio_available.cache_clear()
    try:
        yield shim
    finally:
        if real is None:
            del sys.modules["torchaudio"]
        else:
            sys.modules["torchaudio"] = real
        import_utils.is_torchaudio_available.cache_clear()
