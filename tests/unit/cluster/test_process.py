"""A worker by hand, over either kind of socket."""

from __future__ import annotations

import asyncio

import pytest

from polychoir.cluster import messages as m
from polychoir.cluster.frames import Frames, join
from polychoir.cluster.process import start_worker
from polychoir.engine.plan import limits_for
from polychoir.models.registry import open_model
from polychoir.types import ModelOptions
from support.serving import until


@pytest.mark.parametrize("pairs", [True, False], ids=["pair", "loopback"])
async def test_a_worker_opens_reports_and_leaves(pairs: bool) -> None:
    said: list[m.FromWorker] = []
    process, connection = await start_worker({}, pairs=pairs)
    link = Frames(lambda head, tail: said.append(m.decode_from_worker(head)))
    await join(link, connection)
    limits = limits_for(open_model("fake", ModelOptions()).info)
    link.send(m.encode(m.Open("fake", ModelOptions(), limits, 30.0)))
    await until(lambda: m.Settled() in said)
    await until(lambda: any(isinstance(record, m.Report) for record in said))
    link.send(m.encode(m.Stop()))
    assert await asyncio.wait_for(process.ended, 10) == 0
    await asyncio.wait_for(link.closed.wait(), 5)
    link.close()
