"""Apps under test. Everything that speaks is run with batching on and, by a parameter, without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from support.serving import Served, make_app, served


@pytest.fixture(scope="session", autouse=True)
def _plain_log() -> None:
    """One JSON line an event on stdout, where pytest captures it."""
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.JSONRenderer()],
        cache_logger_on_first_use=False,
    )


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Served]:
    """The fake model behind the default settings."""
    async with served(make_app(tmp_path)) as running:
        yield running


@pytest.fixture(params=[True, False], ids=["batch", "no-batch"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    """The fake model, batching and not, with steps long enough for rows to meet."""
    async with served(make_app(tmp_path, batch=request.param, fake_step_ms=0.5)) as running:
        yield running
