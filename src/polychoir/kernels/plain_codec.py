"""The codec's convolutions and snakes in plain torch: what every faster kernel must compute. Any device.

All signals are [time, channels]. Items of all lengths lie end to end with gaps between them; `live` says
which frames belong to an item, and what a snake gives is zero elsewhere, so that the next convolution sees
at an item's end the zeros it would see if the item were alone.

Snake: x + sin(a x)**2 / a with one `a` a channel (arXiv 2006.08195; as in DAC, arXiv 2306.06546). A curve is
float32 [2, channels]: a, and 1 / a.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import conv2d

from polychoir.kernels.taps import Taps


def snake(x: Tensor, curve: Tensor, live: Tensor) -> Tensor:
    """Snake of [time, channels] in float32, zero where `live` [frames] is 0; time is a multiple of frames."""
    wide = x.float()
    bent = wide + curve[1] * (curve[0] * wide).sin().square()
    alive = live.repeat_interleave(x.shape[0] // live.shape[0])
    return (bent * alive[:, None]).to(x.dtype)


def conv(x: Tensor, taps: Taps) -> Tensor:
    """The convolution alone, in the dtype of x."""
    # As images of one line, channels last: that is how the numbers lie already, so nothing is moved.
    image = x.t()[None, :, None, :]
    weight = taps.weight.permute(0, 2, 1)[:, :, None, :]
    out = conv2d(image, weight, taps.bias.to(x.dtype), padding=(0, taps.reach), dilation=(1, taps.dilation))
    return out[0, :, 0, :].t()


def conv_wide(x: Tensor, taps: Taps) -> Tensor:
    """The convolution in float32, for the samples themselves."""
    return conv(x, taps).float()


def conv_snake(x: Tensor, taps: Taps, curve: Tensor, live: Tensor) -> Tensor:
    return snake(conv(x, taps), curve, live)


def add_conv_snake(
    residual: Tensor, x: Tensor, taps: Taps, curve: Tensor, live: Tensor
) -> tuple[Tensor, Tensor]:
    """residual + convolution, and the snake of that; the residual may be overwritten."""
    total = residual + conv(x, taps)
    return total, snake(total, curve, live)


def rise_snake(
    x: Tensor, taps: Taps, rise: int, lead: int, curve: Tensor, live: Tensor
) -> tuple[Tensor, Tensor]:
    """A transposed convolution to `rise` times as many, and the snake of that: [time * rise, channels] each.

    taps give all outputs that begin at one input side by side, [rise * channels], one input more than x has;
    the first `lead` outputs are left out.
    """
    wide = conv(x, taps)
    out = wide.reshape(wide.shape[0] * rise, -1)[lead : lead + x.shape[0] * rise]
    return out, snake(out, curve, live)
