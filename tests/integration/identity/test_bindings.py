"""Bindings that change while the service runs, and sources that fail."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from memory_service.contract.bindings import bindings_revision
from memory_service.contract.health import Reason
from memory_service.contract.scopes import Scope
from memory_service.errors import Forbidden, Unavailable
from memory_service.identity.bindings import BindingsWatch
from memory_service.identity.cluster import ClusterAuthenticator
from memory_service.identity.kube_api import KubeApi
from tests.fakes.identity_world import World, binding, eventually, who


async def is_bound(authenticator: ClusterAuthenticator, world: World, account: str) -> bool:
    try:
        await who(authenticator, world.token(account))
    except (Forbidden, Unavailable):
        return False
    return True


async def bound(authenticator: ClusterAuthenticator, world: World, account: str, expected: bool = True) -> None:
    async def condition() -> bool:
        return await is_bound(authenticator, world, account) is expected

    await eventually(condition)


def put(world: World, number: int = 0, **rows: str) -> None:
    data = {f"{name}.json": row for name, row in rows.items()}
    world.kube.put_config_map("shop", f"store-bindings-{number}", data)


async def test_a_binding_counts_within_five_seconds_of_its_change(world: World) -> None:
    async with world.authenticator() as authenticator:
        assert not await is_bound(authenticator, world, "second")
        put(world, helper=binding(), second=binding("second"))
        await bound(authenticator, world, "second")
        put(world, second=binding("second", scope="shared"))
        await bound(authenticator, world, "helper", expected=False)
        assert (await who(authenticator, world.token("second"))).policy.scope is Scope.SHARED


async def test_every_numbered_config_map_counts_and_new_ones_are_noticed(world: World) -> None:
    put(world, 1, second=binding("second"))
    async with world.authenticator() as authenticator:
        assert await is_bound(authenticator, world, "second")
        put(world, 2, third=binding("third"))
        await bound(authenticator, world, "third")
        world.kube.delete_config_map("shop", "store-bindings-1")
        await bound(authenticator, world, "second", expected=False)
        assert await is_bound(authenticator, world, "third")


async def test_the_reported_revision_is_that_of_the_rows(world: World) -> None:
    put(world, 1, second=binding("second"))
    rows = {"helper.json": binding(), "second.json": binding("second")}
    async with world.authenticator() as authenticator:
        assert authenticator.state().bindings_revision == bindings_revision(rows)
        put(world, 1)

        async def is_reported() -> bool:
            return authenticator.state().bindings_revision == bindings_revision({"helper.json": binding()})

        await eventually(is_reported)
        assert authenticator.state().ok


async def test_a_dropped_watch_loses_no_change(world: World) -> None:
    async with world.authenticator() as authenticator:

        async def is_watching() -> bool:
            return world.kube.open_watches == 2

        await eventually(is_watching)
        world.kube.drop_watches()
        put(world, second=binding("second"))
        await bound(authenticator, world, "second")


async def test_a_forgotten_history_is_listed_again(world: World) -> None:
    async with world.authenticator() as authenticator:
        world.kube.forget_history()
        world.kube.drop_watches()
        put(world, second=binding("second"))
        world.kube.forget_history()
        await bound(authenticator, world, "second")
        put(world, third=binding("third"))
        await bound(authenticator, world, "third")


async def test_a_watch_that_stays_silent_is_given_up(world: World) -> None:
    world.kube.faults.frozen_watches = True
    async with world.authenticator(watch_seconds=1.0) as authenticator:
        put(world, second=binding("second"))
        await bound(authenticator, world, "second")


async def test_an_outage_keeps_the_last_bindings_and_is_reported_until_it_ends(world: World) -> None:
    async with world.authenticator() as authenticator:
        world.kube.faults.list_status = world.kube.faults.watch_status = 500
        world.kube.drop_watches()

        async def is_stale() -> bool:
            return authenticator.state().stale_since is not None

        await eventually(is_stale)
        state = authenticator.state()
        assert (state.ok, state.ready, state.reason) == (False, True, Reason.BINDINGS_STALE)
        assert await is_bound(authenticator, world, "helper")
        put(world, second=binding("second"))
        world.kube.faults.list_status = world.kube.faults.watch_status = None
        await bound(authenticator, world, "second")
        assert authenticator.state().ok


async def test_a_role_that_names_only_the_existing_config_maps_is_enough(world: World) -> None:
    world.kube.allowed_names = {"store-bindings-0"}
    async with world.authenticator() as authenticator:
        assert await is_bound(authenticator, world, "helper")
        assert authenticator.state().ok


async def test_before_any_binding_is_read_callers_are_asked_to_come_again(world: World) -> None:
    world.kube.faults.list_status = 500
    async with world.authenticator() as authenticator:
        with pytest.raises(Unavailable):
            await who(authenticator, world.token())
        assert not authenticator.state().ready
        world.kube.faults.list_status = None
        await bound(authenticator, world, "helper")


async def test_of_two_bindings_of_one_account_the_oldest_holds(world: World) -> None:
    put(
        world,
        a=binding("young", serviceAccount="helper", createdAt="2026-01-02T00:00:00Z"),
        b=binding("old", serviceAccount="helper", createdAt="2026-01-01T00:00:00Z"),
    )
    async with world.authenticator() as authenticator:
        assert (await who(authenticator, world.token())).agent == "kaos://agent/shop/old"
        assert any("young" in problem for problem in authenticator.state().problems)


async def test_a_broken_row_is_named_and_hides_no_other(world: World) -> None:
    put(world, helper=binding(), bad="{", worse=binding("x", agent="*"), extra=binding("y", admin=True))
    async with world.authenticator() as authenticator:
        assert await is_bound(authenticator, world, "helper")
        problems = "\n".join(authenticator.state().problems)
        assert all(name in problems for name in ("bad.json", "worse.json", "extra.json"))


# The mounted folder


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    folder = tmp_path / "bindings"
    (folder / "..2026").mkdir(parents=True)
    (folder / "..2026" / "helper.json").write_text(binding())
    (folder / "..data").symlink_to("..2026")
    (folder / "helper.json").symlink_to("..data/helper.json")
    return folder


async def test_without_an_api_server_the_mounted_folder_counts(world: World, mounted: Path) -> None:
    jwks = world.folder / "jwks.json"
    jwks.write_text('{"keys": []}')
    async with world.authenticator(kube_api=None, jwks=str(jwks), bindings_directory=str(mounted)) as authenticator:
        state = authenticator.state()
        assert state.ready
        assert state.bindings_revision == bindings_revision({"helper.json": binding()})


async def test_the_folder_stands_in_while_the_api_refuses_and_follows_its_changes(world: World, mounted: Path) -> None:
    world.kube.allowed_names = set()
    api = KubeApi(
        world.kube.url,
        token_file=world.kube.token_file,
        ca_file=world.kube.ca_file,
        timeout_seconds=2,
        watch_seconds=5,
    )
    watch = BindingsWatch(
        api,
        namespace="shop",
        prefix="store-bindings",
        directory=str(mounted),
        now=world.clock.now,
        folder_seconds=0.05,
        forbidden_seconds=0.1,
    )
    try:
        await watch.start(3)

        async def follows(account: str) -> bool:
            return watch.current.of("shop", account) is not None

        await eventually(lambda: follows("helper"))
        assert watch.state().source == "folder"
        (mounted / "second.json").write_text(binding("second"))
        await eventually(lambda: follows("second"))
        world.kube.allowed_names = None
        put(world, third=binding("third"))
        await eventually(lambda: follows("third"))
        assert watch.state().source == "api"
        assert watch.state().stale_since is None
    finally:
        await watch.aclose()
        await api.aclose()


async def test_leaving_stops_every_task(world: World) -> None:
    before = len(asyncio.all_tasks())
    async with world.authenticator():
        pass
    assert len(asyncio.all_tasks()) == before
