"""A convolution over time as the codec's kernels take it: channels last, one packed sequence, no batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Taps:
    """out[t] = bias + sum over j of weight[:, j] @ x[t + j * dilation - reach], x being zero outside.

    weight: [out channels, taps, in channels], so that one output's numbers lie together. bias: float32
    [out channels].
    """

    weight: Tensor
    bias: Tensor
    dilation: int = 1
    reach: int = 0

    def frames_out(self, frames: int) -> int:
        return frames + 2 * self.reach - self.dilation * (self.weight.shape[1] - 1)
