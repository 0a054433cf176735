"""Decoding on a GPU: items packed to a size that a CUDA graph was captured for, in half precision.

Some forty launches for whatever is packed take the host microseconds, where decoding item by item costs it
milliseconds each. All samples come back behind one wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polychoir.kernels import plain_codec
from polychoir.models.omnivoice.codec_graphs import CodecGraphs
from polychoir.models.omnivoice.decoder import GAP_FRAMES, Decoder, Ops, fold
from polychoir.models.omnivoice.row import FRAME_SAMPLES
from polychoir.runner.cuda import mark

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polychoir.models.omnivoice.decoder import Codes
    from polychoir.types import Samples

SIZES = (32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1_024, 1_280, 1_536, 2_048)
"""Frames worth a graph, 1.3 to 82 s: a third apart or less, but for the shortest."""
_STEP = SIZES[0]
_AMPERE = (8, 0)


class PackedDecoder:
    """Decodes on one CUDA device. One call at a time, always on the same stream."""

    def __init__(self, decoder: Decoder, sizes: Sequence[int] = SIZES, utilization: float = 0.9) -> None:
        """Captures a graph of each size there is memory for; takes seconds."""
        self._decoder = decoder
        codebooks = (decoder.weights.table.shape[0] - 1) // decoder.weights.entries
        self._lines = torch.full(
            (sizes[-1], codebooks), decoder.silence, dtype=torch.int32, device=decoder.device
        )
        self._graphs = CodecGraphs(
            "decoder", lambda size: decoder.forward(self._lines[:size]), sizes, decoder.device, utilization
        )

    @torch.inference_mode()
    def decode(self, items: Sequence[Codes]) -> list[Samples]:
        """Float32 samples of each item of codes [codebooks, frames], 960 a frame."""
        coming = [self._launch(group) for group in groups(items, self._graphs.sizes[-1])]
        mark(torch.cuda.current_stream()).synchronize()
        return [
            wave.numpy()[start * FRAME_SAMPLES : (start + frames) * FRAME_SAMPLES].copy()
            for wave, places in coming
            for start, frames in places
        ]

    def _launch(self, items: Sequence[Codes]) -> tuple[Tensor, list[tuple[int, int]]]:
        """Pinned samples of these items, there once the stream has come so far, and where each item lies:
        first frame, frames."""
        lengths = [codes.shape[1] for codes in items]
        needed = sum(lengths) + GAP_FRAMES * (len(items) - 1)
        # Kernels are compiled for multiples of a step; another number would compile them anew while serving.
        size = self._graphs.fit(needed) or -(-needed // _STEP) * _STEP
        packed, starts = self._decoder.lines(items, size)
        samples = self._run(packed)
        host = torch.empty_like(samples, device="cpu", pin_memory=True)
        host.copy_(samples, non_blocking=True)
        return host, list(zip(starts, lengths, strict=True))

    def _run(self, packed: NDArray[Any]) -> Tensor:
        size = packed.shape[0]
        lines = torch.from_numpy(packed).pin_memory()
        if size > self._lines.shape[0]:
            return self._decoder.forward(lines.to(self._decoder.device, non_blocking=True))
        self._lines[:size].copy_(lines, non_blocking=True)
        return self._graphs.run(size)


def groups(items: Sequence[Codes], largest: int) -> Iterator[Sequence[Codes]]:
    """Consecutive items that fit into so many frames with the gaps between them; a longer one is alone."""
    cuts, room = [0], largest
    for number, codes in enumerate(items):
        if number > cuts[-1] and codes.shape[1] > room:
            cuts.append(number)
            room = largest
        room -= codes.shape[1] + GAP_FRAMES
    return (items[first:last] for first, last in pairwise([*cuts, len(items)]))


def packed_decoder(model: Any, device: torch.device, utilization: float) -> PackedDecoder:
    """Of transformers' codec class, on a CUDA device. Half precision with an 11-bit mantissa: bfloat16 has 8,
    which is heard as noise; what overflows is left to the caller, who finds samples that are not finite."""
    return PackedDecoder(Decoder(fold(model, torch.float16), choose_ops(device)), utilization=utilization)


def choose_ops(device: torch.device) -> Ops:
    """Fused kernels where Triton's matrix products run, else plain torch."""
    if torch.cuda.get_device_capability(device) < _AMPERE or find_spec("triton") is None:
        return plain_codec
    from polychoir.kernels.fused import snake

    return snake
