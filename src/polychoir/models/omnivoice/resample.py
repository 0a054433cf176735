"""Band-limited resampling on whatever device the samples are: what the codec's semantic half hears."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor
from torch.nn.functional import conv1d, pad

_ZERO_CROSSINGS = 6
_ROLL_OFF = 0.99


def resample(wave: Tensor, src: int, dst: int) -> Tensor:
    """Band-limited resampling of [..., samples]; ceil(samples * dst / src) come out.

    A sinc cut off at 0.99 of the lower Nyquist rate under a squared-cosine window of six zero crossings:
    the published defaults of torchaudio.functional.resample (sinc_interp_hann, width 6, roll-off 0.99),
    which the codec was trained with. Source: J. O. Smith, "Digital Audio Resampling", ccrma.stanford.edu.
    """
    common = math.gcd(src, dst)
    src, dst = src // common, dst // common
    length = -(-wave.shape[-1] * dst // src)
    filters, reach = _filters(src, dst, wave.device, wave.dtype)
    padded = pad(wave.reshape(-1, 1, wave.shape[-1]), (reach, reach + src))
    phases = conv1d(padded, filters, stride=src)
    return phases.transpose(1, 2).flatten(1)[:, :length].reshape(*wave.shape[:-1], length)


@functools.lru_cache(maxsize=8)
def _filters(src: int, dst: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, int]:
    """One filter for each of the `dst` outputs of `src` inputs, [dst, 1, taps]; and its reach. Computed in
    float64, and kept where it is used: nothing can be sent to a GPU while a graph is captured."""
    cutoff = min(src, dst) * _ROLL_OFF
    reach = math.ceil(_ZERO_CROSSINGS * src / cutoff)
    taps = torch.arange(-reach, reach + src, dtype=torch.float64) / src
    outputs = torch.arange(dst, dtype=torch.float64) / dst
    crossings = ((taps[None, :] - outputs[:, None]) * cutoff).clamp(-_ZERO_CROSSINGS, _ZERO_CROSSINGS)
    window = torch.cos(crossings * math.pi / (2 * _ZERO_CROSSINGS)).square()
    filters = torch.sinc(crossings) * window * (cutoff / src)
    return filters[:, None].to(device, dtype), reach
