"""The noise of `polychoir.kernels.noise` inside Triton kernels: the same bits, the same Gumbel formula.

Philox-4x32 with ten rounds comes with Triton. The counter's words are laid out in `kernels/noise.py`.
"""

# Arguments of a kernel have no Python types: Triton settles them when it compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

from polychoir.kernels import noise

POSITION = tl.constexpr(noise.POSITION)
CLASS = tl.constexpr(noise.CLASS)
_EPSILON = tl.constexpr(1e-10)
_UNIT = tl.constexpr(2.0**-24)

if triton.knobs.runtime.interpret:

    @triton.jit
    def log(x):
        """Natural logarithm of float32, right to the last bit or two everywhere."""
        return tl.log(x)

else:
    from triton.language.extra import libdevice

    @triton.jit
    def log(x):
        """Natural logarithm of float32, right to the last bit or two everywhere.

        `tl.log` becomes the hardware's base-2 logarithm, whose error of 2**-22 is larger than the
        logarithm itself for the numbers next to 1, which are those that win.
        """
        return libdevice.log(x)


@triton.jit
def gumbel(u):
    """Gumbel noise of a uniform number, by the formula and with the roundings of `kernels/reference.py`."""
    return -log(-log(u + _EPSILON) + _EPSILON)


@triton.jit
def _words(keys, purpose: tl.constexpr, step, frame, block):
    """Four words for each `block` (codebook << 16 | entry / 4). keys: pointer to the row's three int64."""
    seed = tl.load(keys) | (tl.load(keys + 1) << 32)
    stream = tl.load(keys + 2).to(tl.uint32)
    return tl.philox(seed, block, frame, (step & 0xFFFFFF) | (purpose << 24), stream)


@triton.jit
def _uniform(bits):
    return (bits >> 8).to(tl.float32) * _UNIT


@triton.jit
def cell_uniform(keys, purpose: tl.constexpr, step, frame, codebook):
    """The uniform number of a cell itself; step, frame, codebook: int32 scalars or tiles of one shape."""
    word, _, _, _ = _words(keys, purpose, step, frame, codebook << 16)
    return _uniform(word)


@triton.jit
def entry_uniform(keys, purpose: tl.constexpr, step, frame, codebook, ENTRIES: tl.constexpr):
    """The uniform numbers of entries 0 .. ENTRIES - 1 of a cell, [ENTRIES]; ENTRIES: a power of two >= 4."""
    block = (codebook << 16) | tl.arange(0, ENTRIES // 4)
    word0, word1, word2, word3 = _words(keys, purpose, step, frame, block)
    bits = tl.join(tl.join(word0, word2), tl.join(word1, word3))
    return _uniform(tl.reshape(bits, [ENTRIES]))
