"""Why pods do not run: the sentence, when it is looked for, and what it costs."""

from __future__ import annotations

from typing import Any

import pytest

from memory_operator import names
from memory_operator.cluster import kinds
from memory_operator.cluster.kinds import Kind
from memory_operator.crd.base import ObjectKey
from memory_operator.errors import Forbidden
from memory_operator.status.pods import refusal, trouble
from tests.unit.memory_operator.world import World

Json = dict[str, Any]
LABELS = {names.STORE_LABEL: "notes", names.COMPONENT_LABEL: "store"}


def pod(name: str = "notes-memory-1", *, labels: Json | None = None, deleted: bool = False, **status: Any) -> Json:
    meta = {
        "name": name,
        "namespace": "a",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": LABELS if labels is None else labels,
    }
    return {"metadata": {**meta, "deletionTimestamp": "x"} if deleted else meta, "status": status}


def container(name: str = "memory", **status: Any) -> Json:
    return {"name": name, "image": "registry/service:1", "ready": False, "restartCount": 0, **status}


def waiting(reason: str, message: str = "") -> Json:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


def ended(reason: str, code: int) -> Json:
    return {"lastState": {"terminated": {"reason": reason, "exitCode": code}}, "restartCount": 3}


CASES: dict[str, tuple[Json, str]] = {
    "an image that cannot be pulled": (
        pod(containerStatuses=[container(**waiting("ErrImagePull", "rpc error: code = 17"))]),
        "container 'memory': ImagePullBackOff: the image 'registry/service:1' cannot be pulled.",
    ),
    "a container that crashes": (
        pod(containerStatuses=[container(**waiting("CrashLoopBackOff", "back-off 5m0s"), **ended("Error", 2))]),
        "container 'memory': CrashLoopBackOff: it ended with exit code 2; see its log.",
    ),
    "a crash between two restarts": (
        pod(containerStatuses=[container(state={"running": {}}, **ended("Error", 2))]),
        "container 'memory': CrashLoopBackOff: it ended with exit code 2; see its log.",
    ),
    "a container out of memory": (
        pod(containerStatuses=[container(**waiting("CrashLoopBackOff"), **ended("OOMKilled", 137))]),
        "container 'memory': OOMKilled: it needs more memory than its limit.",
    ),
    "a pod that no node takes": (
        pod(
            conditions=[
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/3 nodes are available: 3 Insufficient memory.",
                }
            ]
        ),
        "Unschedulable: 0/3 nodes are available: 3 Insufficient memory.",
    ),
    "a configuration that is missing": (
        pod(containerStatuses=[container(**waiting("CreateContainerConfigError", 'configmap "x" not found'))]),
        "container 'memory': CreateContainerConfigError: configmap \"x\" not found.",
    ),
}


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("case", sorted(CASES))
def test_a_pod_that_does_not_run_is_explained(case: str) -> None:
    troubled, expected = CASES[case]
    assert trouble([troubled]).rstrip(".") == f"Pod 'notes-memory-1': {expected}".rstrip(".")


@pytest.mark.parametrize(
    "well",
    [
        pod(),
        pod(containerStatuses=[container(**waiting("ContainerCreating"))]),
        pod(containerStatuses=[container(**{"ready": True, **ended("Error", 1)})]),
        pod(containerStatuses=[container(**waiting("ImagePullBackOff"))], deleted=True),
    ],
)
def test_a_pod_that_starts_runs_or_leaves_is_no_trouble(well: Json) -> None:
    assert trouble([well]) == ""


def message(world: World, kind: Kind, key: ObjectKey, condition: str) -> str:
    found = world.get(kind, key.name)["status"]["conditions"]
    return next(str(item["message"]) for item in found if item["type"] == condition)


