"""From what happened to each item to a table and one line of JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polychoir.bench.workloads import Item

QUANTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an item. Times are seconds from the start of the run.

    due: when it should have been sent; latency counts from there, so that a slow sender hides nothing.
    ended: its last audio. first_byte: of an HTTP answer, None where there is no HTTP. first_audio: when the
    first of it was there, None of an HTTP answer that comes whole. error: its kind, or None.
    """

    item: Item
    due: float
    ended: float
    audio_s: float = 0.0
    first_byte: float | None = None
    first_audio: float | None = None
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

    rtf: wall seconds for each second of audio made, all requests together; request_rtf: latency for each
    second of a request's own. asked_s_per_s: the same seconds as they were asked for, without the silence
    around them: what papers and peers count. Spreads are over `all` and over each kind; None where nothing
    was seen.
    """
    done = [outcome for outcome in outcomes if outcome.error is None]
    audio = sum(outcome.audio_s for outcome in done)
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
        "kinds": {
            kind: {
                "completed": len(those),
                "audio_s_per_s": round(sum(outcome.audio_s for outcome in those) / wall_s, 2),
            }
            for kind, those in _by_kind(done).items()
        },
        "latency_s": _spreads(done, lambda outcome: outcome.latency) or {"all": _spread([])},
        "first_byte_s": _spreads(done, lambda outcome: _since(outcome.due, outcome.first_byte)),
        "ttfa_s": _spreads(done, lambda outcome: _since(outcome.due, outcome.first_audio)),
        "request_rtf": _spreads(done, lambda o: o.latency / o.audio_s if o.audio_s else None),
    }


def _since(due: float, moment: float | None) -> float | None:
    return None if moment is None else moment - due


def _by_kind(outcomes: Sequence[Outcome]) -> dict[str, Sequence[Outcome]]:
    kinds = sorted({outcome.item.kind for outcome in outcomes})
    return {kind: [outcome for outcome in outcomes if outcome.item.kind == kind] for kind in kinds}


def _spreads(
    outcomes: Sequence[Outcome], measure: Callable[[Outcome], float | None]
) -> dict[str, dict[str, float]] | None:
    """The spread of a measure over all and over each kind, of those outcomes that have it."""
    found: dict[str, dict[str, float]] = {}
    for name, those in {"all": outcomes, **_by_kind(outcomes)}.items():
        values = [value for outcome in those if (value := measure(outcome)) is not None]
        if values:
            found[name] = _spread(values)
    return found or None


def _spread(values: Sequence[float]) -> dict[str, float]:
    quantiles = {f"p{percent}": round(percentile(values, percent), 4) for percent in QUANTILES}
    mean = sum(values) / len(values) if values else 0.0
    return {"mean": round(mean, 4), **quantiles, "max": round(max(values, default=0.0), 4)}


_SPREADS = {
    "latency_s": "latency s",
    "first_byte_s": "first byte s",
    "ttfa_s": "first audio s",
    "request_rtf": "RTF of each",
}


def table(figures: Mapping[str, Any]) -> str:
    """The figures of one run for people."""
    rtf = figures["rtf"]
    lines = [
        f"{figures['completed']} of {figures['requests']} completed in {figures['wall_s']:.2f} s: "
        f"{figures['completed_per_s']:.2f}/s, {figures['audio_s_per_s']:.1f} s of audio a second "
        f"({figures['asked_s_per_s']:.1f} asked for)" + ("" if rtf is None else f", RTF {rtf:.5f}"),
    ]
    lines += [f"  failed, {kind}: {count}" for kind, count in figures["errors"].items()]
    lines += [
        f"  {kind}: {part['completed']} completed, {part['audio_s_per_s']:.1f} s of audio a second"
        for kind, part in figures["kinds"].items()
    ]
    for name, title in _SPREADS.items():
        if figures[name] is not None:
            lines += _spread_lines(title, figures[name])
    lines += [f"  {name}: {value}" for name, value in figures.get("engine", {}).items()]
    return "\n".join(lines)


def _spread_lines(title: str, spreads: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A heading and a line for each kind; one kind alone is all there is, and is said once."""
    lines = [f"  {title:14s}" + "".join(f" {key:>7s}" for key in spreads["all"])]
    for name, spread in spreads.items():
        if name != "all" or len(spreads) != 2:
            lines.append(f"    {name:12s}" + "".join(f" {value:7.3f}" for value in spread.values()))
    return lines
