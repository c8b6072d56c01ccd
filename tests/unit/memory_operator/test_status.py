"""Tables of what a status says, and kstatus's reading of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from memory_operator.crd import agent_memory, conditions, memory_store, model_api
from memory_operator.crd.conditions import Condition, ConditionType, Reason
from memory_operator.status.agent import agent_status
from memory_operator.status.announcements import announcements
from memory_operator.status.model_api import model_api_status
from memory_operator.status.snapshot import (
    AgentSnapshot,
    ApplyProblem,
    ClaimState,
    DeploymentState,
    HealthState,
    ModelState,
    ProbeResult,
    StoreSnapshot,
    StoreView,
)
from memory_operator.status.store import store_status
from memory_service.contract.health import Part
from memory_service.contract.health import Reason as Code
from tests.unit.memory_operator.test_desired import body
from tests.unit.memory_operator.world import START, report

PATIENCE = timedelta(seconds=5)
RUNNING = DeploymentState(generation=2, observed_generation=2, wanted=1, replicas=1, ready=1, updated=1, available=1)
STOPPED = replace(RUNNING, ready=0, available=0)
ROLLING = replace(RUNNING, observed_generation=1)
STUCK = replace(STOPPED, has_missed_deadline=True, message="image cannot be pulled")
BOUND = ClaimState("Bound", "5Gi", "5Gi", None, ("ReadWriteOnce",))
HEALTHY = HealthState((report(),))
GOOD = StoreSnapshot("http://x", RUNNING, BOUND, "5Gi", HEALTHY)


def saying(failing: dict[Part, Code], *, ready: bool) -> HealthState:
    return HealthState((report(ready=ready, failing=failing),))


def store_conditions(snapshot: StoreSnapshot, previous: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    manifest = body("MemoryStore", "notes", {"storage": {"type": "local"}, **spec})
    manifest["status"] = previous or {}
    status = store_status(memory_store.parse(manifest), snapshot, START, PATIENCE)
    return {item["type"]: item for item in status["conditions"]}


def kstatus(found: dict[str, Any]) -> str:
    """How Flux, Helm and kpt read the conditions of an object whose generation was observed.

    As cli-utils has it: in the order in which they stand, and the first of the two that is True ends it.
    """
    for item in found.values():
        if item["status"] == "True" and item["type"] in ("Reconciling", "Stalled"):
            return "InProgress" if item["type"] == "Reconciling" else "Failed"
    return "Current" if found["Ready"]["status"] == "True" else "InProgress"


CHAT = {"models": {"summarization": {"modelAPI": "gpt", "model": "m"}}}
UNREADY_MODEL = (ModelState("gpt", True, False, "Does not answer in time."),)
REFUSED = (ApplyProblem("Service", "x", Reason.APPLY_FAILED, "no"),)
STORE_TABLE: dict[str, tuple[StoreSnapshot, dict[str, Any], str, str, str]] = {
    "all is well": (GOOD, {}, "True", "Available", "Current"),
    "nothing is there yet": (StoreSnapshot("http://x"), {}, "Unknown", "Reconciling", "InProgress"),
    "pods have not been looked at": (
        replace(GOOD, deployment=replace(STOPPED, observed_generation=0)),
        {},
        "Unknown",
        "Reconciling",
        "InProgress",
    ),
    "no pod is ready yet": (
        replace(GOOD, deployment=STOPPED, health=None),
        {},
        "False",
        "Starting",
        "InProgress",
    ),
    "the image cannot be pulled": (
        replace(GOOD, deployment=STUCK, health=None),
        {},
        "False",
        "ProgressDeadlineExceeded",
        "Failed",
    ),
    "a roll-out is stuck while old pods serve": (
        replace(GOOD, deployment=replace(ROLLING, observed_generation=2, updated=0, has_missed_deadline=True)),
        {},
        "True",
        "Available",
        "Failed",
    ),
    "a child is refused while pods are replaced": (
        replace(GOOD, deployment=ROLLING, problems=(ApplyProblem("Service", "x", Reason.APPLY_FAILED, "no"),)),
        {},
        "True",
        "Available",
        "Failed",
    ),
    "a change waits for a model endpoint": (
        replace(GOOD, held_by=ModelState("gpt", False, False, "It does not exist.")),
        {},
        "True",
        "Available",
        "InProgress",
    ),
    "a Secret is missing": (
        replace(
            GOOD,
            deployment=STOPPED,
            health=saying({Part.SECRETS: Code.SECRET_MISSING, Part.STORAGE: Code.STORAGE_UNREACHABLE}, ready=False),
        ),
        {},
        "False",
        "SecretMissing",
        "InProgress",
    ),
    "the database is down": (
        replace(GOOD, deployment=STOPPED, health=saying({Part.STORAGE: Code.STORAGE_UNREACHABLE}, ready=False)),
        {},
        "False",
        "StorageUnreachable",
        "InProgress",
    ),
    "another pod has the folder": (
        replace(GOOD, deployment=STOPPED, health=saying({Part.STORAGE: Code.WAITING_FOR_LOCK}, ready=False)),
        {},
        "False",
        "WaitingForLock",
        "InProgress",
    ),
    "a rollout goes on": (replace(GOOD, deployment=ROLLING), {}, "True", "Available", "InProgress"),
    "no report has come yet": (replace(GOOD, health=None), {}, "Unknown", "HealthUnknown", "InProgress"),
    "pods are silent": (
        replace(GOOD, health=HealthState((), ("did not answer",), START - timedelta(minutes=1))),
        {},
        "Unknown",
        "HealthUnreachable",
        "InProgress",
    ),
    "scaled to zero": (
        replace(GOOD, deployment=replace(STOPPED, wanted=0, updated=0, replicas=0)),
        {"replicas": 0},
        "False",
        "ScaledToZero",
        "InProgress",
    ),
    "a model endpoint is waited for": (
        StoreSnapshot("http://x", models=UNREADY_MODEL, waits_for_models=True),
        CHAT,
        "False",
        "WaitingForModelAPI",
        "InProgress",
    ),
    "a model endpoint fails later": (replace(GOOD, models=UNREADY_MODEL), CHAT, "True", "Available", "Current"),
    "jobs are dead": (
        replace(GOOD, health=saying({Part.JOBS: Code.JOBS_DEAD}, ready=True)),
        {},
        "True",
        "Available",
        "Current",
    ),
    "a child is refused": (replace(GOOD, problems=REFUSED), {}, "True", "Available", "Failed"),
    "the first Deployment is refused": (
        StoreSnapshot("http://x", problems=REFUSED),
        {},
        "False",
        "ApplyFailed",
        "Failed",
    ),
}


@pytest.mark.parametrize("case", STORE_TABLE)
def test_a_stores_readiness_and_its_reading_by_kstatus(case: str) -> None:
    snapshot, spec, status, reason, reading = STORE_TABLE[case]
    found = store_conditions(snapshot, **spec)
    assert (found["Ready"]["status"], found["Ready"]["reason"]) == (status, reason)
    assert kstatus(found) == reading


def test_a_new_process_keeps_what_was_known_until_the_first_report() -> None:
    before = {"conditions": list(store_conditions(GOOD).values())}
    after = store_conditions(replace(GOOD, health=None), before)
    assert list(after.values()) == before["conditions"]


def test_a_moment_of_silence_changes_nothing() -> None:
    before = {"conditions": list(store_conditions(GOOD).values())}
    silent = replace(GOOD, health=HealthState((), ("did not answer",), START - timedelta(seconds=4)))
    assert store_conditions(silent, before)["Ready"]["status"] == "True"


def test_every_condition_has_a_reason_and_the_generation() -> None:
    for snapshot, spec, *_ in STORE_TABLE.values():
        for found in store_conditions(snapshot, {"observedGeneration": 2}, **spec).values():
            assert found["reason"]
            assert found["observedGeneration"] == (3 if snapshot.held_by is None else 2)


def test_a_time_moves_only_with_the_status() -> None:
    old = {"type": "Ready", "status": "True", "reason": "A", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    same = Condition(ConditionType.READY, True, "B", "other words")
    merged = conditions.merge({"conditions": [old]}, [same], 1, START)
    assert (merged[0]["lastTransitionTime"], merged[0]["reason"]) == ("2020-01-01T00:00:00Z", "B")
    flipped = replace(same, status=False)
    assert (
        conditions.merge({"conditions": [old]}, [flipped], 1, START)[0]["lastTransitionTime"] == "2026-01-01T12:00:00Z"
    )


def view(ready: bool | None, seconds_ago: float, reason: str = "StorageUnreachable") -> StoreView:
    return StoreView(ready, reason, "why", START - timedelta(seconds=seconds_ago))


def degraded(snapshot: AgentSnapshot, previous: str | None) -> tuple[str, timedelta | None]:
    manifest = body("AgentMemory", "helper", {"memoryStore": "notes"})
    if previous is not None:
        old = {
            "type": "MemoryDegraded",
            "status": previous,
            "reason": "Old",
            "lastTransitionTime": "2020-01-01T00:00:00Z",
        }
        manifest["status"] = {"conditions": [old]}
    result = agent_status(agent_memory.parse(manifest), snapshot, START, PATIENCE)
    found = {item["type"]: item for item in result.content["conditions"]}
    return found["MemoryDegraded"]["status"], result.look_again_after


@pytest.mark.parametrize(
    ("snapshot", "previous", "expected", "again"),
    [
        (AgentSnapshot(store=view(False, 2)), "False", "False", 3),
        (AgentSnapshot(store=view(False, 6)), "False", "True", None),
        (AgentSnapshot(store=view(True, 2)), "True", "True", 3),
        (AgentSnapshot(store=view(True, 6)), "True", "False", None),
        (AgentSnapshot(store=view(False, -600)), "False", "True", None),
        (AgentSnapshot(store=view(True, -600)), "True", "False", None),
        (AgentSnapshot(store=view(False, 1)), None, "True", None),
        (AgentSnapshot(store=None), "False", "True", None),
        (AgentSnapshot(store=view(True, 1), is_allowed=False), "False", "True", None),
    ],
)
def test_a_change_of_the_store_counts_after_five_seconds(
    snapshot: AgentSnapshot, previous: str | None, expected: str, again: float | None
) -> None:
    status, look_again = degraded(snapshot, previous)
    assert status == expected
    assert look_again == (timedelta(seconds=again) if again else None)


AGENT_TABLE: dict[str, tuple[AgentSnapshot, str]] = {
    "it is bound": (AgentSnapshot(store=view(True, 60), is_acknowledged=True, deployment=RUNNING), "Current"),
    "its store is missing": (AgentSnapshot(), "InProgress"),
    "another has its account": (AgentSnapshot(store=view(True, 60), holder="other"), "Failed"),
    "an object is refused": (AgentSnapshot(store=view(True, 60), problems=REFUSED), "Failed"),
    "its pods are replaced": (
        AgentSnapshot(store=view(True, 60), is_acknowledged=True, deployment=ROLLING),
        "InProgress",
    ),
    "its pods have missed their deadline": (
        AgentSnapshot(store=view(True, 60), is_acknowledged=True, deployment=STUCK),
        "Failed",
    ),
    "its new pods have missed their deadline while an old one serves": (
        AgentSnapshot(store=view(True, 60), deployment=replace(STUCK, replicas=2, ready=1), is_acknowledged=False),
        "Failed",
    ),
}


@pytest.mark.parametrize("case", AGENT_TABLE)
def test_an_agents_reading_by_kstatus(case: str) -> None:
    snapshot, reading = AGENT_TABLE[case]
    template = {"spec": {"containers": [{"name": "bot", "image": "x"}]}}
    manifest = body("AgentMemory", "helper", {"memoryStore": "notes", "agent": {"template": template}})
    result = agent_status(agent_memory.parse(manifest), snapshot, START, PATIENCE)
    assert kstatus({item["type"]: item for item in result.content["conditions"]}) == reading


def model_ready(spec: dict[str, Any], probe: ProbeResult | None) -> tuple[str, str]:
    model = model_api.parse(body("ModelAPI", "gpt", {"baseURL": "https://x/v1", **spec}))
    found = model_api_status(model, probe, START)["conditions"][0]
    return found["status"], found["reason"]


def test_a_model_endpoint_follows_its_probe() -> None:
    assert model_ready({}, None) == ("Unknown", "Reconciling")
    assert model_ready({}, ProbeResult(Reason.REACHABLE, "")) == ("True", "Reachable")
    assert model_ready({}, ProbeResult(Reason.UNREACHABLE, "")) == ("False", "Unreachable")
    assert model_ready({"probe": "none"}, None) == ("True", "ProbeDisabled")


def told(kind: str, before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, str]]:
    def status(found: dict[str, Any]) -> dict[str, Any]:
        return {"conditions": list(found.values())}

    return [(item.severity, item.reason, item.note) for item in announcements(kind, status(before), status(after))]


STARTING_POD = replace(GOOD, deployment=STOPPED, health=saying({Part.STORAGE: Code.STARTING}, ready=False))
UNSCHEDULED = replace(STOPPED, trouble="Pod 'x': Unschedulable: no node fits.")


def test_a_store_that_merely_starts_is_announced_when_it_serves() -> None:
    found: dict[str, Any] = {}
    for snapshot in (StoreSnapshot("http://x"), replace(GOOD, deployment=STOPPED, health=None), STARTING_POD):
        before, found = found, store_conditions(snapshot, {"conditions": list(found.values())})
        assert told("MemoryStore", before, found) == []
    assert (found["Ready"]["status"], found["Ready"]["reason"]) == ("False", "Starting")
    served = store_conditions(GOOD, {"conditions": list(found.values())})
    assert told("MemoryStore", found, served) == [("Normal", "Available", "1 of 1 pods are ready.")]


def test_a_start_that_something_keeps_from_ending_is_a_warning_with_the_cause() -> None:
    first = store_conditions(replace(GOOD, deployment=STOPPED, health=None))
    stuck = store_conditions(replace(GOOD, deployment=UNSCHEDULED, health=None), {"conditions": list(first.values())})
    cause = "0 of 1 pods are ready. Pod 'x': Unschedulable: no node fits."
    assert told("MemoryStore", first, stuck) == [("Warning", "WorkloadUnavailable", cause)]


def test_pods_that_served_and_are_gone_are_a_warning_and_one_that_starts_again_is_none() -> None:
    served = store_conditions(GOOD)
    gone = store_conditions(replace(GOOD, deployment=STOPPED, health=None), {"conditions": list(served.values())})
    assert told("MemoryStore", served, gone) == [("Warning", "WorkloadUnavailable", "0 of 1 pods are ready.")]
    again = store_conditions(STARTING_POD, {"conditions": list(served.values())})
    assert [item[:2] for item in told("MemoryStore", served, again)] == [("Normal", "Starting")]


@pytest.mark.parametrize("text", ["\u2026" + "x" * 1100, "x" * 1023 + "\u2026", "\u2026" * 400])
def test_an_event_says_as_many_bytes_as_the_api_server_takes(text: str) -> None:
    found = store_conditions(replace(GOOD, problems=(ApplyProblem("Service", "x", Reason.APPLY_FAILED, text),)))
    ((_, _, note),) = told("MemoryStore", store_conditions(GOOD), found)
    assert 1020 < len(note.encode()) <= 1024
    assert text.startswith(note)


def test_what_two_conditions_say_is_one_event() -> None:
    conflict = (ApplyProblem("Service", "x", Reason.NAME_CONFLICT, "Service 'x' exists."),)
    found = store_conditions(replace(GOOD, problems=conflict))
    assert {found["Ready"]["reason"], found["Stalled"]["reason"]} == {"NameConflict"}
    assert told("MemoryStore", {}, found) == [("Warning", "NameConflict", "Service 'x' exists.")]


def test_what_somebody_asked_for_is_no_warning() -> None:
    stopped = replace(GOOD, deployment=replace(STOPPED, wanted=0, updated=0, replicas=0))
    found = store_conditions(stopped, replicas=0)
    assert told("MemoryStore", store_conditions(GOOD), found) == [
        ("Normal", "ScaledToZero", "The store is scaled to zero.")
    ]


def test_a_model_endpoint_that_was_not_probed_yet_is_waited_for_in_silence() -> None:
    unprobed = (ModelState("gpt", True, None, "It has not been probed yet."),)
    found = store_conditions(StoreSnapshot("http://x", models=unprobed, waits_for_models=True), **CHAT)
    assert (found["Ready"]["status"], found["Ready"]["reason"]) == ("Unknown", "WaitingForModelAPI")
    assert found["ModelsReady"]["status"] == "Unknown"
    assert told("MemoryStore", {}, found) == []


def test_what_a_report_says_becomes_a_sentence() -> None:
    parts = report(ready=False, failing={Part.SECRETS: Code.SECRET_MISSING})
    said = parts.parts[Part.SECRETS].model_copy(update={"message": "no DSN: db does not hold one yet"})
    health = HealthState((parts.model_copy(update={"parts": {**parts.parts, Part.SECRETS: said}}),))
    found = store_conditions(replace(GOOD, deployment=STOPPED, health=health))
    assert found["Ready"]["message"] == "No DSN: db does not hold one yet."
