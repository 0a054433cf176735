"""The latencies of a run as a picture: what share of requests had been answered after how long."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polychoir.bench.report import Outcome
from polychoir.errors import SettingError

PICTURES = (".svg", ".png", ".pdf")


def plot(outcomes: Sequence[Outcome], path: Path, title: str) -> None:
    """Write the distribution of latencies by kind. Raises SettingError if there is nothing to draw with."""
    try:
        import matplotlib
    except ImportError as error:
        raise SettingError("--plot needs matplotlib: pip install 'polychoir[bench]'", param="plot") from error
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    done = [outcome for outcome in outcomes if outcome.error is None]
    for kind in sorted({outcome.item.kind for outcome in done}):
        latencies = sorted(outcome.latency for outcome in done if outcome.item.kind == kind)
        shares = [(place + 1) / len(latencies) for place in range(len(latencies))]
        axes.step(latencies, shares, where="post", label=f"{kind} ({len(latencies)})")
    axes.set(xlabel="latency, s", ylabel="share of requests", title=title, ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    if done:
        axes.legend(loc="lower right")
    figure.savefig(path, dpi=150, bbox_inches="tight")
    pyplot.close(figure)
