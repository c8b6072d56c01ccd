"""Stores are apart: on one database, in one folder, and between processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory_service.contract.config import ServiceConfig
from memory_service.errors import Misconfigured
from tests.fakes.model_server import ModelServer
from tests.fakes.postgres import fresh_database
from tests.fakes.stores import MovableClock
from tests.integration.service.harness import (
    Service,
    item_texts,
    models_config,
    on_postgres,
    static_identity,
    tokens_file,
)


async def test_two_stores_on_one_database_see_nothing_of_each_other(
    postgres_dsn: str, models: ModelServer, clock: MovableClock, tmp_path: Path
) -> None:
    def store(schema: str, dsn: str) -> Service:
        config = ServiceConfig(
            storage=on_postgres(dsn, schema=schema, store_uid=f"uid-of-{schema}"),
            models=models_config(models.url, chat=False),
            identity=static_identity(tokens_file(tmp_path)),
        )
        return Service(config, clock, models)

    with fresh_database(postgres_dsn) as dsn:
        async with store("store_a", dsn).running() as first, store("store_b", dsn).running() as second:
            for name, service in (("first", first), ("second", second)):
                agent = service.agent(user="alice")
                await agent.write(f"{name} walnut turn")
                await agent.remember(f"{name} walnut fact", key="k1")
                await service.work()
            for name, service in (("first", first), ("second", second)):
                agent = service.agent(user="alice")
                recalled = await agent.recall("walnut", session_id="s2", score_floor=0)
                assert set(item_texts(recalled)) == {f"{name} walnut turn", f"{name} walnut fact"}
                assert await agent.texts() == [f"{name} walnut fact"]
                assert len((await service.admin().get("/v1/admin/list"))["items"]) == 1
                exported = await service.admin().get("/v1/admin/export")
                assert "walnut" in str(exported)
                other = "second" if name == "first" else "first"
                assert other not in str(exported)
            fact = (await first.agent(user="alice").get("/v1/facts"))["items"][0]["id"]
            assert (await second.agent(user="alice").ask("GET", f"/v1/facts/{fact}")).status_code == 404
            await first.admin().post("/v1/admin/erase", {"subject": {"principal": "local#alice"}})
            assert await second.agent(user="alice").texts() == ["second walnut fact"]
        stranger = ServiceConfig(
            storage=on_postgres(dsn, schema="store_a", store_uid="another-uid"),
            models=models_config(models.url, chat=False),
            identity=static_identity(tokens_file(tmp_path)),
        )
        with pytest.raises(Misconfigured, match="store_a"):
            async with Service(stranger, clock, models).running():
                raise AssertionError("a stranger's schema was opened")
