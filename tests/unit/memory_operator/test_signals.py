"""SIGTERM is the operator's own: kopf takes it when it starts, and would keep the Lease while its watches end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import Any, cast

import kopf
import pytest

from memory_operator.cluster.client import KubernetesCluster
from memory_operator.metrics import Metrics
from memory_operator.process import Operator
from memory_operator.settings import OperatorSettings


async def test_sigterm_stops_the_operator_while_its_watches_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    kept_by_kopf, watches = asyncio.Event(), asyncio.Event()

    async def spawn_tasks(**_: Any) -> list[asyncio.Task[None]]:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, kept_by_kopf.set)
        return []

    async def run_tasks(_: object, *, ignored: set[asyncio.Task[Any]]) -> None:
        assert asyncio.current_task() in ignored
        watches.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(kopf, "spawn_tasks", spawn_tasks)
    monkeypatch.setattr(kopf, "run_tasks", run_tasks)
    settings = OperatorSettings(service_image="example.com/memplane:1")
    level = logging.getLogger("kopf").level
    operator = Operator(settings, cast(KubernetesCluster, None), Metrics())
    watching = asyncio.create_task(operator._watch())
    try:
        await asyncio.wait_for(watches.wait(), 10)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(operator.stop.wait(), 10)
        assert not kept_by_kopf.is_set()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        logging.getLogger("kopf").setLevel(level)
