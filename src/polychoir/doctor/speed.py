"""What a model's steps cost here, where that is known from, and the sizes that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from polychoir.assembly import calibration, open_with_limits
from polychoir.config import ModelReference, Settings
from polychoir.doctor.section import Fact, Section
from polychoir.engine.calibrate import calibrated, date_of, identity_of, lanes_of
from polychoir.engine.cost import KNEE_SHARE, StepCost, assumed
from polychoir.engine.curve import Curve
from polychoir.engine.curve_store import CurveStore
from polychoir.engine.plan import Limits, fitted
from polychoir.errors import PolychoirError
from polychoir.models.base import Model
from polychoir.types import Chunk, DeviceKind, ModelInfo, SpeechRequest, VoiceChoice

TEXT = "The harbour was quiet this morning, and only two boats had gone out before it was light."
SECONDS = 5.0
"""Of the request whose time is predicted, where a model can be told; else as long as TEXT takes it."""


@dataclass(frozen=True, slots=True)
class _Case:
    """A model with what its engine would run by."""

    model: Model
    limits: Limits
    curve: Curve
    settings: Settings

    @property
    def info(self) -> ModelInfo:
        return self.model.info

    @property
    def cost(self) -> StepCost:
        return self.curve.cost


def model_section(reference: ModelReference, settings: Settings, likely: DeviceKind) -> Section:
    """One model. With `recalibrate` it is loaded and measured; else what is kept is read, or a default."""
    title = f"model {reference.name or reference.reference}"
    try:
        model, limits = open_with_limits(reference, settings)
        curve = _curve(model, limits, settings, likely)
    except PolychoirError as error:
        return Section(title, (Fact("not ready", error.message),), broken=True)
    tokens = settings.max_num_batched_tokens or curve.step_tokens
    case = _Case(model, fitted(limits, tokens), curve, settings)
    return Section(
        title,
        (
            Fact("kind", model.info.kind, model.info.source),
            Fact("steps cost as", *_origin(curve)),
            Fact("device", curve.identity.device),
            *_terms(case),
            *_sizes(case),
            *_predictions(case),
        ),
    )


def _curve(model: Model, limits: Limits, settings: Settings, likely: DeviceKind) -> Curve:
    lanes, how = lanes_of(model.info, limits), calibration(settings)
    if settings.recalibrate:
        runner = model.load(lambda: None)
        try:
            return calibrated(runner, model.info, limits, how)
        finally:
            runner.close()
    for kept in CurveStore(Path(how.folder or "")).all():
        if kept.identity == identity_of(model.info, kept.identity.device):
            return replace(kept, cost=replace(kept.cost, lanes=lanes))
    return Curve(assumed(model.info.kind, likely, lanes), "default", identity_of(model.info, likely))


def _origin(curve: Curve) -> tuple[str, str]:
    if curve.origin == "measured":
        return "measured now", ""
    if curve.origin == "kept":
        return f"measured {date_of(curve)}", "at an earlier start; --recalibrate measures again"
    return "default for its class", "not measured here yet: the first start does it, or --recalibrate"


def _terms(case: _Case) -> tuple[Fact, ...]:
    cost = case.cost
    return (
        Fact("host_s", cost.host_s, "of every step"),
        Fact("floor_s", cost.floor_s, "more, at least"),
        Fact("per_token_s", cost.per_token_s),
        Fact("per_square_s", cost.per_square_s, "times the sum of length squared: attention"),
        Fact("decode_s", cost.decode_s, "from a row's last step to its audio"),
        Fact("lanes", cost.lanes, "steps at the same time"),
        Fact("knee_tokens", cost.knee, f"where steps reach {KNEE_SHARE:.0%} of the most tokens a second"),
    )


def _sizes(case: _Case) -> tuple[Fact, ...]:
    limits = case.limits
    return (
        Fact("max_num_batched_tokens", limits.max_num_batched_tokens, _why_tokens(case)),
        Fact("max_num_seqs", limits.max_num_seqs, _why_rows(case)),
        Fact("max_resident_seqs", limits.max_resident_seqs, _why_resident(case)),
        Fact("max_concurrent_plans", limits.max_concurrent_plans, _why_plans(case)),
    )


def _why_tokens(case: _Case) -> str:
    whence = "the model's own figure"
    if case.settings.max_num_batched_tokens is not None:
        whence = "the setting"
    elif case.curve.step_tokens is not None:
        whence = "what suits the device"
    share = case.cost.pace(case.limits.max_num_batched_tokens) * case.cost.per_token_s / case.cost.lanes
    return f"{whence}; reaches {share:.1%} of the most tokens a second"


def _why_rows(case: _Case) -> str:
    wanted = case.settings.max_num_seqs
    if not case.settings.batch:
        return "--no-batch"
    if case.info.max_rows == case.limits.max_num_seqs != wanted:
        return "a plan of this model holds no more"
    return f"default of {case.info.kind} models" if wanted is None else "the setting"


def _why_resident(case: _Case) -> str:
    if not case.settings.batch:
        return "--no-batch"
    if case.settings.max_resident_seqs is not None:
        return "the setting"
    limits = case.limits
    if limits.max_resident_seqs == 4 * limits.max_num_seqs:
        return "4 times max_num_seqs: paused rows keep their place"
    return "the rows of all plans in flight"


def _why_plans(case: _Case) -> str:
    if not case.settings.batch:
        return "--no-batch"
    if case.info.kind == "iterative":
        return "as many steps as this model has use for in flight"
    return "the cores here" if case.settings.max_concurrent_plans is None else "the setting"


def _predictions(case: _Case) -> tuple[Fact, ...]:
    cost = case.cost
    pace = Fact("tokens_per_s", cost.pace(cost.knee), "predicted, in steps at the knee")
    try:
        chunks = _request(case.model)
    except PolychoirError as error:
        return pace, Fact("request_alone_s", None, f"this model refuses the sample text: {error.message}")
    spoken, alone = sum(chunk.estimated_s for chunk in chunks), _alone_s(case, chunks)
    facts = (pace, Fact("request_alone_s", alone, f"predicted for {spoken:.1f} s of speech"))
    if case.info.kind == "iterative":
        return facts
    tokens, chars = sum(chunk.work.tokens for chunk in chunks), sum(len(chunk.text) for chunk in chunks)
    seconds = sum(cost.seconds(chunk.work.tokens, chunk.work.squares) for chunk in chunks)
    return (
        *facts,
        Fact("per_character_s", seconds / chars, f"a character, on one of {cost.lanes} threads"),
        Fact("per_token_and_host_s", seconds / tokens, "a token (phoneme), the constant part shared out"),
    )


def _request(model: Model) -> tuple[Chunk, ...]:
    """A request of about SECONDS. Raises as the model's frontend does."""
    duration = SECONDS if "duration" in model.info.fields else None
    request = SpeechRequest("doctor", TEXT, seed=1, duration=duration)
    return model.frontend.prepare(request, VoiceChoice("auto")).chunks


def _alone_s(case: _Case, chunks: tuple[Chunk, ...]) -> float:
    """An iterative model steps all chunks together; a one-shot model makes one on each lane."""
    cost, works = case.cost, [chunk.work for chunk in chunks]
    if case.info.kind == "iterative":
        steps = max(work.steps or 0 for work in works)
        tokens, squares = sum(work.tokens for work in works), sum(work.squares for work in works)
        return steps * cost.seconds(tokens, squares) + cost.decode_s
    whole = sum(cost.seconds(work.tokens, work.squares) for work in works)
    return whole / min(cost.lanes, len(works)) + cost.decode_s
