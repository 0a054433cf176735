"""The codec's fused convolutions under Triton's interpreter beside the plain ones. See test_fused_codec.py.

TRITON_INTERPRET must be set before Triton is imported, and holds for the whole process; hence a process of
its own.
"""

from __future__ import annotations

import pytest
import torch

from polychoir.kernels import plain_codec
from polychoir.kernels.fused import snake
from polychoir.kernels.taps import Taps
from tests.support.interpreting import mend_interpreter

torch.set_num_threads(1)
mend_interpreter()
POISON = 7.0


class Draw:
    """Numbers of one seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def numbers(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator)

    def taps(self, out: int, count: int, narrow: int, dilation: int, reach: int) -> Taps:
        weight = self.numbers(out, count, narrow) * (count * narrow) ** -0.5
        return Taps(weight, self.numbers(out), dilation, reach)

    def curve(self, channels: int) -> torch.Tensor:
        alpha = self.numbers(channels).abs() + 0.2
        return torch.stack((alpha, 1 / alpha))

    def live(self, frames: int) -> torch.Tensor:
        return torch.randint(2, (frames,), generator=self._generator, dtype=torch.int32)


def close(ours: torch.Tensor, plain: torch.Tensor) -> None:
    assert ours.dtype == plain.dtype
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("dilation", [1, 3, 9])
@pytest.mark.parametrize(("frames", "per", "narrow", "wide"), [(3, 5, 8, 24), (1, 1, 4, 4), (9, 8, 80, 130)])
def test_conv_snake(frames: int, per: int, narrow: int, wide: int, dilation: int) -> None:
    draw = Draw(dilation)
    x, curve, live = draw.numbers(frames * per, narrow), draw.curve(wide), draw.live(frames)
    taps = draw.taps(wide, 7, narrow, dilation, 3 * dilation)
    close(snake.conv_snake(x, taps, curve, live), plain_codec.conv_snake(x, taps, curve, live))


def test_add_conv_snake() -> None:
    draw = Draw(1)
    x, residual, curve, live = draw.numbers(70, 32), draw.numbers(70, 32), draw.curve(32), draw.live(7)
    taps = draw.taps(32, 1, 32, 1, 0)
    expected = plain_codec.add_conv_snake(residual, x, taps, curve, live)
    for ours, plain in zip(
        snake.add_conv_snake(residual.clone(), x, taps, curve, live), expected, strict=True
    ):
        close(ours, plain)


@pytest.mark.parametrize(("rise", "lead"), [(8, 4), (5, 3), (3, 2), (2, 1)])
def test_rise_snake(rise: int, lead: int) -> None:
    draw = Draw(rise)
    x, curve, live = draw.numbers(33, 16), draw.curve(12), draw.live(11)
    taps = draw.taps(rise * 12, 2, 16, 1, 1)
    expected = plain_codec.rise_snake(x, taps, rise, lead, curve, live)
    for ours, plain in zip(snake.rise_snake(x, taps, rise, lead, curve, live), expected, strict=True):
        close(ours, plain)


def test_the_samples_are_float32_whatever_comes_in() -> None:
    draw = Draw(2)
    x, taps = draw.numbers(150, 32), draw.taps(1, 7, 32, 1, 3)
    close(snake.conv_wide(x, taps), plain_codec.conv_wide(x, taps))
    half = Taps(taps.weight.half(), taps.bias, 1, 3)
    out = snake.conv_wide(x.half(), half)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, plain_codec.conv_wide(x, taps), rtol=0, atol=2e-2)


def test_what_lies_around_the_tensors_is_left_alone() -> None:
    """The output in the middle of a larger one, poisoned."""
    draw = Draw(3)
    around = torch.full((50, 32), POISON)
    residual = around[10:30]
    residual.copy_(draw.numbers(20, 32))
    snake.add_conv_snake(
        residual, draw.numbers(20, 32), draw.taps(32, 1, 32, 1, 0), draw.curve(32), draw.live(4)
    )
    assert (around[:10] == POISON).all() and (around[30:] == POISON).all()
    assert (around[10:30] != POISON).all()


@pytest.mark.parametrize("scale", [0.1, 10.0, 500.0])
def test_the_snake_of_large_numbers(scale: float) -> None:
    """The angle is taken modulo pi by hand: its error grows with the angle, as that of the angle itself."""
    draw = Draw(4)
    x, curve = draw.numbers(64, 16) * scale, draw.curve(16)
    one = Taps(torch.eye(16)[:, None, :], torch.zeros(16))
    live = torch.ones(64, dtype=torch.int32)
    exact = plain_codec.snake(x.double(), curve, live)
    assert (snake.conv_snake(x, one, curve, live) - exact).abs().max() < 3e-6 * max(1.0, scale)
