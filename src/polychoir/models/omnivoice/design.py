"""Voice design: the few attributes the model understands, and how a request may write them.

Attributes stand between commas, at most one per category. English accents go with English attributes and
Chinese dialects with Chinese ones; all others exist in both languages and are written in that of the text.
Order is kept: it is part of what the model reads.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from polychoir.errors import InvalidRequest

_PAIRED: dict[str, dict[str, str]] = {
    "gender": {"male": "男", "female": "女"},
    "age": {
        "child": "儿童", "teenager": "少年", "young adult": "青年", "middle-aged": "中年", "elderly": "老年",
    },
    "pitch": {
        "very low pitch": "极低音调", "low pitch": "低音调", "moderate pitch": "中音调",
        "high pitch": "高音调", "very high pitch": "极高音调",
    },
    "style": {"whisper": "耳语"},
}  # fmt: skip
_ACCENTS = tuple(
    f"{place} accent"
    for place in (
        "american", "british", "australian", "chinese", "canadian",
        "indian", "korean", "portuguese", "russian", "japanese",
    )
)  # fmt: skip
_DIALECTS = tuple(
    f"{place}话"
    for place in (
        "河南", "陕西", "四川", "贵州", "云南", "桂林", "济南", "石家庄", "甘肃", "宁夏", "青岛", "东北",
    )
)  # fmt: skip

_TO_CHINESE = {english: chinese for pairs in _PAIRED.values() for english, chinese in pairs.items()}
_TO_ENGLISH = {chinese: english for english, chinese in _TO_CHINESE.items()}
_CATEGORY = {
    **{word: name for name, pairs in _PAIRED.items() for both in pairs.items() for word in both},
    **dict.fromkeys(_ACCENTS, "accent"),
    **dict.fromkeys(_DIALECTS, "dialect"),
}
ATTRIBUTES = tuple(_CATEGORY)
"""Every attribute, English and Chinese."""

_COMMA = re.compile(r"\s*[,，]\s*")
_IDEOGRAPH = re.compile("[\u4e00-\u9fff]")
_ECHO = 60


@dataclass(frozen=True, slots=True)
class Design:
    """What came of the instructions. `instruct` is what the model reads, None if nothing is left of them."""

    instruct: str | None
    ignored: tuple[str, ...] = ()
    """Items that could not be honoured, as they were written, and why."""


def resolve(instructions: str, *, chinese: bool) -> Design:
    """Keep what the model understands. `chinese`: the text has Chinese characters.

    Left out: what is no attribute, a second one of a category, and a dialect beside an accent (the first
    of the two wins).
    """
    kept: dict[str, str] = {}
    ignored: list[str] = []
    for item in _items(instructions):
        category = _CATEGORY.get(item.lower())
        problem = _unknown(item) if category is None else _conflict(kept, category)
        if category is None or problem:
            ignored.append(f"'{item[:_ECHO]}' {problem}")
        else:
            kept[category] = item.lower()
    return Design(_write(kept, chinese), tuple(ignored))


def resolve_strictly(instructions: str, *, chinese: bool, param: str = "instructions") -> Design:
    """The same, but anything that would be left out, or two languages mixed, is an InvalidRequest."""
    design = resolve(instructions, chinese=chinese)
    problems = list(design.ignored)
    languages = {bool(_IDEOGRAPH.search(item)) for item in _items(instructions) if item.lower() in _CATEGORY}
    if len(languages) > 1:
        problems.append("English and Chinese attributes are mixed")
    if problems:
        valid = ", ".join(ATTRIBUTES)
        raise InvalidRequest(f"{param}: {'; '.join(problems[:10])}. Valid attributes: {valid}", param=param)
    return design


def _items(instructions: str) -> list[str]:
    return [item for item in _COMMA.split(instructions.strip()) if item]


def _unknown(item: str) -> str:
    near = difflib.get_close_matches(item[:_ECHO].lower(), ATTRIBUTES, n=1, cutoff=0.6)
    return f"is not an attribute (did you mean '{near[0]}'?)" if near else "is not an attribute"


def _conflict(kept: dict[str, str], category: str) -> str | None:
    if category in kept:
        return f"is a second {category} beside '{kept[category]}'"
    other = {"accent": "dialect", "dialect": "accent"}.get(category, category)
    return f"does not go with the {other} '{kept[other]}'" if other in kept else None


def _write(kept: dict[str, str], chinese: bool) -> str | None:
    if "dialect" in kept:
        chinese = True
    elif "accent" in kept:
        chinese = False
    translation = _TO_CHINESE if chinese else _TO_ENGLISH
    words = [translation.get(word, word) for word in kept.values()]
    return ("，" if chinese else ", ").join(words) or None
