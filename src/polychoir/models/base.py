"""The contract between the server and a model. Three protocols, in the order in which they are met.

ModelPlugin   what the entry-point group `polychoir.models` names: finds and checks a checkpoint, quickly
Model         a checked model that is not loaded: its card, its frontend, and how to load it
Runner        the loaded thing: takes step plans, gives results

A plugin's module and its frontend import no torch: they run in the API process. `Model.load` is called
in the engine's thread or worker, and only there may anything heavy be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from polychoir.types import (
    Chunk,
    Device,
    Measured,
    ModelInfo,
    ModelOptions,
    Prepared,
    SpeechRequest,
    StepPlan,
    StepResult,
    VoiceChoice,
)


class Frontend(Protocol):
    """Text side of a model: pure functions, called from a thread pool."""

    def prepare(self, request: SpeechRequest, voice: VoiceChoice) -> Prepared:
        """Validate against the model and make chunks: the exact work is known from here on.

        What the card says has been checked (`fit.py`). Raises InvalidRequest (with `param`) for anything
        else this model cannot honour, UnspeakableText when nothing is left to say. Never returns zero
        chunks.
        """
        ...


class Runner(Protocol):
    """Executes plans. All methods are called from the engine's thread; none waits but `measure` and `close`.

    step_tokens: the largest step that pays on this device, known once it is loaded; None: the limit stays.
    device: what it runs on.
    """

    step_tokens: int | None
    device: Device

    def measure(self) -> Measured:
        """Time steps of its own making, on rows that exist for nothing else and leave nothing behind.

        Called at most once, after loading and before the first plan. Takes seconds at most.
        """
        ...

    def prepare(self, seq_id: int, chunk: Chunk) -> bool:
        """Told once of every row on arrival. True: it can run at once. False: something has to be made for it
        first (a clip encoded); `StepResult.prepared` names it later, or an output with its error does."""
        ...

    def submit(self, plan: StepPlan) -> None:
        """Start a plan. The engine keeps at most `max_concurrent_plans` in flight."""
        ...

    def poll(self) -> Sequence[StepResult]:
        """Results since the last call, oldest first. Every submitted plan yields exactly one result with
        its id; every row that has had its last step yields exactly one SequenceOutput, then or later.
        Calls `wake` (given to `Model.load`) whenever there is news."""
        ...

    def drop(self, seq_id: int) -> None:
        """The row has left (client gone): free its slot once nothing in flight uses it. No output follows
        except what was already on its way."""
        ...

    def close(self) -> None:
        """Finish what is in flight and free everything. May wait."""
        ...


class Model(Protocol):
    """A model that has been found and checked, but not loaded."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def frontend(self) -> Frontend: ...

    def load(self, wake: Callable[[], None]) -> Runner:
        """Load weights and warm up; takes as long as it takes. `wake` is safe from any thread.

        Logs one line: device and number format, resolved. Raises ModelLoadError.
        """
        ...


@runtime_checkable
class ModelPlugin(Protocol):
    """What an entry point of the group `polychoir.models` resolves to."""

    def claims(self, reference: str) -> bool:
        """True if `reference` (a path or a hub id) is a checkpoint of this kind. Quick, local, no network."""
        ...

    def open(self, reference: str | None, options: ModelOptions) -> Model:
        """Find and check a checkpoint in seconds. `reference` is None when the user gave the plugin's name.

        Raises ModelLoadError that says what is missing and where it was looked for.
        """
        ...
