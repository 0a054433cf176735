"""Runs the product's device side by hand, and lends the published package our noise."""

from __future__ import annotations

import functools
import io
import wave
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polychoir.audio.decode import decode_clip
from polychoir.models.omnivoice.checkpoint import open_checkpoint
from polychoir.models.omnivoice.codec import Codec
from polychoir.models.omnivoice.model import OmniVoiceModel
from polychoir.models.omnivoice.network import Network, load_weights
from polychoir.types import (
    Chunk,
    ModelOptions,
    ReferenceClip,
    SamplingParams,
    SequenceOutput,
    SpeechRequest,
    VoiceChoice,
)
from tests.parity import oracle as published
from tests.support.lent_noise import lent_noise

torch.set_num_threads(1)  # the tensors are small: threads cost more than they bring

RATE = 24_000
CLIP_TEXT = "A short note to copy the voice from."


@dataclass(frozen=True)
class Case:
    """One request, in the words of both sides."""

    text: str = "Hello there."
    language: str | None = None
    instruct: str | None = None
    clone: bool = False
    speed: float = 1.0
    seed: int = 7
    config: dict[str, Any] = field(default_factory=dict)

    def chunk(self, model: OmniVoiceModel) -> Chunk:
        request = SpeechRequest(
            "case",
            self.text,
            seed=self.seed,
            language=self.language,
            instructions=self.instruct,
            speed=self.speed,
            sampling=SamplingParams(**self.config),
            reference=ReferenceClip(clip_bytes(), CLIP_TEXT) if self.clone else None,
        )
        (chunk,) = model.frontend.prepare(request, VoiceChoice("auto")).chunks
        return chunk

    def task(self, model: Any) -> dict[str, Any]:
        prompt = published.clone_prompt(model, clip_samples(), CLIP_TEXT) if self.clone else None
        return {
            "text": self.text,
            "language": self.language,
            "instruct": self.instruct,
            "speed": self.speed,
            "voice_clone_prompt": prompt,
        }


@functools.cache
def clip_bytes() -> bytes:
    """One and a half seconds of something like a voice, as a wav file."""
    t = np.arange(int(1.5 * RATE)) / RATE
    tone = 0.25 * np.sin(2 * np.pi * 140 * t) * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * t))
    noise = 0.03 * np.random.default_rng(0).standard_normal(t.size)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes((32_767 * (tone + noise)).astype("<i2").tobytes())
    return file.getvalue()


@functools.cache
def clip_samples() -> NDArray[np.float32]:
    return decode_clip(clip_bytes(), max_seconds=10)


def open_model(folder: Path) -> OmniVoiceModel:
    return OmniVoiceModel(open_checkpoint(str(folder)), ModelOptions(device="cpu"))


def make_network(folder: Path, dtype: torch.dtype, device: str = "cpu") -> Network:
    checkpoint = open_checkpoint(str(folder))
    place = torch.device(device)
    return Network(checkpoint.config, load_weights(checkpoint.config, checkpoint.tensors, place, dtype))


def make_codec(folder: Path) -> Codec:
    return Codec(open_checkpoint(str(folder)).codec_folder, torch.device("cpu"))


def codes_of(output: SequenceOutput) -> NDArray[np.int16]:
    """int16 [8, frames]; a row that failed raises what it failed with."""
    if output.error is not None:
        raise output.error
    if output.codes is None:
        raise ValueError("an output without an error has codes")
    return np.frombuffer(output.codes.codes, "<i2").reshape(output.codes.codebooks, output.codes.frames)


def package_codes(model: Any, case: Case) -> NDArray[np.int16]:
    """What the published package makes of the case, with our noise: int16 [8, frames]."""
    with lent_noise(case.seed, case.config.get("position_temperature", 5.0)):
        (tokens,) = published.generate_tokens(model, case.task(model), **case.config)
    return tokens.numpy().astype(np.int16)
