"""What somebody changes is put back, what is theirs is left alone, and where nothing changes nothing is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest

from e2e.cluster.clusters import LocalCluster, Namespace
from e2e.installation import OPERATOR, SYSTEM, Installation, agent_memory, local_store, wait_for

PUT_BACK_WITHIN_SECONDS = 5
QUIET = timedelta(minutes=3)
Json = dict[str, Any]


def edited(path: str, value: Any) -> list[Json]:
    return [{"op": "add", "path": path, "value": value}]


EDITS: dict[tuple[str, str], tuple[list[Json], Callable[[Json], Any]]] = {
    ("deployment", "team-memory"): (
        edited("/spec/template/spec/containers/0/image", "localhost/another:1"),
        lambda item: item["spec"]["template"]["spec"]["containers"][0]["image"],
    ),
    ("service", "team-memory"): (
        edited("/spec/selector/memplane.dev~1store", "other"),
        lambda item: item["spec"]["selector"],
    ),
    ("configmap", "team-memory-config"): (edited("/data/config.yaml", "{}"), lambda item: item["data"]),
    ("configmap", "team-bindings-0"): (edited("/data", {}), lambda item: item["data"]),
    ("role", "team-memory"): (edited("/rules", []), lambda item: item["rules"]),
    ("rolebinding", "team-memory"): (edited("/subjects", []), lambda item: item.get("subjects")),
    ("serviceaccount", "team-memory"): (
        edited("/automountServiceAccountToken", True),
        lambda item: item["automountServiceAccountToken"],
    ),
    ("networkpolicy", "team-memory"): (edited("/spec/ingress", [{}]), lambda item: item["spec"]["ingress"]),
    ("configmap", "assistant-memory"): (edited("/data/binding.json", "{}"), lambda item: item["data"]),
}
DELETED = [
    ("service", "team-memory"),
    ("configmap", "team-memory-config"),
    ("configmap", "team-bindings-0"),
    ("role", "team-memory"),
    ("rolebinding", "team-memory"),
    ("serviceaccount", "team-memory"),
    ("networkpolicy", "team-memory"),
    ("configmap", "assistant-memory"),
    ("deployment", "team-memory"),
]


@pytest.mark.parametrize(("kind", "name"), EDITS)
def test_an_edited_object_is_put_back(team: Namespace, kind: str, name: str) -> None:
    patch, read = EDITS[(kind, name)]
    before = read(team.kubectl.get(kind, name))
    team.kubectl("patch", kind, name, "--type=json", "--patch", json.dumps(patch))
    team.cluster.wait_until(
        f"{kind} {name} as it was",
        lambda: read(team.kubectl.get(kind, name)) == before,
        seconds=PUT_BACK_WITHIN_SECONDS,
        explain=lambda: json.dumps(team.kubectl.get(kind, name)),
    )


@pytest.mark.parametrize(("kind", "name"), DELETED)
def test_a_deleted_object_is_made_again(team: Namespace, kind: str, name: str) -> None:
    uid = team.kubectl.get(kind, name)["metadata"]["uid"]
    team.kubectl.delete(kind, name, wait=False)

    def is_back() -> bool:
        found = team.kubectl.find(kind, name)
        return found is not None and found["metadata"]["uid"] != uid

    team.cluster.wait_until(f"{kind} {name}", is_back, seconds=PUT_BACK_WITHIN_SECONDS)


def test_a_field_that_the_spec_no_longer_asks_for_is_removed(team: Namespace) -> None:
    def selector() -> Any:
        return team.kubectl.get("deployment", "team-memory")["spec"]["template"]["spec"].get("priorityClassName")

    team.kubectl.patch("memorystore", "team", {"spec": {"priorityClassName": "system-node-critical"}})
    team.cluster.wait_until("the field", lambda: selector() == "system-node-critical", seconds=10)
    team.kubectl.patch("memorystore", "team", {"spec": {"priorityClassName": None}})
    team.cluster.wait_until("its end", lambda: selector() is None, seconds=10)
    wait_for(team, "memorystore", "team", "Ready", "True")


def test_what_others_add_stays(team: Namespace) -> None:
    team.kubectl("annotate", "service", "team-memory", "example.com/owner=someone")
    team.kubectl("label", "deployment", "team-memory", "example.com/cost=7")
    team.kubectl.patch("memorystore", "team", {"spec": {"longTerm": {"defaultTopK": 7}}})

    def is_new() -> bool:
        return "defaultTopK: 7" in team.kubectl.get("configmap", "team-memory-config")["data"]["config.yaml"]

    team.cluster.wait_until("the new configuration", is_new, seconds=10)
    assert team.kubectl.get("service", "team-memory")["metadata"]["annotations"]["example.com/owner"] == "someone"
    assert team.kubectl.get("deployment", "team-memory")["metadata"]["labels"]["example.com/cost"] == "7"
    wait_for(team, "memorystore", "team", "Ready", "True")


def test_a_quiet_cluster_sees_no_write_but_the_lease(
    team: Namespace, memplane: Installation, local_cluster: LocalCluster
) -> None:
    team.apply(local_store("second"), agent_memory("reader", "second"))
    for kind, name in (("memorystore", "team"), ("memorystore", "second"), ("agentmemory", "reader")):
        wait_for(team, kind, name, "Ready", "True")
    user = f"system:serviceaccount:{SYSTEM}:{OPERATOR}"

    def writes(since: int) -> list[str]:
        found = local_cluster.audit.writes(since, user=user, where=lambda write: write.resource != "leases")
        return [str(write) for write in found]

    # A status may still catch up with counters for half a minute; the three minutes begin with the last write.
    mark, began = local_cluster.audit.mark(), monotonic()
    limit = began + 3 * QUIET.total_seconds()

    def is_quiet() -> bool:
        nonlocal mark, began
        if writes(mark):
            mark, began = local_cluster.audit.mark(), monotonic()
        assert monotonic() < limit, "never quiet"
        return monotonic() - began > QUIET.total_seconds()

    local_cluster.wait_until("three minutes without a write", is_quiet, seconds=4 * QUIET.total_seconds())
    leases = local_cluster.audit.writes(mark, user=user)
    assert leases
    assert {write.resource for write in leases} == {"leases"}
