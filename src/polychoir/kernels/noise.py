"""Counter-based noise: a pure function of where a number is used, never of what was drawn before.

Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011),
Philox-4x32 with ten rounds. The key is the seed; the counter says which number is meant:

    word 0   vocabulary entry / 4 (bits 0-15), codebook (bits 16-31)
    word 1   position: the frame within the target
    word 2   step (bits 0-23), purpose (bits 24-31)
    word 3   chunk (bits 0-23), attempt (bits 24-31)

One block gives four words of 32 bits: vocabulary entry e takes word e mod 4. The same bits come out on
every device, because only exact 64-bit integer operations are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

POSITION: Final = 1
"""Purpose: which cells a step reveals."""
CLASS: Final = 2
"""Purpose: which token a cell takes."""

_WORD = 0xFFFF_FFFF
_MULTIPLIERS = (0xD251_1F53, 0xCD9E_8D57)
_WEYL = (0x9E37_79B9, 0xBB67_AE85)
_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class NoiseKeys:
    """What the noise of some rows depends on apart from the cell: int64 tensors of one shape.

    key_lo, key_hi: the seed's two words. stream: counter word 3, chunk and attempt. step: counts from 0.
    """

    key_lo: Tensor
    key_hi: Tensor
    stream: Tensor
    step: Tensor

    def take(self, index: Tensor) -> NoiseKeys:
        """The keys of `index`: from one per row to one per position, cell or subset."""
        return NoiseKeys(self.key_lo[index], self.key_hi[index], self.stream[index], self.step[index])


def seed_words(seed: int) -> tuple[int, int]:
    """Low and high word of a seed taken modulo 2**64."""
    return seed & _WORD, (seed >> 32) & _WORD


def stream_word(chunk: int, attempt: int) -> int:
    """Counter word 3. Chunks wrap at 2**24 and attempts at 256, far above what a request may hold."""
    return (chunk & 0xFF_FFFF) | ((attempt & 0xFF) << 24)


def uniform(
    keys: NoiseKeys, purpose: int, position: Tensor, codebook: Tensor, entry: Tensor | None = None
) -> Tensor:
    """Uniform float32 in [0, 1) with 24 random bits, for the broadcast of all arguments.

    position, codebook, entry: int64. Without `entry` the number belongs to the cell itself (entry 0).
    """
    block = codebook << 16
    if entry is not None:
        block = block | (entry >> 2)
    step = (keys.step & 0xFF_FFFF) | (purpose << 24)
    words = philox((block, position, step, keys.stream), (keys.key_lo, keys.key_hi))
    bits = words[0] if entry is None else _pick_word(words, entry & 3)
    return (bits >> 8).to(torch.float32) * 2.0**-24


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox-4x32-10 on int64 tensors that hold unsigned 32-bit words; arguments broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


def _multiply(multiplier: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """High and low word of a 32 x 32 bit product. The 64 bits are exact; only their sign is lost."""
    product = word * multiplier
    return (product >> 32) & _WORD, product & _WORD


def _pick_word(words: tuple[Tensor, Tensor, Tensor, Tensor], which: Tensor) -> Tensor:
    w0, w1, w2, w3 = words
    return torch.where(which < 2, torch.where(which == 0, w0, w1), torch.where(which == 2, w2, w3))
