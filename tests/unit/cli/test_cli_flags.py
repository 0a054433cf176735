from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field

from polychoir.cli.flags import field_flags, given, with_flags
from polychoir.cli.say import say
from polychoir.cli.serve import serve
from polychoir.config import Settings
from polychoir.config.sources import aliases
from polychoir.config.unbuilt import UNBUILT
from polychoir.server.schemas import SpeechBody

Run = Callable[..., Any]


def _spelled(name: str) -> str:
    return "--" + name.replace("_", "-")


def test_every_setting_is_a_flag_of_serve_and_every_alias_a_spelling(run: Run) -> None:
    words = set(run("serve", "--help").out.replace(",", " ").split())
    assert {_spelled(name) for name in (*Settings.model_fields, *aliases())} <= words


def test_every_request_field_is_a_flag_of_say(run: Run) -> None:
    words = set(run("say", "--help").out.replace(",", " ").split())
    assert {_spelled(name) for name in SpeechBody.model_fields if name != "input"} <= words
    assert "--no-postprocess-output" in words


def test_help_says_what_is_not_built(run: Run) -> None:
    text = " ".join(run("serve", "--help").out.split())
    assert text.count("(not built yet)") == len(UNBUILT)


def test_flags_that_are_not_given_leave_no_trace() -> None:
    commands: list[Callable[..., Any]] = [serve, say]
    for command in commands:
        flags = inspect.signature(command).parameters
        assert all(flags[name].default is None for name in flags if name not in ("text", "output"))
    assert given({"a": None, "b": [], "c": 0, "d": False, "e": ""}) == {"c": 0, "d": False, "e": ""}


class Sample(BaseModel):
    """One field of each kind that a flag can be made of."""

    switch: bool = False
    count: int | None = Field(None, description="How many.", json_schema_extra={"aliases": ["number"]})
    share: float = Field(0.5, description="Which part")
    names: tuple[str, ...] = ()
    either: str | int = "auto"


def test_kinds_spellings_and_help() -> None:
    flags = {flag.name: flag.annotation for flag in field_flags(Sample, notes={"count": " (soon)"})}
    kinds = {name: annotation.__origin__ for name, annotation in flags.items()}
    assert kinds == {
        "switch": bool | None,
        "count": int | None,
        "share": float | None,
        "names": list[str] | None,
        "either": str | None,
    }
    options = {name: annotation.__metadata__[0] for name, annotation in flags.items()}
    assert (options["switch"].default, options["switch"].param_decls) == ("--switch/--no-switch", ())
    assert (options["count"].default, options["count"].param_decls) == ("--count", ("--number",))
    assert options["count"].help == "How many (soon)."
    assert options["share"].help == "Which part [0.5]."


def test_a_selection_keeps_the_order_of_the_model() -> None:
    assert [f.name for f in field_flags(Sample, only=("names", "switch"))] == ["switch", "names"]
    assert [f.name for f in field_flags(Sample, without=("names", "switch"))] == ["count", "share", "either"]


@pytest.mark.parametrize("name", ["count", "names"])
def test_a_command_receives_its_flags_as_keywords(name: str) -> None:
    @with_flags(*field_flags(Sample, only=(name,)))
    def command(own: int = 1, **flags: Any) -> dict[str, Any]:
        return {"own": own, **flags}

    assert list(inspect.signature(command).parameters) == ["own", name]
    assert command(own=2, **{name: 3}) == {"own": 2, name: 3}
