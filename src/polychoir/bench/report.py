"""From what happened to each item to a table and one line of JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polychoir.bench.workloads import Item

QUANTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an item. Times are seconds from the start of the run.

    due: when it should have been sent; latency counts from there, so that a slow sender hides nothing.
    first, ended: its first audio, its last; first is None where audio comes whole. error: its kind, or None.
    """

    item: Item
    due: float
    ended: float
    audio_s: float = 0.0
    first: float | None = None
    error: str | None = None

    @property
    def latency(self) -> float:
        return self.ended - self.due


def percentile(values: Sequence[float], percent: float) -> float:
    """By linear interpolation between the two nearest; 0 of no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarise(outcomes: Sequence[Outcome], wall_s: float) -> dict[str, Any]:
    """The figures of a run, for the table and the line of JSON. Times in seconds.

    rtf: wall seconds for each second of audio made, all requests together. asked_s_per_s: the same seconds as
    they were asked for, without the silence around them: what papers and peers count.
    """
    done = [outcome for outcome in outcomes if outcome.error is None]
    audio = sum(outcome.audio_s for outcome in done)
    kinds = sorted({outcome.item.kind for outcome in done})
    firsts = [outcome.first - outcome.due for outcome in done if outcome.first is not None]
    return {
        "requests": len(outcomes),
        "completed": len(done),
        "errors": dict(Counter(outcome.error for outcome in outcomes if outcome.error is not None)),
        "wall_s": round(wall_s, 4),
        "completed_per_s": round(len(done) / wall_s, 3),
        "audio_s": round(audio, 2),
        "audio_s_per_s": round(audio / wall_s, 2),
        "asked_s_per_s": round(sum(outcome.item.seconds for outcome in done) / wall_s, 2),
        "rtf": round(wall_s / audio, 5) if audio else None,
        "latency_s": {
            "all": _spread([outcome.latency for outcome in done]),
            **{kind: _spread([o.latency for o in done if o.item.kind == kind]) for kind in kinds},
        },
        "ttfa_s": _spread(firsts) if firsts else None,
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    quantiles = {f"p{percent}": round(percentile(values, percent), 4) for percent in QUANTILES}
    mean = sum(values) / len(values) if values else 0.0
    return {"mean": round(mean, 4), **quantiles, "max": round(max(values, default=0.0), 4)}


def table(figures: Mapping[str, Any]) -> str:
    """The figures of one run for people."""
    lines = [
        f"{figures['completed']} of {figures['requests']} completed in {figures['wall_s']:.2f} s: "
        f"{figures['completed_per_s']:.2f}/s, {figures['audio_s_per_s']:.1f} s of audio a second "
        f"({figures['asked_s_per_s']:.1f} asked for)",
    ]
    lines += [f"  failed, {kind}: {count}" for kind, count in figures["errors"].items()]
    lines.append("  latency s        mean     p50     p95     p99     max")
    spreads = {**figures["latency_s"]}
    if figures["ttfa_s"] is not None:
        spreads["first audio"] = figures["ttfa_s"]
    for name, spread in spreads.items():
        lines.append(f"    {name:12s}" + "".join(f" {spread[key]:7.3f}" for key in spread))
    lines += [f"  {name}: {value}" for name, value in figures.get("engine", {}).items()]
    return "\n".join(lines)
