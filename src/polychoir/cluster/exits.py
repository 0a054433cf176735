"""Why a worker ended: its exit codes, and what the log says of them."""

from __future__ import annotations

from collections.abc import Mapping

NOT_LOADED, DEVICE_LOST, HUNG, ENGINE_FAILED, ALONE = 80, 81, 82, 83, 84

MEANING: Mapping[int, str] = {
    0: "it left by itself",
    NOT_LOADED: "the model did not load",
    DEVICE_LOST: "its device is lost",
    HUNG: "no step ended in time",
    ENGINE_FAILED: "its engine failed",
    ALONE: "it lost its connection",
}


def why(code: int) -> str:
    """In words; a negative code is the signal that killed it."""
    if code < 0:
        return f"killed by signal {-code}"
    return MEANING.get(code, f"exit code {code}")
