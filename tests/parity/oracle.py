"""The published package as the oracle: imported without torchaudio and without its training half.

`load(folder)` gives the package's own model on a checkpoint; nothing of it is patched but the resampler it
would take from torchaudio. The codec class is shared by everybody who uses transformers, and holds whatever
torchaudio was there when it was first imported: the oracle therefore puts its own stand-in there for the
time of each of its `encode` calls, whoever came first.
"""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.support.torchaudio_shim import make_module, pretending_torchaudio

REQUIRED = "0.2.1"


@functools.cache
def package() -> Any:
    """The module `omnivoice.models.omnivoice`."""
    with pretending_torchaudio(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The name would otherwise be resolved to a placeholder that refuses to load weights.
        import transformers
        from transformers.models.higgs_audio_v2_tokenizer import modeling_higgs_audio_v2_tokenizer as higgs

        transformers.HiggsAudioV2TokenizerModel = higgs.HiggsAudioV2TokenizerModel  # type: ignore[misc]
        from omnivoice import __version__
        from omnivoice.models import omnivoice
    if __version__ != REQUIRED:
        raise RuntimeError(f"the oracle is omnivoice {REQUIRED}, but {__version__} is installed")
    return omnivoice


def load(folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
    """The package's model with backbone in `dtype` and the codec in float32, ready to `generate`."""
    with pretending_torchaudio(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = package().OmniVoice.from_pretrained(str(folder), device_map=device, dtype=dtype).eval()
        model.audio_tokenizer.float()
    codec = model.audio_tokenizer
    codec.encode = _with_own_resampler(codec.encode)
    return model


def _with_own_resampler(encode: Any) -> Any:
    from transformers.models.higgs_audio_v2_tokenizer import modeling_higgs_audio_v2_tokenizer as higgs

    shim = make_module()

    @functools.wraps(encode)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        theirs = higgs.torchaudio
        higgs.torchaudio = shim
        try:
            return encode(*args, **kwargs)
        finally:
            higgs.torchaudio = theirs

    return wrapped


def prompt_ids(model: Any, text: str, **kwargs: Any) -> list[int]:
    """Text ids the package puts before the audio; keywords as `_prepare_inference_inputs` takes them."""
    inputs = model._prepare_inference_inputs(text, 1, **kwargs)
    return inputs["input_ids"][0, 0][~inputs["audio_mask"][0]].tolist()  # type: ignore[no-any-return]


def generate_tokens(model: Any, task: dict[str, Any], **config: Any) -> list[torch.Tensor]:
    """Codes [8, T] of each item, before any decoding: `task` and `config` as `generate` takes them."""
    settings = package().OmniVoiceGenerationConfig(**config)
    prepared = model._preprocess_all(preprocess_prompt=settings.preprocess_prompt, **task)
    with torch.inference_mode():
        return model._generate_iterative(prepared, settings)  # type: ignore[no-any-return]


def clone_prompt(model: Any, wave: NDArray[np.float32], text: str | None, preprocess: bool = True) -> Any:
    """The package's VoiceClonePrompt of mono 24 kHz samples."""
    with torch.inference_mode():
        return model.create_voice_clone_prompt((wave, 24_000), ref_text=text, preprocess_prompt=preprocess)