async def test_a_store_that_does_not_come_up_says_why_after_ten_seconds_and_forgets_it_when_it_does(
    world: World,
) -> None:
    store = world.store()
    await world.settle()
    world.bind_claim()
    world.pods("notes-memory", 0)
    world.cluster.make(kinds.POD, pod(containerStatuses=[container(**waiting("ErrImagePull"))]))
    world.cluster.make(kinds.POD, pod("other", labels={names.STORE_LABEL: "other"}, phase="Failed", reason="Evicted"))
    await world.settle(9)
    assert message(world, kinds.MEMORY_STORE, store, "Ready") == "0 of 1 pods are ready."
    await world.settle(2)
    assert "ImagePullBackOff" in message(world, kinds.MEMORY_STORE, store, "Ready")
    assert world.of_store(store, "Ready") == ("False", "WorkloadUnavailable")
    await world.make_ready(store)
    assert "ImagePullBackOff" not in message(world, kinds.MEMORY_STORE, store, "Ready")


async def test_a_controller_whose_clock_is_ahead_keeps_no_reason_back(world: World) -> None:
    store = world.store()
    await world.settle()
    world.bind_claim()
    world.pods("notes-memory", 0)

    def set_ahead(live: Json) -> None:
        for item in live["status"]["conditions"]:
            item["lastTransitionTime"] = "2026-01-01T12:10:00Z"

    world.cluster.edit(kinds.DEPLOYMENT, ObjectKey("a", "notes-memory"), set_ahead)
    world.cluster.make(kinds.POD, pod(containerStatuses=[container(**waiting("ErrImagePull"))]))
    await world.settle(1)
    assert "ImagePullBackOff" in message(world, kinds.MEMORY_STORE, store, "Ready")


QUOTA = 'pods "notes-memory-54d5df459-x7k2p" is forbidden: exceeded quota: none, requested: pods=1, limited: pods=0'


