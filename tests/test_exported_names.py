"""What a package offers is what its `__init__` imports, said once more in `__all__`; entry points resolve."""

from __future__ import annotations

import ast
import importlib
from importlib.metadata import distribution
from pathlib import Path

import pytest

from polychoir import __version__
from polychoir.models.base import ModelPlugin

SOURCE = Path(__file__).parents[1] / "src"
PACKAGES = sorted((SOURCE / "polychoir").rglob("__init__.py"))


def _offered(tree: ast.Module) -> set[str]:
    """Public names that an `__init__` takes from the package's own modules."""
    return {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("polychoir")
        for alias in node.names
    }


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: str(path.parent.relative_to(SOURCE)))
def test_all_is_sorted_and_true(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    module = importlib.import_module(".".join(path.parent.relative_to(SOURCE).parts))
    names = getattr(module, "__all__", None)
    if names is None:
        # A package that does work itself (the command line) offers its functions, not what it imports.
        defines = any(isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in tree.body)
        assert defines or not _offered(tree)
        return
    assert len(names) == len(set(names))
    assert all(hasattr(module, name) for name in names)
    assert _offered(tree) <= set(names)


@pytest.mark.parametrize("entry", distribution("polychoir").entry_points, ids=lambda entry: entry.name)
def test_entry_points_resolve(entry: importlib.metadata.EntryPoint) -> None:
    found = entry.load()
    if entry.group == "polychoir.models":
        assert isinstance(found, ModelPlugin)
    else:
        assert callable(found)


def test_the_version_is_that_of_the_distribution() -> None:
    assert distribution("polychoir").version == __version__
