"""The entry points `hibari` (the embedded voice) and `vits` (a voice from a file).

Nothing heavy is imported before `load`: a command that only lists models must not wait for ONNX Runtime.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

from polychoir.errors import ModelLoadError
from polychoir.models.base import Model, Runner
from polychoir.models.onnx_voice.hibari.frontend import HibariFrontend
from polychoir.models.onnx_voice.session import device
from polychoir.models.onnx_voice.vits.config import VitsConfig
from polychoir.models.onnx_voice.vits.frontend import Phonemizer, VitsFrontend
from polychoir.models.placement import check_cpu_only, log_cpu_only
from polychoir.runner.cpu import cores
from polychoir.runner.threaded import Outbox, ThreadedRunner
from polychoir.types import ModelInfo, ModelOptions

HIBARI_PACKAGE, HIBARI_VERSION = "hibari-tts", "0.2."
PHONEMIZERS = "polychoir.phonemizers"
"""Entry-point group: `espeak = package.module:function`, a `vits.frontend.Phonemizer`. None is ours: the
usual one is GPL."""

_GET_VOICE = 'pip install "polychoir[voice]"'
_GET_RUNTIME = 'pip install "polychoir[onnx]"'


@dataclass(frozen=True, slots=True)
class HibariModel:
    """The embedded voice, found and not loaded."""

    info: ModelInfo
    frontend: HibariFrontend
    threads: int

    def load(self, wake: Callable[[], None]) -> Runner:
        from polychoir.models.onnx_voice.hibari.stage import load_stage

        log_cpu_only(self.info.name)
        trials = self.frontend.trials()  # loads the dictionaries: readiness is true of the first request too
        place = device(self.threads)
        return ThreadedRunner(load_stage(), self.threads, Outbox(wake), device=place, trials=trials)


class HibariPlugin:
    """The embedded voice needs no path: it is an installed package."""

    def claims(self, reference: str) -> bool:
        return reference in ("hibari", HIBARI_PACKAGE)

    def open(self, reference: str | None, options: ModelOptions) -> Model:
        check_cpu_only("hibari", options)
        _need("hibari", f"the embedded voice is not installed: {_GET_VOICE}")
        _need("onnxruntime", f"the embedded voice needs ONNX Runtime: {_GET_VOICE}")
        info = _hibari_info(options, _hibari_version())
        threads = options.max_concurrent_plans or info.default_concurrent_plans
        return HibariModel(info, HibariFrontend(info), threads)


def _hibari_info(options: ModelOptions, version: str) -> ModelInfo:
    return ModelInfo(
        name=options.name or "hibari",
        kind="one_shot",
        sample_rate=24_000,
        languages=("en",),
        voices=("heart",),
        # Its own text side writes out numbers and abbreviations, and cannot be told not to.
        fields=frozenset({"speed", "seed", "language", "normalize_text"}),
        speed_range=(0.5, 2.0),
        max_rows=1,
        default_concurrent_plans=cores(),
        license="Apache-2.0",
        source="hibari-tts 0.2.1",
        fingerprint=version,
    )


def _hibari_version() -> str:
    """The stage uses parts of the package that its authors may move in the next minor version."""
    try:
        found = version(HIBARI_PACKAGE)
    except PackageNotFoundError:
        found = "none"
    if not found.startswith(HIBARI_VERSION):
        raise ModelLoadError(
            f"the embedded voice needs {HIBARI_PACKAGE} {HIBARI_VERSION}x, found {found}: {_GET_VOICE}"
        )
    return found


@dataclass(frozen=True, slots=True)
class VitsModel:
    """A VITS voice, found and checked, not loaded."""

    info: ModelInfo
    frontend: VitsFrontend
    weights: Path
    threads: int

    def load(self, wake: Callable[[], None]) -> Runner:
        from polychoir.models.onnx_voice.vits.stage import load_stage

        log_cpu_only(self.info.name)
        stage, place = load_stage(self.weights), device(self.threads)
        return ThreadedRunner(stage, self.threads, Outbox(wake), device=place, trials=self.frontend.trials())


class VitsPlugin:
    """Claims an .onnx file that has its .onnx.json beside it. `phonemizers` finds one by name."""

    def __init__(self, phonemizers: Callable[[str], Phonemizer | None]) -> None:
        self._phonemizers = phonemizers

    def claims(self, reference: str) -> bool:
        return reference.endswith(".onnx") and _settings_of(reference).is_file()

    def open(self, reference: str | None, options: ModelOptions) -> Model:
        if reference is None:
            raise ModelLoadError(
                "a VITS voice is named by its file: path/to/voice.onnx, with voice.onnx.json beside it"
            )
        weights = Path(reference)
        check_cpu_only(weights.stem, options)
        if not weights.is_file():
            raise ModelLoadError(f"{weights}: there is no such file")
        _need("onnxruntime", f"a VITS voice needs ONNX Runtime: {_GET_RUNTIME}")
        config = VitsConfig.read(_settings_of(reference))
        info = _vits_info(weights, config, options)
        frontend = VitsFrontend(info, config, self._phonemizer(weights, config))
        threads = options.max_concurrent_plans or info.default_concurrent_plans
        return VitsModel(info, frontend, weights, threads)

    def _phonemizer(self, weights: Path, config: VitsConfig) -> Phonemizer | None:
        if config.phoneme_type == "text":
            return None
        phonemizer = self._phonemizers(config.phoneme_type)
        if phonemizer is None:
            raise ModelLoadError(
                f"{weights}: needs the phonemiser {config.phoneme_type!r}, and no installed package offers "
                f"it (entry-point group {PHONEMIZERS})"
            )
        return phonemizer


def _vits_info(weights: Path, config: VitsConfig, options: ModelOptions) -> ModelInfo:
    return ModelInfo(
        name=options.name or weights.stem,
        kind="one_shot",
        sample_rate=config.sample_rate,
        languages=(config.language,),
        voices=tuple(sorted(config.speakers, key=lambda name: config.speakers[name])) or (weights.stem,),
        # Any seed is honoured, for the voice draws no noise (vits/stage.py).
        fields=frozenset({"speed", "seed", "language"}),
        default_concurrent_plans=cores(),
        source=str(weights),
        license="see the voice's own card",
        # Weights of one size take equally long, whatever they hold.
        fingerprint=f"{weights.stat().st_size} bytes, pace {config.length_scale:g}",
    )


def _settings_of(reference: str) -> Path:
    return Path(f"{reference}.json")


def _installed_phonemizer(name: str) -> Phonemizer | None:
    """Raises ModelLoadError if the package that offers it cannot be imported."""
    for entry in entry_points(group=PHONEMIZERS, name=name):
        try:
            phonemizer: Phonemizer = entry.load()
        except (ImportError, AttributeError) as error:
            raise ModelLoadError(f"the phonemiser {name!r} cannot be imported: {error}") from error
        return phonemizer
    return None


def _need(package: str, otherwise: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ModelLoadError(otherwise)


hibari = HibariPlugin()
vits = VitsPlugin(_installed_phonemizer)
