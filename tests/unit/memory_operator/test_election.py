"""The Lease: one leads, the other waits; skewed clocks, lost replies and a silent API server do no harm."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from memory_operator.cluster import kinds
from memory_operator.cluster.election import Election
from memory_operator.crd.base import ObjectKey
from memory_operator.errors import ClusterUnavailable
from memory_operator.settings import OperatorSettings
from tests.fakes.kube_cluster import FakeCluster
from tests.unit.memory_operator.world import Clock

LEASE = ObjectKey("memplane-system", "memplane-operator")


def candidate(cluster: FakeCluster, clock: Clock, name: str, skew_seconds: float = 0) -> Election:
    settings = OperatorSettings(pod_name=name)
    return Election(
        cluster, settings, monotonic=clock.monotonic, now=lambda: clock.now() + timedelta(seconds=skew_seconds)
    )


def take(cluster: FakeCluster, holder: str) -> dict[str, Any]:
    """Have another process take the Lease, whether it was free or not."""
    live = cluster.edit(kinds.LEASE, LEASE, lambda live: live["spec"].update(holderIdentity=holder))
    return dict(live["spec"])


async def test_the_first_leads_and_the_second_waits() -> None:
    cluster, clock = FakeCluster(), Clock()
    one, two = candidate(cluster, clock, "one"), candidate(cluster, clock, "two")
    assert await one.try_to_lead()
    assert not await two.try_to_lead()
    assert one.is_leader
    assert not two.is_leader


async def test_a_lease_that_is_renewed_is_never_taken() -> None:
    cluster, clock = FakeCluster(), Clock()
    one, two = candidate(cluster, clock, "one"), candidate(cluster, clock, "two", skew_seconds=3600)
    await one.try_to_lead()
    for _ in range(50):
        clock.seconds += 2
        assert await one.try_to_lead()
        assert not await two.try_to_lead()


async def test_a_lease_that_is_not_renewed_is_taken_when_it_ends_and_not_before() -> None:
    cluster, clock = FakeCluster(), Clock()
    one, two = candidate(cluster, clock, "one"), candidate(cluster, clock, "two", skew_seconds=-3600)
    await one.try_to_lead()
    assert not await two.try_to_lead()
    clock.seconds += 14.9
    assert not await two.try_to_lead()
    assert one.has_lost, "the old leader has given up before another may lead"
    clock.seconds += 0.2
    assert await two.try_to_lead()
    assert not await one.try_to_lead()
    assert one.has_lost


async def test_a_released_lease_is_taken_at_once() -> None:
    cluster, clock = FakeCluster(), Clock()
    one, two = candidate(cluster, clock, "one"), candidate(cluster, clock, "two")
    await one.try_to_lead()
    await two.try_to_lead()
    await one.release()
    assert not one.is_leader
    assert await two.try_to_lead()


async def test_a_leader_whose_lease_another_has_taken_leads_no_longer_from_that_moment() -> None:
    cluster, clock = FakeCluster(), Clock()
    one = candidate(cluster, clock, "one")
    await one.try_to_lead()
    take(cluster, "two")
    assert not await one.try_to_lead()
    assert (one.is_leader, one.has_lost) == (False, True)


async def test_leadership_is_counted_from_when_it_was_asked_for_however_slow_the_answer() -> None:
    cluster, clock = FakeCluster(), Clock()
    one = candidate(cluster, clock, "one")
    await one.try_to_lead()
    cluster.before_write = lambda number: setattr(clock, "seconds", clock.seconds + 5)
    assert await one.try_to_lead()
    clock.seconds += 4.9
    assert one.is_leader
    clock.seconds += 0.2
    assert not one.is_leader, "10 seconds after the asking, 5.1 after the answer"


async def test_a_leader_that_ends_leaves_the_lease_of_its_successor_alone() -> None:
    cluster, clock = FakeCluster(), Clock()
    one = candidate(cluster, clock, "one")
    await one.try_to_lead()
    taken = take(cluster, "two")
    await one.release()
    assert cluster.objects[(kinds.LEASE.name, LEASE)]["spec"] == taken


async def test_an_api_server_that_is_silent_ends_leadership_at_the_deadline() -> None:
    cluster, clock = FakeCluster(), Clock()
    one = candidate(cluster, clock, "one")
    await one.try_to_lead()

    def fail() -> None:
        raise ClusterUnavailable("no answer")

    cluster.before_read = fail
    clock.seconds += 9
    assert await one.try_to_lead()
    clock.seconds += 1
    assert not await one.try_to_lead()
    assert one.has_lost


async def test_two_that_try_at_once_do_not_both_lead() -> None:
    cluster, clock = FakeCluster(), Clock()
    one, two = candidate(cluster, clock, "one"), candidate(cluster, clock, "two")
    await one.try_to_lead()
    await two.try_to_lead()
    clock.seconds += 20
    replace = cluster.replace

    async def interleaved(kind, manifest):  # type: ignore[no-untyped-def]
        cluster.replace = replace  # type: ignore[method-assign]
        await two.try_to_lead()
        return await replace(kind, manifest)

    cluster.replace = interleaved  # type: ignore[method-assign]
    assert not await one.try_to_lead()
    assert two.is_leader
