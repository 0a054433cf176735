"""Files near 200 lines, functions near 10; past 400 and 60 a line `# long: why` says why.

Size is an aim and not a law, so what is over it without a reason is reported as an expected failure.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE_LINES = 400
FUNCTION_LINES = 60
REASON = "# long:"


def oversized(name: str, source: str) -> Iterator[str]:
    """What in a source is past its size and does not say why."""
    lines = source.splitlines()
    if len(lines) > FILE_LINES and not any(line.startswith(REASON) for line in lines):
        yield f"{name} has {len(lines)} lines"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None:
            body = lines[node.lineno - 1 : node.end_lineno]
            if len(body) > FUNCTION_LINES and not any(REASON in line for line in body):
                yield f"{name}: {node.name} has {len(body)} lines"


def test_sizes() -> None:
    files = sorted((ROOT / "src").rglob("*.py")) + sorted((ROOT / "tests").rglob("*.py"))
    assert len(files) > 20
    found = [
        item
        for path in files
        for item in oversized(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    ]
    if found:
        pytest.xfail("; ".join(found))


def test_the_measure_itself() -> None:
    long_function = "def f():\n" + "    pass\n" * FUNCTION_LINES
    assert list(oversized("a.py", long_function)) == ["a.py: f has 61 lines"]
    assert not list(oversized("a.py", long_function.replace("():", "():  # long: a table")))
    assert list(oversized("a.py", "x = 1\n" * 401)) == ["a.py has 401 lines"]
    assert not list(oversized("a.py", "# long: data\n" + "x = 1\n" * 401))
