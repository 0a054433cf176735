"""Where settings come from: flag > POLYCHOIR_NAME > OMNIVOICE_NAME > polychoir.toml > default.

Each source is turned into {canonical name: given value}; a name nobody knows is an error with the nearest
known one, because a misspelt setting that is quietly ignored is found out in production.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from polychoir.config.legacy import LEGACY_PREFIX, MEANINGLESS, MEANINGLESS_ENVIRONMENT, RENAMED
from polychoir.config.settings import Settings
from polychoir.errors import SettingError

PREFIX = "POLYCHOIR_"
CONFIG_NAME = PREFIX + "CONFIG"
DEFAULT_FILE = Path("polychoir.toml")
FILE_LIMIT = 1_000_000

# Kubernetes gives every pod the address of a service named polychoir under these names.
_SERVICE_LINK = re.compile(r"(SERVICE_(HOST|PORT(_.*)?)|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)")


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings and how they came about. notices: one line each, to be shown once at start."""

    settings: Settings
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Given:
    value: Any
    origin: str
    """How the user wrote it: --port, POLYCHOIR_PORT, or `port` in polychoir.toml."""


def aliases() -> dict[str, str]:
    """Every older name and the setting it stands for."""
    found: dict[str, str] = {}
    for name, field in Settings.model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict):
            found.update(dict.fromkeys(_strings(extra["aliases"]), name))
    return found


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    config_file: Path | None = None,
) -> LoadedSettings:
    """Read every source and check the whole.

    flags: {setting or alias: value}, None meaning not given. config_file: what --config said; without it
    POLYCHOIR_CONFIG, then ./polychoir.toml if there is one. Raises SettingError, naming the setting and
    where it was set.
    """
    environment = os.environ if environment is None else environment
    notices: list[str] = []
    given: dict[str, _Given] = {}
    for source in (
        _from_file(_config_path(config_file, environment), notices),
        _from_older_environment(environment, notices),
        _from_environment(environment, notices),
        _from_flags(flags or {}, notices),
    ):
        given.update(source)
    return LoadedSettings(_validate(given), tuple(notices))


def _strings(value: Any) -> list[str]:
    return [str(item) for item in value]


def _config_path(flag: Path | None, environment: Mapping[str, str]) -> Path | None:
    if flag is not None:
        return flag
    if named := environment.get(CONFIG_NAME):
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.is_file() else None


def _from_file(path: Path | None, notices: list[str]) -> dict[str, _Given]:
    if path is None:
        return {}
    try:
        if path.stat().st_size > FILE_LIMIT:
            raise SettingError(f"{path} is larger than {FILE_LIMIT} bytes", param="config")
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"cannot read {path}: {error.strerror}", param="config") from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise SettingError(f"{path} is not TOML: {error}", param="config") from error
    except RecursionError as error:
        raise SettingError(f"{path} is nested too deeply", param="config") from error
    return _resolve(((key, f"`{key}` in {path}", value) for key, value in table.items()), notices)


def _from_environment(environment: Mapping[str, str], notices: list[str]) -> dict[str, _Given]:
    return _resolve(
        (
            (name.removeprefix(PREFIX).lower(), name, value)
            for name, value in environment.items()
            # Compose files pass unset variables on as empty ones: empty is not given.
            if name.startswith(PREFIX) and name != CONFIG_NAME and value and not _is_service_link(name, value)
        ),
        notices,
    )


def _is_service_link(name: str, value: str) -> bool:
    rest = name.removeprefix(PREFIX)
    return bool(_SERVICE_LINK.fullmatch(rest)) or (rest == "PORT" and value.startswith(("tcp://", "udp://")))


def _from_flags(flags: Mapping[str, Any], notices: list[str]) -> dict[str, _Given]:
    return _resolve(
        (
            (name, "--" + name.replace("_", "-"), value)
            for name, value in flags.items()
            if value is not None and value not in ((), [])
        ),
        notices,
    )


def _from_older_environment(environment: Mapping[str, str], notices: list[str]) -> dict[str, _Given]:
    """OMNIVOICE_ names. Unknown ones belong to some other program perhaps: a notice, not an error."""
    known = set(Settings.model_fields) | set(aliases())
    found: list[tuple[str, str, Any]] = []
    for name, value in environment.items():
        if not name.startswith(LEGACY_PREFIX) or not value:
            continue
        key = name.removeprefix(LEGACY_PREFIX).lower()
        key = RENAMED.get(key, key)
        if key in MEANINGLESS_ENVIRONMENT:
            notices.append(f"{name} has no meaning here: {MEANINGLESS_ENVIRONMENT[key]}")
        elif key in known:
            canonical = aliases().get(key, key)
            notices.append(f"{name} is read as {PREFIX}{canonical.upper()}")
            found.append((key, name, _without_brackets(value)))
        else:
            notices.append(f"{name} is not known here and is not used")
    return _resolve(found, notices)


def _without_brackets(value: str) -> str:
    """The older servers wrote lists as JSON; ours are comma-separated."""
    if value.startswith("[") and value.endswith("]"):
        return ",".join(part.strip().strip("\"'") for part in value[1:-1].split(","))
    return value


def _resolve(items: Iterable[tuple[str, str, Any]], notices: list[str]) -> dict[str, _Given]:
    """Canonical names for the (key, origin, value) of one source."""
    older = aliases()
    found: dict[str, _Given] = {}
    for key, origin, value in items:
        name = key.replace("-", "_")
        if name in MEANINGLESS:
            notices.append(f"{origin} has no meaning here: {MEANINGLESS[name]}")
            continue
        name = older.get(name, name)
        if name not in Settings.model_fields:
            raise _unknown(name, origin)
        if name in found and found[name].value != value:
            raise SettingError(f"{found[name].origin} and {origin} say different things", param=name)
        found[name] = _Given(value, origin)
    return found


def _unknown(name: str, origin: str) -> SettingError:
    known = [*Settings.model_fields, *aliases()]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = "; `polychoir serve --help` lists them all"
    if close:
        hint = f"; did you mean {_written_like(origin, close[0])}?"
    return SettingError(f"unknown setting {origin}{hint}", param=name)


def _written_like(origin: str, name: str) -> str:
    """`name` in the spelling of the source in which its misspelt likeness was found."""
    if origin.startswith(PREFIX):
        return PREFIX + name.upper()
    return "--" + name.replace("_", "-") if origin.startswith("--") else name


def _validate(given: Mapping[str, _Given]) -> Settings:
    try:
        return Settings(**{name: item.value for name, item in given.items()})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        message = str(first["msg"]).removeprefix("Value error, ")
        raise SettingError(f"{given[name].origin}: {message[:1].lower()}{message[1:]}", param=name) from error
    except SettingError as error:
        item = given.get(error.param or "")
        if item is None:
            raise
        raise SettingError(f"{item.origin}: {error.message}", param=error.param) from error
