"""/metrics: what the door saw, and the engines' latest snapshots read at scrape time.

Labels are the served model names and status classes, nothing a client can choose, so the number of
series is fixed. A scrape reads snapshots and never waits for an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from polychoir.engine.engine import Engine
from polychoir.pipeline import Speaker

NO_MODEL = "none"
"""Label of requests that were refused before it was known which model they meant."""

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_AUDIO_SECONDS = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_800, 3_600)

_GAUGES: Mapping[str, tuple[str, Callable[[Engine], float]]] = {
    "ready": ("1 when the model is warm.", lambda engine: engine.status == "ready"),
    "waiting_sequences": ("Sequences not started.", lambda engine: engine.stats().waiting),
    "running_sequences": ("Sequences that have started.", lambda engine: engine.stats().running),
    "decoding_sequences": ("Sequences whose audio is being made.", lambda engine: engine.stats().decoding),
    "plans_in_flight": ("Device calls in flight.", lambda engine: engine.stats().plans_in_flight),
    "step_tokens": ("Tokens in the latest step.", lambda engine: engine.stats().step_tokens),
    "avg_batch_size": ("Rows per batch since the start.", lambda engine: engine.stats().avg_batch_size),
}
_COUNTERS: Mapping[str, tuple[str, Callable[[Engine], float]]] = {
    "steps": ("Row-steps run.", lambda engine: engine.stats().steps_total),
    "batches_dispatched": ("Batches given to the device.", lambda engine: engine.stats().batches_dispatched),
    "rows_dispatched": ("Rows given to the device.", lambda engine: engine.stats().rows_dispatched),
    "tokens": ("Tokens computed.", lambda engine: engine.stats().tokens_total),
    "padded_tokens": ("Tokens computed for nothing.", lambda engine: engine.stats().padded_tokens_total),
    "sequences_finished": ("Sequences sung.", lambda engine: engine.stats().sequences_finished),
    "sequences_failed": ("Sequences that failed.", lambda engine: engine.stats().sequences_failed),
    "sequences_aborted": ("Sequences whose client left.", lambda engine: engine.stats().sequences_aborted),
    "sequences_refused": ("Sequences not admitted.", lambda engine: engine.stats().sequences_refused),
    "graph_hits": ("Steps by a captured graph.", lambda engine: engine.stats().graph_steps.get("hit", 0)),
    "graph_misses": (
        "Steps whose graph was not captured yet.",
        lambda engine: engine.stats().graph_steps.get("miss", 0),
    ),
    "graph_skipped": (
        "Steps too large for a graph, or without memory for one.",
        lambda engine: engine.stats().graph_steps.get("skipped", 0),
    ),
    "prompt_cache_hits": (
        "Reference clips whose codes were known.",
        lambda engine: engine.stats().clips_prepared - engine.stats().clips_encoded,
    ),
    "prompt_cache_misses": ("Reference clips encoded.", lambda engine: engine.stats().clips_encoded),
    "busy_seconds": ("Time with work on the device.", lambda engine: engine.stats().busy_s),
}


class EngineCollector(Collector):
    """Reads every engine's snapshot when Prometheus asks."""

    def __init__(self, speakers: Mapping[str, Speaker]) -> None:
        self._speakers = speakers

    def collect(self) -> Iterator[Metric]:
        for name, (text, read) in _GAUGES.items():
            yield self._filled(GaugeMetricFamily(f"polychoir_{name}", text, labels=["model"]), read)
        for name, (text, read) in _COUNTERS.items():
            yield self._filled(CounterMetricFamily(f"polychoir_{name}", text, labels=["model"]), read)

    def _filled(
        self, family: GaugeMetricFamily | CounterMetricFamily, read: Callable[[Engine], float]
    ) -> Metric:
        for name, speaker in self._speakers.items():
            family.add_metric([name], float(read(speaker.engine)))
        return family


class Metrics:
    """The registry of one app and what the speech route tells it."""

    def __init__(self, speakers: Mapping[str, Speaker]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(speakers))
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            "polychoir_requests",
            "Speech requests by status class.",
            ["model", "status"],
            registry=self._registry,
        )
        self.queue_s = self._histogram("queue_seconds", "From arrival at the engine to the first step.")
        self.first_byte_s = self._histogram(
            "first_byte_seconds", "From arrival to the first byte of the answer."
        )
        self.total_s = self._histogram("request_seconds", "From arrival to the end of the answer.")
        self.audio_s = self._histogram("audio_seconds", "Length of the audio made.", _AUDIO_SECONDS)

    def count(self, model: str, status: int) -> None:
        """One speech request has been answered. `model` is a served name or NO_MODEL."""
        self._requests.labels(model, f"{status // 100}xx").inc()

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
        return Histogram(f"polychoir_{name}", text, ["model"], buckets=buckets, registry=self._registry)
