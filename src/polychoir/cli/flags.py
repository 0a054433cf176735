"""Flags made from a pydantic model, so that no setting and no request field is declared twice."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, get_args

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

P = ParamSpec("P")
R = TypeVar("R")

_NUMBERS = (bool, int, float)


def field_flags(
    model: type[BaseModel],
    *,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    notes: Mapping[str, str] | None = None,
    instead: Mapping[str, str] | None = None,
) -> list[inspect.Parameter]:
    """One optional flag for each field of `model`, in order. A flag that is not given is None.

    notes: words to put behind a field's help; instead: help for fields that mean something else here. A
    list field's flag can be repeated.
    """
    wanted = model.model_fields if only is None else only
    return [
        _flag(name, field, (instead or {}).get(name, _help(field)) + (notes or {}).get(name, "") + ".")
        for name, field in model.model_fields.items()
        if name in wanted and name not in without
    ]


def hidden_flags(names: Iterable[str]) -> list[inspect.Parameter]:
    """Flags that are understood and not shown."""
    return [_parameter(name, str | None, typer.Option("--" + _hyphens(name), hidden=True)) for name in names]


def with_flags(*flags: inspect.Parameter) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a command these flags; it receives them in its own **keywords."""

    def decorate(command: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *flags)]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


def given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that were on the command line."""
    return {name: value for name, value in flags.items() if value not in (None, [], ())}


def _flag(name: str, field: FieldInfo, text: str) -> inspect.Parameter:
    extra = field.json_schema_extra
    older = extra["aliases"] if isinstance(extra, dict) else []
    kind = _kind(field)
    spellings = ["--" + _hyphens(str(one)) for one in (name, *_listed(older))]
    if kind == bool | None:
        spellings = [f"{one}/--no-{one.removeprefix('--')}" for one in spellings]
    option = typer.Option(*spellings, help=text, show_default=False)
    return _parameter(name, kind, option)


def _kind(field: FieldInfo) -> Any:
    """The type by which the command line reads a field; what it cannot say is left to the model."""
    parts = [part for part in get_args(field.annotation) if part is not type(None)]
    alone = field.annotation if not parts else parts[0] if len(parts) == 1 else None
    if str(field.annotation).startswith("tuple"):
        return list[str] | None
    if alone in _NUMBERS:
        return alone | None
    return Path | None if alone is Path else str | None


def _help(field: FieldInfo) -> str:
    text = (field.description or "").rstrip(".")
    default = field.get_default()
    if not field.is_required() and default not in (None, False, ()):
        words = ", ".join(default) if isinstance(default, tuple) else default
        text += f" [{'on' if words is True else words}]"
    return text


def _parameter(name: str, kind: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def _hyphens(name: str) -> str:
    return name.replace("_", "-")


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else []
