"""Philox-4x32-10 in numpy, written apart from the product's: the twin its noise is compared with.

Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, section 3.3 and figure 3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """uint64 [4, ...] holding 32-bit words in, the same out."""
    a, b, c, d = counter
    k0, k1 = (np.uint64(word) for word in key)
    for _ in range(10):
        left, right = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (
            (right >> _SHIFT) ^ b ^ k0,
            right & _LOW,
            (left >> _SHIFT) ^ d ^ k1,
            left & _LOW,
        )
        k0 = np.uint64((int(k0) + 0x9E3779B9) & 0xFFFFFFFF)
        k1 = np.uint64((int(k1) + 0xBB67AE85) & 0xFFFFFFFF)
    return np.stack([a, b, c, d])


def uniform(
    seed: int, step: int, shape: tuple[int, int, int | None], chunk: int = 0, attempt: int = 0
) -> NDArray[np.float32]:
    """Noise of a whole step. shape: codebooks, frames, entries (None: the noise of positions)."""
    codebooks, frames, entries = shape
    purpose = 1 if entries is None else 2
    blocks = 1 if entries is None else -(-entries // 4)
    codebook, frame, block = np.meshgrid(
        np.arange(codebooks), np.arange(frames), np.arange(blocks), indexing="ij"
    )
    counter = np.empty((4, *codebook.shape), np.uint64)
    counter[0] = codebook * 65536 + block
    counter[1] = frame
    counter[2] = purpose * 2**24 + step
    counter[3] = attempt * 2**24 + chunk
    words = philox(counter, (seed % 2**32, seed // 2**32 % 2**32))
    values = ((words >> np.uint64(8)).astype(np.float64) / 2**24).astype(np.float32)
    if entries is None:
        return values[0, ..., 0]
    return np.moveaxis(values, 0, -1).reshape(codebooks, frames, -1)[..., :entries]
