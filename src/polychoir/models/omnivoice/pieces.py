"""Cutting a long text into pieces the model can hold in one breath, and their lengths in frames.

The model drifts in long stretches, so a text of more than 30 estimated seconds is said in pieces of at most
about 15. Pieces are kept alike in length: a short rest at the end would be said badly.
"""

from __future__ import annotations

import math

from polychoir.errors import InvalidRequest
from polychoir.models.omnivoice.length import FRAME_RATE, estimate_frames, natural_frames
from polychoir.text import is_speakable, segment

LONGEST_WHOLE_S = 30.0
PIECE_S = 15.0
_SLACK = 1.15
"""Room for whole sentences above the mean length of a piece."""
_SLOWEST = 0.1


def split(text: str, frames: int, *, language: str | None, pace_from: str) -> list[str]:
    """The pieces of a text that is planned to take `frames`; the text alone if that is short enough.

    Raises InvalidRequest, naming the field `pace_from` that asked for it, if so little text is stretched over
    so long a time that every piece would be a few letters.
    """
    if frames <= LONGEST_WHOLE_S * FRAME_RATE:
        return [text]
    natural = natural_frames(text)
    if natural < _SLOWEST * frames:
        raise InvalidRequest(
            f"{pace_from} would stretch this text to {frames / FRAME_RATE:.0f} s; "
            f"at most {natural / FRAME_RATE / _SLOWEST:.0f} s can be filled with it",
            param=pace_from,
        )
    seconds = frames / FRAME_RATE
    limit = min(PIECE_S, _SLACK * seconds / math.ceil(seconds / PIECE_S))
    scale = seconds / natural
    pieces = segment(text, limit, lambda piece: natural_frames(piece) * scale, language=language or "en")
    return _join_unspeakable(pieces)


def share_frames(pieces: list[str], frames: int) -> list[int]:
    """Divide `frames` among the pieces by their weight, at least one each; the sum is kept."""
    if len(pieces) == 1:
        return [frames]
    weights = [max(natural_frames(piece), 1e-9) for piece in pieces]
    total, spent, shares = sum(weights), 0.0, []
    for weight in weights:
        before, spent = spent, spent + weight
        shares.append(max(1, round(frames * spent / total) - round(frames * before / total)))
    return shares


def planned_frames(
    text: str, *, speed: float, duration: float | None, ref_text: str | None, ref_frames: int
) -> int:
    """Frames for the whole text: `duration` in seconds if given, else the estimate divided by `speed`."""
    if duration is not None:
        return max(1, int(duration * FRAME_RATE))
    return estimate_frames(text, ref_text=ref_text, ref_frames=ref_frames, speed=speed)


def _join_unspeakable(pieces: list[str]) -> list[str]:
    """Bare punctuation is no piece of its own: it goes to the piece before it, or else to the next."""
    joined: list[str] = []
    for piece in pieces:
        if joined and not (is_speakable(piece) and is_speakable(joined[-1])):
            joined[-1] = f"{joined[-1]} {piece}"
        else:
            joined.append(piece)
    return joined
