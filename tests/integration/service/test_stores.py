"""Stores are apart: on one database, in one folder, and between processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from memory_service.bootstrap import migrate
from memory_service.contract.config import ServiceConfig
from memory_service.contract.health import Part, PartHealth, Reason
from memory_service.errors import Misconfigured, StorageUnavailable
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


async def test_a_store_of_the_same_name_in_another_cluster_is_not_called_left_behind(
    postgres_dsn: str, models: ModelServer, clock: MovableClock, tmp_path: Path
) -> None:
    def store(schema: str, dsn: str, authority: str) -> ServiceConfig:
        (tmp_path / authority).write_text(authority)
        static = static_identity(tokens_file(tmp_path))
        return ServiceConfig(
            storage=on_postgres(dsn, schema=schema).model_copy(update={"store_name": "team/memory"}),
            models=models_config(models.url, chat=False),
            identity=static.model_copy(update={"kube_ca_file": str(tmp_path / authority)}),
        )

    with fresh_database(postgres_dsn) as dsn:
        for authority, expected in (("here", ["store_1"]), ("there", [])):
            await migrate(store("store_1", dsn, authority))
            async with Service(store("store_2", dsn, "here"), clock, models).running() as service:
                report = await service.admin().get("/v1/health/report")
                assert report["schemas_left_behind"] == expected


async def test_a_report_asks_seldom_for_what_an_earlier_store_left_and_never_of_a_database_that_is_away(
    service: Service, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, admin = service.services.storage, service.admin()
    asked = 0

    async def left_behind() -> Sequence[str]:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise StorageUnavailable("away", reason="StorageUnreachable")
        return ["store_1"]

    async def away() -> Mapping[str, PartHealth]:
        bad = PartHealth(ok=False, reason=Reason.STORAGE_UNREACHABLE, since=clock.now())
        return {Part.STORAGE: bad, Part.SCHEMA: bad}

    monkeypatch.setattr(storage, "schemas_left_behind", left_behind)
    for _ in range(3):
        assert (await admin.get("/v1/health/report"))["schemas_left_behind"] == ["store_1"]
    assert asked == 1
    for times in (2, 3):
        clock.advance(timedelta(minutes=11))
        assert (await admin.get("/v1/health/report"))["schemas_left_behind"] == ["store_1"]
        assert asked == times
    monkeypatch.setattr(storage, "health", away)
    clock.advance(timedelta(minutes=11))
    report = await admin.get("/v1/health/report")
    assert (report["schemas_left_behind"], report["parts"]["storage"]["ok"], asked) == (["store_1"], False, 3)
