"""By when each chunk of a request is wanted.

Somebody who listens wants the first chunk within the target, and each later one when the audio before it
has been heard. Somebody who waits for the whole wants it in about the time it takes to hear it. A batch job
has hours.
"""

from __future__ import annotations

from collections.abc import Sequence

from polychoir.engine.sequence import Urgency
from polychoir.types import Chunk, Tier

BATCH_S = 4 * 3_600.0
"""A job's rows run when nothing else needs the device; after so long they are as urgent as the rest."""
MARGIN_S = 0.25
"""Before the audio ahead of a piece has been heard: as coarse as the books on deadlines (`demand.py`) are."""


def wanted(
    chunks: Sequence[Chunk], tier: Tier, now: float, ttfa_s: float, heard_s: float = 0.0
) -> list[tuple[Urgency, float]]:
    """Urgency and deadline of each chunk of a request that arrives now, in the order of the text.

    heard_s: seconds of audio before these chunks that are there already, and being heard from now on.
    Playback may begin at once, so later chunks of a listener are wanted by when the audio before them ends
    if the first came immediately; never before the first chunk's own deadline.
    """
    if tier == "batch":
        return [(Urgency.IDLE, now + BATCH_S)] * len(chunks)
    if tier == "standard":
        whole = now + ttfa_s + sum(chunk.estimated_s for chunk in chunks)
        return [(Urgency.WAITING, whole)] * len(chunks)
    found: list[tuple[Urgency, float]] = []
    heard = heard_s
    for chunk in chunks:
        urgency = Urgency.LISTENING if chunk.index else Urgency.FIRST
        found.append((urgency, now + max(ttfa_s, heard - MARGIN_S)))
        heard += chunk.estimated_s
    return found
