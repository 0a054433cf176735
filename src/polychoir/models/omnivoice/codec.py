"""The audio tokenizer: 24 kHz samples to codes and back, 25 frames of 8 codes a second.

The network is transformers' Higgs audio v2 class, in float32 whatever the backbone's dtype; a GPU decodes by
an arrangement of our own (packed_decode.py). That class
imports torchaudio for one call, which resamples what the semantic encoder hears from 24 to 16 kHz; here
that step is done by a resampler of our own, and torchaudio need not be installed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from polychoir.errors import ModelLoadError
from polychoir.models.omnivoice.encoder import SEMANTIC_PAD, GraphedEncoder, can_pad
from polychoir.models.omnivoice.packed_decode import packed_decoder
from polychoir.models.omnivoice.resample import resample
from polychoir.models.omnivoice.row import FRAME_SAMPLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polychoir.types import Samples

    Codes = NDArray[np.int16]

_HIGGS = "transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer"
CODEBOOK_ENTRIES = 1_024
"""Codes run from 0 to one below this."""


class Codec:
    """Encode and decode on one device. Not for concurrent use."""

    def __init__(self, folder: Path, device: torch.device, utilization: float = 0.9) -> None:
        """utilization: share of the device's memory that captured graphs may fill.

        Raises ModelLoadError if the folder's weights do not fit its config.
        """
        try:
            with _no_progress_bar():
                model = _higgs_class().from_pretrained(folder, dtype=torch.float32)
        except (OSError, ValueError, RuntimeError) as error:
            raise ModelLoadError(f"{folder}: the audio tokenizer cannot be loaded ({error})") from error
        self._model = model.eval().to(device)
        self._device = device
        on_gpu = device.type == "cuda"
        self._packed = packed_decoder(self._model, device, utilization) if on_gpu else None
        can_graph = on_gpu and can_pad(self._model)
        self._padded = GraphedEncoder(self._model, device, utilization) if can_graph else None

    def encode(self, items: Sequence[Samples]) -> list[Codes]:
        """int16 [codebooks, frames] of each clip, float32 mono samples at 24 kHz, as if it were alone. A last
        part frame is left out."""
        clips = [samples[: samples.size - samples.size % FRAME_SAMPLES] for samples in items]
        found = {} if self._padded is None else self._padded.encode(clips)
        left = [number for number in range(len(clips)) if number not in found]
        found |= zip(left, self._encode_exactly([clips[number] for number in left]), strict=True)
        return [found[number] for number in range(len(clips))]

    @torch.inference_mode()
    def _encode_exactly(self, clips: Sequence[Samples]) -> list[Codes]:
        """Whole frames each, as `_together` has them; none is padded."""
        out: dict[int, Codes] = {}
        for numbers in self._together([samples.size for samples in clips]):
            waves = np.stack([clips[number] for number in numbers]).astype(np.float32)
            stacked = torch.from_numpy(waves)[:, None].to(self._device)
            codes = self._model.encode(stacked).audio_codes.to("cpu", torch.int16).numpy()
            # Copies: whoever keeps one clip's must not keep them all.
            out |= ((number, one.copy()) for number, one in zip(numbers, codes, strict=True))
        return [out[number] for number in range(len(clips))]

    def decode(self, items: Sequence[Codes]) -> list[Samples]:
        """Float32 samples of each item of codes [codebooks, frames], 960 a frame, as if it were alone."""
        if self._packed is None:
            return self._decode_exactly(items)
        waves = self._packed.decode(items)
        # Too loud for half precision somewhere on the way: float32 has room.
        lost = [number for number, wave in enumerate(waves) if not np.isfinite(wave).all()]
        again = self._decode_exactly([items[number] for number in lost])
        for number, wave in zip(lost, again, strict=True):
            waves[number] = wave
        return waves

    @torch.inference_mode()
    def _decode_exactly(self, items: Sequence[Codes]) -> list[Samples]:
        """In float32, as `_together` has them; no item is padded, so tails are exact."""
        out: dict[int, Samples] = {}
        for numbers in self._together([codes.shape[1] for codes in items]):
            stacked = torch.from_numpy(np.stack([items[number] for number in numbers]).astype(np.int64))
            waves = self._model.decode(stacked.to(self._device)).audio_values[:, 0].float().cpu().numpy()
            out |= zip(numbers, waves, strict=True)
        return [out[number] for number in range(len(items))]

    def _together(self, lengths: Sequence[int]) -> Iterable[list[int]]:
        """The places of each length; on a CPU each by itself. A batch gains nothing there, and its sums, in
        another order, would make the last bit of an answer depend on its company."""
        if self._device.type == "cpu":
            return [[number] for number in range(len(lengths))]
        places: dict[int, list[int]] = {}
        for number, length in enumerate(lengths):
            places.setdefault(length, []).append(number)
        return places.values()


@functools.cache
def _higgs_class() -> Any:
    """The codec class with its one use of torchaudio replaced; the shared class stays as it is."""
    with _torchaudio_to_import():
        # By its full name: as an attribute of its package it is a placeholder wherever torchaudio is missing.
        base: Any = importlib.import_module(_HIGGS).HiggsAudioV2TokenizerModel

    class HiggsCodec(base):  # type: ignore[misc]
        def _extract_semantic_features(self, input_values: Tensor) -> Tensor:
            """Mean over all layers of the semantic model, thinned out to the codec's frames."""
            config = self.config
            heard = resample(input_values[:, 0], config.sample_rate, config.semantic_sample_rate)
            heard = pad(heard, (SEMANTIC_PAD, SEMANTIC_PAD))
            states = self.semantic_model(heard, output_hidden_states=True).hidden_states
            features = torch.stack(states, dim=1).mean(dim=1)
            return features[:, :: max(1, config.semantic_downsample_factor)]

    return HiggsCodec


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """The codec loads in a blink; its bar would stand in the middle of a server's log."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def _torchaudio_to_import() -> Iterator[None]:
    """Where torchaudio is missing, something of that name to import for as long as the block runs."""
    if "torchaudio" in sys.modules or importlib.util.find_spec("torchaudio") is not None:
        yield
        return
    absent = types.ModuleType("torchaudio")
    absent.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
    sys.modules["torchaudio"] = absent
    try:
        yield
    finally:
        del sys.modules["torchaudio"]
