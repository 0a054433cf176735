"""Where log lines go and how they look: for people on a terminal, JSON everywhere else.

Ours and the libraries' lines take the same way. Request texts appear only with --log-requests.
"""

from __future__ import annotations

import logging
import logging.handlers
import sys
from pathlib import Path

import structlog
from structlog.typing import Processor

from polychoir.errors import SettingError

_QUIET = ("uvicorn", "asyncio", "multipart")


def configure_logging(log_file: Path | None) -> None:
    """Send everything of level INFO to `log_file`, or to stderr. Raises SettingError for a bad file."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler = _handler(log_file)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderer(for_people=log_file is None and sys.stderr.isatty()),
            ],
        )
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _renderer(*, for_people: bool) -> list[Processor]:
    if for_people:
        # Pretty tracebacks cost seconds each, in the event loop.
        return [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _handler(log_file: Path | None) -> logging.Handler:
    if log_file is None:
        return logging.StreamHandler(sys.stderr)
    try:
        # Watched: a rotation by the system moves the file away and a new one is begun.
        return logging.handlers.WatchedFileHandler(log_file, encoding="utf-8")
    except OSError as error:
        raise SettingError(f"cannot write log_file {log_file}: {error.strerror}", param="log_file") from error
