"""Convolution over time, the sum with its residual, and the snake behind it, in one launch.

The functions compute what those of `kernels/plain_codec.py` compute, with sums and snakes in float32. A
transposed convolution is a convolution whose outputs lie `rise` to a line: line by line, that is the order
of time, so only an offset tells it from any other.
"""

# Arguments of a kernel have no Python types: Triton settles them when it compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from polychoir.kernels.fused.card import card
from polychoir.kernels.taps import Taps

TILES = ((128, 128), (64, 128), (64, 64))
"""Lines and channels: large tiles read less, small ones keep more processors busy."""
_PI = tl.constexpr(3.14159265358979)
_PER_PI = tl.constexpr(0.318309886183791)


def conv_wide(x: Tensor, taps: Taps) -> Tensor:
    """The convolution in float32, [time, channels], for the samples themselves."""
    out = torch.empty(taps.frames_out(x.shape[0]), taps.weight.shape[0], device=x.device)
    _launch(x, taps, raw=out)
    return out


def conv_snake(x: Tensor, taps: Taps, curve: Tensor, live: Tensor) -> Tensor:
    bent = x.new_empty(taps.frames_out(x.shape[0]), taps.weight.shape[0])
    _launch(x, taps, bent=bent, curve=curve, live=live)
    return bent


def add_conv_snake(
    residual: Tensor, x: Tensor, taps: Taps, curve: Tensor, live: Tensor
) -> tuple[Tensor, Tensor]:
    """residual + convolution, written over the residual, and the snake of that."""
    bent = torch.empty_like(residual)
    _launch(x, taps, residual=residual, raw=residual, bent=bent, curve=curve, live=live)
    return residual, bent


def rise_snake(
    x: Tensor, taps: Taps, rise: int, lead: int, curve: Tensor, live: Tensor
) -> tuple[Tensor, Tensor]:
    """A transposed convolution and the snake of it, [time * rise, channels] each."""
    out = x.new_empty(x.shape[0] * rise, taps.weight.shape[0] // rise)
    bent = torch.empty_like(out)
    _launch(x, taps, raw=out, bent=bent, curve=curve, live=live, lead=lead)
    return out, bent


def _launch(
    x: Tensor,
    taps: Taps,
    *,
    residual: Tensor | None = None,
    raw: Tensor | None = None,
    bent: Tensor | None = None,
    curve: Tensor | None = None,
    live: Tensor | None = None,
    lead: int = 0,
) -> None:
    """raw: the sum goes there. bent: its snake goes there, by `curve`, where `live` is not 0."""
    wide, count, narrow = taps.weight.shape
    lines = taps.frames_out(x.shape[0])
    out = raw if raw is not None else bent
    assert out is not None, "this is a bug: a convolution into nothing"
    channels = out.shape[1]
    block_k = max(16, min(64, triton.next_power_of_2(narrow)))
    block_m, block_n, warps = _tile(lines, wide, x.device)
    _conv[(triton.cdiv(wide, block_n), triton.cdiv(lines, block_m))](
        x,
        taps.weight,
        taps.bias,
        residual,
        raw,
        bent,
        curve,
        live,
        x.shape[0],
        lines,
        out.numel(),
        lead * channels,
        1 if live is None else out.numel() // live.shape[0],
        count,
        taps.dilation,
        taps.reach,
        narrow,
        wide,
        channels,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        num_warps=warps,
        num_stages=3,
    )


def _tile(lines: int, wide: int, device: torch.device) -> tuple[int, int, int]:
    """Lines and channels of a tile, and its warps: the largest that still gives every processor one."""
    widest = max(16, triton.next_power_of_2(wide))
    for block_m, channels in TILES:
        block_n = min(channels, widest)
        if triton.cdiv(lines, block_m) * triton.cdiv(wide, block_n) >= card(device).multiprocessors:
            break
    return block_m, block_n, warps(block_m, block_n)


def warps(block_m: int, block_n: int) -> int:
    return 8 if block_m * block_n >= 16_384 else 4


@triton.jit
def _snake(x, a, per_a):
    """x + sin(a x)**2 / a. The square of a sine repeats with pi, so the angle is brought next to zero first,
    where six terms of the series are right to float32; the library's sine would pay for all angles."""
    angle = a * x
    angle -= tl.floor(angle * _PER_PI + 0.5) * _PI
    square = angle * angle
    series = 2.7557319e-6 + square * -2.5052108e-8
    series = -1.9841270e-4 + square * series
    series = 8.3333333e-3 + square * series
    series = -1.6666667e-1 + square * series
    sine = angle + angle * square * series
    return x + sine * sine * per_a


@triton.jit(do_not_specialize=["taps", "dilation", "reach"])
def _conv(
    x_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    raw_ptr,
    bent_ptr,
    curve_ptr,
    live_ptr,
    lines_in,
    lines_out,
    size,
    lead,
    per_frame,
    taps,
    dilation,
    reach,
    narrow,
    wide,
    channels,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One tile of outputs [BLOCK_M lines, BLOCK_N channels] over all taps and input channels.

    Longer than most functions here: the loop and the epilogue share every index. Pointers that are None are
    parts of the epilogue that a launch does without. size, lead, per_frame: numbers in the output, before
    its first, and for one frame.
    """
    line = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    parts = tl.cdiv(narrow, BLOCK_K)
    for step in range(taps * parts):
        tap = step // parts
        channel = (step % parts) * BLOCK_K + inner
        source = line + tap * dilation - reach
        there = (source >= 0) & (source < lines_in)
        x = tl.load(
            x_ptr + source[:, None] * narrow + channel[None, :],
            mask=there[:, None] & (channel < narrow)[None, :],
            other=0.0,
        )
        weight = tl.load(
            weight_ptr + column[None, :] * (taps * narrow) + (tap * narrow + channel)[:, None],
            mask=(column < wide)[None, :] & (channel < narrow)[:, None],
            other=0.0,
        )
        total = tl.dot(x, weight, total)
    real = column < wide
    total += tl.load(bias_ptr + column, mask=real, other=0.0)[None, :]
    place = line[:, None] * wide + column[None, :] - lead
    inside = (line < lines_out)[:, None] & real[None, :] & (place >= 0) & (place < size)
    if residual_ptr is not None:
        total += tl.load(residual_ptr + place, mask=inside, other=0.0).to(tl.float32)
    if raw_ptr is not None:
        tl.store(raw_ptr + place, total.to(raw_ptr.dtype.element_ty), mask=inside)
    if bent_ptr is not None:
        key = column % channels
        a = tl.load(curve_ptr + key, mask=real, other=1.0)
        per_a = tl.load(curve_ptr + channels + key, mask=real, other=1.0)
        alive = tl.load(live_ptr + place // per_frame, mask=inside, other=0) != 0
        bent = tl.where(alive, _snake(total, a[None, :], per_a[None, :]), 0.0)
        tl.store(bent_ptr + place, bent.to(bent_ptr.dtype.element_ty), mask=inside)