def refuse_pods(world: World, name: str, why: str = QUOTA, **progressing: str) -> None:
    """Have the Deployment controller say that the API server refuses its pods."""

    def change(live: Json) -> None:
        live["status"] |= {"replicas": 0, "updatedReplicas": 0}
        found = [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": why}]
        found += [{"type": "Progressing", "status": "False", **progressing}] if progressing else []
        live["status"]["conditions"] += found

    world.pods(name, 0)
    world.cluster.edit(kinds.DEPLOYMENT, ObjectKey("a", name), change)


async def test_pods_that_the_api_server_refuses_are_explained_in_its_words(world: World) -> None:
    store = world.store()
    await world.settle()
    world.bind_claim()
    refuse_pods(world, "notes-memory")
    await world.settle(9)
    assert world.of_store(store, "Ready") == ("False", "Starting")
    await world.settle(2)
    assert world.of_store(store, "Ready") == ("False", "WorkloadUnavailable")
    refused = "The API server refuses the pods: exceeded quota: none, requested: pods=1, limited: pods=0."
    assert message(world, kinds.MEMORY_STORE, store, "Ready") == f"0 of 1 pods are ready. {refused}"
    stuck = {"reason": "ProgressDeadlineExceeded", "message": "It has timed out progressing."}
    refuse_pods(world, "notes-memory", **stuck, lastUpdateTime="2026-01-01T12:00:00Z")
    await world.settle(20)
    assert message(world, kinds.MEMORY_STORE, store, "Stalled") == f"It has timed out progressing. {refused}"
    assert world.of_store(store, "Reconciling") is None
    await world.make_ready(store)
    assert world.of_store(store, "Ready") == ("True", "Available")
    assert world.of_store(store, "Stalled") is None


async def test_an_agent_whose_pods_are_refused_is_stalled_after_its_deadline(world: World) -> None:
    await world.ready_store()
    template = {"spec": {"containers": [{"name": "bot", "image": "x"}]}}
    agent = world.agent(agent={"template": template}, waitForDependencies=False)
    await world.settle()
    account = 'pods "helper-1" is forbidden: error looking up service account a/typo: serviceaccount "typo" not found'
    refuse_pods(world, "helper", account)
    await world.settle(11)
    assert 'serviceaccount "typo" not found' in message(world, kinds.AGENT_MEMORY, agent, "Ready")
    refuse_pods(world, "helper", account, reason="ProgressDeadlineExceeded", message="It has timed out.")
    await world.settle(11)
    assert world.of_agent(agent, "Stalled") == ("True", "ProgressDeadlineExceeded")
    assert 'serviceaccount "typo" not found' in message(world, kinds.AGENT_MEMORY, agent, "Stalled")


def test_a_refused_pod_is_told_without_its_name_and_shortened() -> None:
    first, second = (f'pods "bot-{name}" is forbidden: violates PodSecurity "x": {"y" * 500}' for name in "ab")
    assert refusal(first) == refusal(second)
    assert len(refusal(first)) < 250


async def test_a_deployment_that_somebody_pauses_is_resumed(world: World) -> None:
    store = await world.ready_store()
    key = ObjectKey("a", "notes-memory")
    world.cluster.edit(kinds.DEPLOYMENT, key, lambda live: live["spec"].update(paused=True))
    await world.settle(5)
    assert "paused" not in world.get(kinds.DEPLOYMENT, "notes-memory")["spec"]
    await world.make_ready(store)
    before = len(world.cluster.writes)
    await world.restart()
    await world.settle(60)
    assert world.writes_since(before) == []


async def test_a_paused_deployment_of_a_paused_store_is_left_and_told(world: World) -> None:
    store = await world.ready_store()
    world.store(paused=True)
    await world.settle()
    key = ObjectKey("a", "notes-memory")
    world.cluster.edit(kinds.DEPLOYMENT, key, lambda live: live["spec"].update(paused=True))
    world.pods("notes-memory", 0)
    await world.settle(20)
    assert world.get(kinds.DEPLOYMENT, "notes-memory")["spec"]["paused"] is True
    assert "The Deployment is paused." in message(world, kinds.MEMORY_STORE, store, "Ready")


async def test_an_agent_that_does_not_come_up_says_why(world: World) -> None:
    await world.ready_store()
    template = {"spec": {"containers": [{"name": "bot", "image": "x"}]}}
    agent = world.agent(agent={"template": template}, waitForDependencies=False)
    await world.settle()
    world.pods("helper", 0)
    labels = {names.AGENT_LABEL: "helper"}
    world.cluster.make(kinds.POD, pod("helper-1", labels=labels, containerStatuses=[container("bot", **ended("", 1))]))
    await world.settle(11)
    assert "CrashLoopBackOff" in message(world, kinds.AGENT_MEMORY, agent, "Ready")


async def test_a_stuck_store_costs_a_read_every_half_minute_and_no_write(world: World) -> None:
    world.store()
    await world.settle()
    world.bind_claim()
    world.pods("notes-memory", 0)
    world.cluster.make(kinds.POD, pod(containerStatuses=[container(**waiting("ErrImagePull"))]))
    await world.settle(40)
    before, reads = len(world.cluster.writes), 0

    def count() -> None:
        nonlocal reads
        reads += 1

    world.cluster.before_read = count
    await world.settle(300)
    assert 9 <= reads <= 11
    assert world.writes_since(before) == []


async def test_without_permission_to_list_pods_a_store_goes_on_without_their_reasons(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = world.cluster.list

    async def refuse(kind: Kind, namespace: str | None, selector: str) -> Any:
        if kind == kinds.POD:
            raise Forbidden("pods is forbidden")
        return await listed(kind, namespace, selector)

    monkeypatch.setattr(world.cluster, "list", refuse)
    store = world.store()
    await world.settle()
    world.bind_claim()
    world.pods("notes-memory", 0)
    await world.settle(20)
    assert message(world, kinds.MEMORY_STORE, store, "Ready") == "0 of 1 pods are ready."
