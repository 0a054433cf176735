"""The arrows of docs/architecture.md, read from the source: who may import whom.

Imports inside functions and under TYPE_CHECKING count as well. A second part starts fresh interpreters to
see that the light side of the house really comes up without the heavy packages.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = "polychoir"

TENSORS = frozenset({"torch", "triton", "transformers", "onnxruntime", "safetensors", "hibari"})
WEB = frozenset({"fastapi", "starlette", "uvicorn", "httptools"})
CLOCKS = frozenset({"asyncio", "threading", "time", "random", "logging", "structlog", "datetime"})


@dataclass(frozen=True)
class Layer:
    """`ours`: prefixes inside the package that may be imported. `never`: packages outside that may not."""

    ours: frozenset[str]
    never: frozenset[str] = frozenset()


def _layer(ours: str, never: frozenset[str] = frozenset()) -> Layer:
    return Layer(frozenset(ours.split()), never)


PURE = (
    "sequence", "scheduler", "plan", "cost", "calibration", "demand", "urgency", "admission", "ready",
    "backlog", "batch", "shares", "step_size", "curve", "refinement", "eviction",
)  # fmt: skip
"""Files of the engine that decide: plain data in, plain data out."""

LAYERS = {
    "errors": _layer("", TENSORS | WEB | CLOCKS | {"numpy", "pydantic"}),
    "types": _layer("", TENSORS | WEB | CLOCKS | {"pydantic"}),
    "config": _layer("types errors config", TENSORS | WEB | {"numpy"}),
    "text": _layer("types errors models.base text", TENSORS | WEB),
    "audio": _layer("types errors models.base audio", TENSORS | WEB),
    "voices": _layer("types errors models.base voices", TENSORS | WEB),
    "engine": _layer("types errors models.base engine", TENSORS | WEB),
    **{
        f"engine.{part}": _layer(
            " ".join(["types errors", *(f"engine.{other}" for other in PURE)]),
            TENSORS | WEB | CLOCKS,
        )
        for part in PURE
    },
    "cluster": _layer("types errors engine models.base models.registry cluster", TENSORS | WEB),
    "kernels": _layer("types errors kernels", WEB | {"asyncio", "onnxruntime"}),
    "runner": _layer("types errors models kernels runner engine.plan", WEB | {"asyncio"}),
    "models": _layer(
        "types errors models kernels runner text audio.decode audio.resample", WEB | {"asyncio"}
    ),
    "fit": _layer("types errors", TENSORS | WEB | CLOCKS | {"numpy"}),
    "lanes": _layer("errors", TENSORS | WEB),
    "pipeline": _layer("types errors fit lanes engine models.base text audio voices", TENSORS | WEB),
    "assembly": _layer(
        "types errors config engine cluster models.base models.registry lanes pipeline voices text audio",
        TENSORS | WEB,
    ),
    "doctor": _layer(
        "types errors config engine assembly models.base runner.cpu doctor", TENSORS | WEB | {"asyncio"}
    ),
    "bench": _layer("types errors engine models.base models.registry bench", TENSORS | WEB),
    "server": _layer(
        "types errors config engine.engine engine.core pipeline assembly text audio voices "
        "models.registry models.base server",
        TENSORS,
    ),
    "cli": _layer(
        "types errors config pipeline assembly audio voices models.registry models.base server bench "
        "doctor cli",
        TENSORS | {"fastapi", "starlette", "uvicorn"},
    ),
    "__main__": _layer("cli"),
}

LIGHT = (
    "polychoir.cli",
    "polychoir.config",
    "polychoir.pipeline",
    "polychoir.assembly",
    "polychoir.doctor.examine",
    "polychoir.cluster.engine",
    "polychoir.cluster.worker",
    "polychoir.server.app",
    "polychoir.server.run",
    "polychoir.models.registry",
    "polychoir.models.fake",
    "polychoir.models.onnx_voice.plugin",
    "polychoir.models.omnivoice.plugin",
    "polychoir.models.omnivoice.frontend",
)
"""Modules that run in the API process: a CPU install with an ONNX voice has no tensor library at all."""


def _modules() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted((SOURCE / PACKAGE).rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


def _imports(module: str) -> set[str]:
    """Every module that `module` imports, as far down as it can be named."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                longer = f"{base}.{alias.name}"
                found.add(longer if longer in MODULES else base)
    return found


def _layer_of(module: str) -> Layer:
    name = module.removeprefix(PACKAGE).removeprefix(".")
    while name not in LAYERS:
        name = name.rpartition(".")[0]
        assert name, f"{module} belongs to no layer: draw its arrows in LAYERS"
    return LAYERS[name]


def _under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


@pytest.mark.parametrize("module", sorted(set(MODULES) - {PACKAGE}))
def test_arrows(module: str) -> None:
    layer = _layer_of(module)
    for imported in sorted(_imports(module)):
        if _under(imported, PACKAGE):
            name = imported.removeprefix(PACKAGE).removeprefix(".")
            # The bare package holds the version and nothing else.
            allowed = not name or any(_under(name, prefix) for prefix in layer.ours)
            assert allowed, f"{module} may not import {imported}"
        else:
            assert imported.split(".")[0] not in layer.never, f"{module} may not import {imported}"


def test_the_version_is_all_that_the_package_itself_holds() -> None:
    assert _imports(PACKAGE) == {"__future__"}


def test_only_types_names_an_array_and_only_for_the_type_checker() -> None:
    tree = ast.parse(MODULES["polychoir.types"].read_text(encoding="utf-8"))
    at_run_time = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not [node for node in at_run_time if "numpy" in ast.dump(node)]


@pytest.mark.parametrize("module", LIGHT)
def test_the_light_side_comes_up_without_the_heavy_packages(module: str) -> None:
    heavy = _loaded_by(module) & TENSORS
    assert not heavy, f"importing {module} loads {sorted(heavy)}"


def test_the_command_line_comes_up_without_a_web_framework() -> None:
    """`--help` and `say` should be quick."""
    assert not _loaded_by("polychoir.cli") & (WEB | {"numpy", "av"})


def _loaded_by(module: str) -> set[str]:
    code = f"import {module}, sys; print(*(name for name in sys.modules if '.' not in name))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())
