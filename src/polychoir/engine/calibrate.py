"""How an engine comes to its cost curve: kept from an earlier start, measured now, or a default.

Done once, between loading and readiness, in the engine's thread.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path

from polychoir import __version__
from polychoir.engine.calibration import fit
from polychoir.engine.cost import StepCost, assumed
from polychoir.engine.curve import Curve, Identity
from polychoir.engine.curve_store import CurveStore
from polychoir.engine.plan import Limits
from polychoir.models.base import Runner
from polychoir.types import ModelInfo

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Whether curves are kept, and which of the kept ones count.

    folder: where they are; None: nowhere, so every start measures. not_before: Unix seconds; a curve that
    was measured earlier is measured again. A moment and not a switch, so that a worker that is started
    again, and its neighbour on an equal device, take what this very start has measured.
    """

    folder: str | None = None
    not_before: float = 0.0


def lanes_of(info: ModelInfo, limits: Limits) -> int:
    """Steps that run at the same time: an iterative model's wait for each other, however many are queued."""
    return 1 if info.kind == "iterative" else limits.max_concurrent_plans


def identity_of(info: ModelInfo, device: str) -> Identity:
    return Identity(info.source or info.name, info.fingerprint, device, __version__)


def calibrated(runner: Runner, info: ModelInfo, limits: Limits, how: Calibration | None) -> Curve:
    """The curve of this runner. how: None takes the default for its class of device without measuring."""
    lanes, identity = lanes_of(info, limits), identity_of(info, runner.device.name)
    if how is None:
        return _default(runner, info, identity, lanes)
    store = None if how.folder is None else CurveStore(Path(how.folder))
    kept = None if store is None else store.read(identity)
    if kept is not None and kept.measured_at >= how.not_before:
        _log.info("%s: step costs as measured on %s: %s", info.name, date_of(kept), _said(kept.cost))
        return replace(kept, cost=replace(kept.cost, lanes=lanes))
    curve = _measured(runner, info, identity, lanes)
    if store is not None and curve.origin == "measured":
        store.write(curve)
    return curve


def date_of(curve: Curve) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(curve.measured_at))


def _measured(runner: Runner, info: ModelInfo, identity: Identity, lanes: int) -> Curve:
    started = time.perf_counter()
    found = runner.measure()
    try:
        cost = fit(found.samples, decode_s=found.decode_s, lanes=lanes)
    except ValueError as error:
        _log.warning(
            "%s: step costs were not measured (%s): a default for its kind of device", info.name, error
        )
        return _default(runner, info, identity, lanes)
    _log.info("%s: step costs measured in %.1f s: %s", info.name, time.perf_counter() - started, _said(cost))
    return Curve(cost, "measured", identity, time.time(), runner.step_tokens, found.samples)


def _default(runner: Runner, info: ModelInfo, identity: Identity, lanes: int) -> Curve:
    cost = assumed(info.kind, runner.device.kind, lanes)
    return Curve(cost, "default", identity, step_tokens=runner.step_tokens)


def _said(cost: StepCost) -> str:
    return (
        f"{cost.host_s * 1e3:.3g} ms and {cost.per_token_s * 1e6:.3g} us a token, knee at {cost.knee} tokens"
    )
