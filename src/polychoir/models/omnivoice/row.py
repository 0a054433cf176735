"""What the text side hands to the device side for one chunk: plain values, nothing else.

A row can be pickled or packed and sent to another process. It knows no tensor, no tokenizer and no
request; everything that decides its tokens is in it, so it gives the same speech wherever it runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from polychoir.types import VoicePrompt

SAMPLE_RATE = 24_000
FRAME_SAMPLES = 960
"""Samples one column of codes stands for: 25 frames a second at 24 kHz."""
CODEBOOKS = 8


@dataclass(frozen=True, slots=True)
class Shaping:
    """What is done to a chunk's waveform once its codes are decoded."""

    postprocess_output: bool = True
    """Take out long silences, and trim both ends."""
    ref_rms: float | None = None
    """Level of the reference before it was raised; None for a voice without a reference."""
    lead_s: float = 0.1
    """Silence in front of the chunk, and `trail_s` after it; less at the seams of a text in pieces."""
    trail_s: float = 0.1
    fade_s: float = 0.1


@dataclass(frozen=True, slots=True)
class OmniVoiceRow:
    """One sequence of the masked diffusion.

    text_ids: style and text tokens, in front of everything else.
    prompt: reference codes that exist already. clip: float32 little-endian mono 24 kHz samples of a
    prepared reference that the device side encodes first, `clip_key` the hash of its content for the
    cache of encoded prompts. At most one of the two; `ref_frames` holds for either.
    timetable: cells revealed at each live step, every entry at least 1; its sum is 8 * target_frames.
    """

    text_ids: tuple[int, ...]
    target_frames: int
    timetable: tuple[int, ...]
    guidance_scale: float
    position_temperature: float
    class_temperature: float
    layer_penalty_factor: float
    seed: int
    chunk: int = 0
    attempt: int = 0
    """Counts content retries; a repeat after a fault keeps it and so draws the same noise."""
    prompt: VoicePrompt | None = None
    clip: bytes | None = None
    clip_key: str | None = None
    ref_frames: int = 0
    shaping: Shaping = field(default_factory=Shaping)

    @property
    def cond_len(self) -> int:
        """Packed tokens of the conditional run: text, reference, target."""
        return len(self.text_ids) + self.ref_frames + self.target_frames

    @property
    def uncond_len(self) -> int:
        """Packed tokens of the unconditional run: the target alone, and nothing without guidance."""
        return self.target_frames if self.guidance_scale != 0 else 0

    @property
    def tokens(self) -> int:
        """Packed tokens of both runs: what one step of this row costs."""
        return self.cond_len + self.uncond_len

    @property
    def squares(self) -> int:
        """Length squared of both runs, for what attention costs."""
        return self.cond_len**2 + self.uncond_len**2
