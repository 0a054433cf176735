"""What README and docs say is tried: commands, snippets, links, and the tables against the code."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from polychoir.cli import main
from polychoir.config import Settings
from polychoir.config.sources import aliases
from polychoir.config.unbuilt import UNBUILT
from polychoir.server.errors import STATUS
from polychoir.server.headers import EXPOSED
from polychoir.server.schemas import FIELD_NAMES
from support.serving import listening, make_app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RUNNING = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
ADDRESS = "http://127.0.0.1:8000"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def _commands() -> list[list[str]]:
    lines = "\n".join(_blocks("sh")).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


COMMANDS = _commands()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server as README's first command starts it, with the embedded voice."""
    app = make_app(tmp_path_factory.mktemp("data"), model=Settings().model)
    with listening(app) as url:
        yield url


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYCHOIR_DATA_DIR", str(tmp_path / "data"))


def test_readme_has_the_commands_it_should() -> None:
    assert {words[0] for words in COMMANDS} == {"scripts/serve", "scripts/test", "curl", "polychoir"}


@pytest.mark.parametrize(
    "name", ["scripts/serve", "scripts/test", "scripts/check", "scripts/bench", ".ci/run"]
)
def test_scripts_are_there_and_can_be_run(name: str) -> None:
    assert os.access(ROOT / name, os.X_OK)
    assert (ROOT / name).read_text(encoding="utf-8").startswith("#!/usr/bin/env bash\n")


@pytest.mark.parametrize(
    "words", [words for words in COMMANDS if words[0] == "polychoir"], ids=lambda words: " ".join(words[:3])
)
def test_the_command_line_of_readme(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Serving itself is left out: it has its own tests. The settings are read, the rest is run."""
    started: list[Settings] = []
    monkeypatch.setattr("polychoir.server.run.serve", started.append)
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="0"):
        main()
    assert len(started) == (words[1] == "serve")
    if words[1] == "say":
        assert (tmp_path / words[words.index("-o") + 1]).stat().st_size > 24_000


def test_the_curl_line_of_readme(address: str) -> None:
    (words,) = [words for words in COMMANDS if words[0] == "curl"]
    url = words[1].replace(ADDRESS, address)
    header, _, value = words[words.index("-H") + 1].partition(": ")
    body = words[words.index("-d") + 1]
    answer = httpx.post(url, headers={header: value}, content=body, timeout=60)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "audio/mpeg")
    assert float(answer.headers["x-audio-duration-s"]) > 0.5


def test_the_python_snippet_of_readme(address: str, tmp_path: Path) -> None:
    (snippet,) = _blocks("python")
    names: dict[str, Any] = {}
    exec(compile(snippet.replace(ADDRESS, address), "README.md", "exec"), names)
    names["client"].close()
    written = (tmp_path / "fox.wav").read_bytes()
    assert written[:4] == b"RIFF"
    assert len(written) > 24_000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_pages_keep_to_their_length() -> None:
    assert len((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines()) <= 100
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 60


@pytest.mark.parametrize("name", Settings.model_fields)
def test_running_lists_every_setting_as_it_is(name: str) -> None:
    field = Settings.model_fields[name]
    note = " *(not built)*" if name in UNBUILT else ""
    older = ", ".join(f"`{_flag(alias)}`" for alias, meant in aliases().items() if meant == name)
    row = f"| `{_flag(name)}` | {_default(name)} | {field.description}{note} | {older} |"
    assert row in RUNNING.splitlines(), f"docs/running.md should have the line\n{row}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _default(name: str) -> str:
    field = Settings.model_fields[name]
    if field.is_required():
        return "platform data folder"
    if field.default in (None, ()):
        return "unset"
    if isinstance(field.default, bool):
        return "on" if field.default else "off"
    if isinstance(field.default, tuple):
        return ", ".join(field.default)
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)


def test_api_lists_every_route(tmp_path: Path) -> None:
    description = make_app(tmp_path).openapi()
    for path in description["paths"]:
        page = RUNNING if path.startswith("/health") else API
        assert f"`{path}`" in page or f" {path}`" in page, path


@pytest.mark.parametrize("name", FIELD_NAMES)
def test_api_lists_every_field(name: str) -> None:
    assert re.search(rf"^\| .*`{name}`.* \|", API, re.MULTILINE)


@pytest.mark.parametrize("code", STATUS)
def test_api_lists_every_code_with_its_status(code: str) -> None:
    rows = [
        line for line in API.splitlines() if f"`{code}`" in line and line.startswith(f"| {STATUS[code]} ")
    ]
    assert len(rows) == 1


@pytest.mark.parametrize("header", EXPOSED)
def test_api_lists_every_header(header: str) -> None:
    assert f"`{header}`" in API


def test_request_defaults_have_the_ranges_of_their_fields() -> None:
    """`num_step` as a setting and as a field of a request must not disagree."""
    from polychoir.config.settings import REQUEST_DEFAULTS
    from polychoir.server.schemas import SpeechBody

    for name in REQUEST_DEFAULTS:
        ours, theirs = Settings.model_fields[name], SpeechBody.model_fields[name]
        assert ours.metadata == theirs.metadata, name


def test_readme_draws_on_measurements_only() -> None:
    """Figures come with a date and the machine they were measured on."""
    figures = README.partition("## Figures")[2].partition("\n## ")[0]
    if re.search(r"\d", re.sub(r"<!--.*?-->", "", figures, flags=re.DOTALL)):
        assert re.search(r"20\d\d-\d\d-\d\d", figures)
        assert "scripts/bench" in figures or "bench/" in figures
