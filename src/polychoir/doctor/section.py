"""What a check found out: facts in sections, the same for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fact:
    """One line. The name ends in its unit where it has one; a value of None could not be found out."""

    name: str
    value: str | int | float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """The facts of one check. broken: something that a start would fail on."""

    title: str
    facts: tuple[Fact, ...]
    broken: bool = False


def as_text(sections: Iterable[Section]) -> str:
    return "\n\n".join("\n".join((section.title, *_lines(section))) for section in sections)


def as_record(sections: Iterable[Section]) -> dict[str, Any]:
    """For JSON: section -> fact -> value and why."""
    return {
        section.title: {fact.name: {"value": fact.value, "why": fact.why} for fact in section.facts}
        for section in sections
    }


def _lines(section: Section) -> list[str]:
    names = max(len(fact.name) for fact in section.facts)
    values = max(len(_said(fact)) for fact in section.facts if fact.why) if _any_why(section) else 0
    return [f"  {fact.name:<{names}}  {_said(fact):<{values}}  {fact.why}".rstrip() for fact in section.facts]


def _any_why(section: Section) -> bool:
    return any(fact.why for fact in section.facts)


def _said(fact: Fact) -> str:
    if isinstance(fact.value, float):
        return f"{fact.value:.4g}"
    return "unknown" if fact.value is None else str(fact.value)
