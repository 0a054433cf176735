"""What a step costs, in seconds; and what a row costs, in steps and tokens.

The work of a row is known exactly on arrival: live steps left, times its tokens in each. Seconds come from a
curve fitted to measured steps (calibration.py): a constant part (launches, the host), a floor (a step of few
tokens still reads every weight), a slope, and what attention adds for long rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polychoir.types import DeviceKind, ModelKind, Work

UNKNOWN_STEPS = 256
"""Assumed for a row that only knows when it has ended (autoregressive models)."""
KNEE_SHARE = 0.9
"""Of the most tokens a second that steps of any size reach: larger ones add latency, and little else."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: max(floor_s, per_token_s * tokens + per_square_s * squares) + host_s.

    squares: over the runs of the step, the sum of length squared. decode_s: from a row's last step to its
    audio, beside the steps. lanes: steps that run at the same time (threads of a one-shot voice).
    """

    host_s: float
    per_token_s: float
    per_square_s: float = 0.0
    floor_s: float = 0.0
    decode_s: float = 0.0
    lanes: int = 1

    def seconds(self, tokens: float, squares: float = 0.0) -> float:
        return max(self.floor_s, self.per_token_s * tokens + self.per_square_s * squares) + self.host_s

    def weight(self, work: Work) -> float:
        """Tokens of a row in one step, with its attention counted as the tokens it costs as much as."""
        if not self.per_square_s:
            return work.tokens
        return work.tokens + work.squares * self.per_square_s / self.per_token_s

    def pace(self, tokens: float) -> float:
        """Tokens a second, all lanes together, in steps of so many."""
        return self.lanes * tokens / self.seconds(tokens)

    def size_for(self, pace: float, share: float = 1.0) -> float:
        """The smallest step, in tokens, that keeps up with `pace` tokens a second; infinite if none does.

        From tokens / (host + per_token * tokens) = pace; the floor makes it larger, not smaller.
        """
        wanted = pace / self.lanes / share
        spare = 1.0 - wanted * self.per_token_s
        if spare <= 0.0:
            return float("inf")
        return wanted * max(self.host_s / spare, self.host_s + self.floor_s)

    @property
    def knee(self) -> int:
        """Tokens of the step that reaches KNEE_SHARE of the limit."""
        return max(1, round(self.size_for(KNEE_SHARE * self.lanes / self.per_token_s)))

    def scaled(self, factor: float) -> StepCost:
        """The same shape, slower or faster."""
        return replace(
            self,
            host_s=self.host_s * factor,
            floor_s=self.floor_s * factor,
            per_token_s=self.per_token_s * factor,
            per_square_s=self.per_square_s * factor,
        )


ASSUMED = StepCost(host_s=1e-3, per_token_s=2e-6)
"""Until something was measured: an iterative model on a large GPU. Refined with every step that runs."""

_ITERATIVE: Mapping[DeviceKind, StepCost] = {
    "large_gpu": ASSUMED,
    "small_gpu": StepCost(host_s=2e-3, per_token_s=1e-5),
    "cpu": StepCost(host_s=0.15, per_token_s=7.5e-3),
}
"""For the published sizes. Large: near an H200's. Small: an estimate, by the rates in runner/device_class.py.
CPU: measured on two cores of a server, float32."""
_ONE_SHOT = StepCost(host_s=5e-3, per_token_s=2e-4)
"""The embedded voice on a core of the same server, a token being a phoneme."""


def assumed(kind: ModelKind, device: DeviceKind, lanes: int = 1) -> StepCost:
    """A class's own curve, for what was not measured."""
    return replace(_ITERATIVE[device] if kind == "iterative" else _ONE_SHOT, lanes=lanes)


def live_steps(work: Work) -> int:
    return UNKNOWN_STEPS if work.steps is None else work.steps


def remaining_tokens(work: Work, steps_done: int) -> int:
    """Tokens still to compute for a row: live steps left times tokens per step."""
    return max(live_steps(work) - steps_done, 0) * work.tokens


def backlog_s(tokens: float, tokens_per_s: float) -> float:
    """Seconds to work off that many tokens; 0 while no speed is known."""
    return tokens / tokens_per_s if tokens_per_s > 0 else 0.0
