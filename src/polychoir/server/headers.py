"""What an answer says of itself: the response headers of the public contract."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from urllib.parse import quote

from polychoir.pipeline import Speech, SpeechReport

EXPOSED = (
    "x-request-id",
    "x-audio-sample-rate",
    "x-audio-duration-s",
    "x-polychoir-model",
    "x-polychoir-voice",
    "x-polychoir-seed",
    "x-polychoir-chunks",
    "x-polychoir-warnings",
    "x-polychoir-steps",
    "x-polychoir-retries",
    "server-timing",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
)
"""Headers that a page from another origin may read."""

_PLAIN = "".join(set(string.ascii_letters + string.digits + string.punctuation + " ") - {"%"})


def speech_headers(speech: Speech, model: str, sample_rate: int, warnings: tuple[str, ...]) -> dict[str, str]:
    """Facts that are known before the first byte. `warnings` are the door's own, before the desk's."""
    return {
        "x-audio-sample-rate": str(sample_rate),
        "x-polychoir-model": encode_value(model),
        "x-polychoir-voice": encode_value(speech.voice),
        "x-polychoir-seed": str(speech.seed),
        "x-polychoir-chunks": str(speech.total_chunks),
        "x-polychoir-warnings": encode_list((*warnings, *speech.warnings)),
    }


def report_headers(report: SpeechReport) -> dict[str, str]:
    """Facts that are known at the end, hence only of a buffered answer."""
    return {
        "x-audio-duration-s": f"{report.duration_s:.3f}",
        "x-polychoir-steps": str(report.steps),
        "x-polychoir-retries": str(report.retries),
    }


def server_timing(seconds: Mapping[str, float]) -> dict[str, str]:
    """The Server-Timing header: each stage in milliseconds."""
    return {"server-timing": ", ".join(f"{stage};dur={took * 1e3:.1f}" for stage, took in seconds.items())}


def encode_value(text: str) -> str:
    """Percent-encode what a header cannot carry: everything but printable ASCII, and the % itself.

    Half of a surrogate pair, which has no bytes, becomes a question mark.
    """
    return quote(text, safe=_PLAIN, errors="replace")


def encode_list(texts: Iterable[str]) -> str:
    """Values of one header; commas within them are encoded, so that splitting at commas gives them back."""
    return ", ".join(encode_value(text).replace(",", "%2C") for text in texts)
