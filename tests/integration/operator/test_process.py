"""The whole operator against a real API server, with the permissions that its role file gives and no others."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.clusters import LocalCluster
from tests.integration.operator.processes import OperatorProcess, Reports, leading, serving_reports

USER = "system:serviceaccount:memplane-system:memplane-operator"
EXTERNAL = {"type": "external", "external": {"connectionSecretRef": {"name": "db"}}}
TEMPLATE = {"spec": {"containers": [{"name": "agent", "image": "localhost/agent", "ports": [{"containerPort": 8000}]}]}}


@pytest.fixture(scope="module")
def reports(server: LocalCluster) -> Iterator[Reports]:
    with serving_reports(server) as started:
        yield started


@pytest.fixture(scope="module")
def kubeconfig(server: LocalCluster) -> Path:
    server.kubectl.apply(Path(__file__).parent / "role.yaml")
    server.wait_until(
        "the operator's account",
        lambda: server.kubectl.in_namespace("memplane-system").find("serviceaccount", "memplane-operator"),
    )
    return server.kubeconfig_of("memplane-system", "memplane-operator")


@pytest.fixture(scope="module")
def operator(
    server: LocalCluster, kubeconfig: Path, reports: Reports, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    with leading(server, kubeconfig, tmp_path_factory.mktemp("operator"), "first", reports) as process:
        yield process
    assert [line for line in process.log() if line.get("level") == "error"] == []
    # Nothing is made in a namespace that goes, which is no missing permission.
    refused = [text for line in process.log() if "forbidden" in (text := str(line).lower())]
    assert [text for text in refused if "is being terminated" not in text] == []


def store(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "memplane.dev/v1alpha1",
        "kind": "MemoryStore",
        "metadata": {"name": name},
        "spec": {"storage": EXTERNAL, **spec},
    }


def agent(name: str, memory_store: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "memplane.dev/v1alpha1",
        "kind": "AgentMemory",
        "metadata": {"name": name},
        "spec": {"memoryStore": memory_store, **spec},
    }


def condition(server: LocalCluster, namespace: str, kind: str, name: str, wanted: str) -> str | None:
    found = server.kubectl.in_namespace(namespace).find(kind, name) or {}
    for item in (found.get("status") or {}).get("conditions") or ():
        if item["type"] == wanted:
            return f"{item['status']} {item['reason']}"
    return None


def wait_for(
    server: LocalCluster, namespace: str, who: tuple[str, str], what: tuple[str, str], *, seconds: float = 60
) -> None:
    (kind, name), (wanted, value) = who, what
    server.wait_until(
        f"{kind} {name} has {wanted} {value}",
        lambda: condition(server, namespace, kind, name, wanted) == value,
        seconds=seconds,
        explain=lambda: server.kubectl.in_namespace(namespace)("get", kind, name, "-o", "yaml"),
    )


def bring_up(server: LocalCluster, namespace: str, name: str) -> None:
    """A ready store with one bound agent that the operator runs."""
    server.kubectl.in_namespace(namespace).apply(store(name), agent(f"{name}-bot", name, agent={"template": TEMPLATE}))
    wait_for(server, namespace, ("memorystore", name), ("Ready", "True Available"))
    wait_for(server, namespace, ("agentmemory", f"{name}-bot"), ("Ready", "True Bound"))
    wait_for(server, namespace, ("agentmemory", f"{name}-bot"), ("MemoryDegraded", "False MemoryHealthy"))


def test_a_store_and_an_agent_become_ready(server: LocalCluster, namespace: str, operator: OperatorProcess) -> None:
    bring_up(server, namespace, "first")
    kubectl = server.kubectl.in_namespace(namespace)
    said = kubectl("wait", "--for=condition=Ready", "memorystore/first", "agentmemory/first-bot", "--timeout=5s")
    assert said.count("condition met") == 2
    meta = kubectl.get("memorystore", "first")["metadata"]
    assert "finalizers" not in meta
    assert not any("kopf" in name for name in meta.get("annotations") or {})


def test_deleted_children_come_back_within_five_seconds(
    server: LocalCluster, namespace: str, operator: OperatorProcess
) -> None:
    bring_up(server, namespace, "drift")
    kubectl = server.kubectl.in_namespace(namespace)
    for kind, name in (
        ("service", "drift-memory"),
        ("poddisruptionbudget", "drift-memory"),
        ("networkpolicy", "drift-memory"),
        ("role", "drift-memory"),
        ("configmap", "drift-bindings-0"),
        ("deployment", "drift-memory"),
        ("deployment", "drift-bot"),
    ):
        uid = kubectl.get(kind, name)["metadata"]["uid"]
        kubectl("delete", kind, name, "--wait=false")
        started = time.monotonic()
        server.wait_until(
            f"{kind} {name} is back",
            lambda kind=kind, name=name, uid=uid: (
                (found := kubectl.find(kind, name)) and found["metadata"]["uid"] != uid
            ),
            explain=operator.text,
        )
        assert time.monotonic() - started < 5


@pytest.mark.parametrize(("kind", "field"), [("rolebinding", "roleRef"), ("deployment", "spec.selector")])
def test_an_object_that_somebody_has_made_and_no_apply_can_change_is_named_until_it_is_deleted(
    server: LocalCluster, namespace: str, operator: OperatorProcess, kind: str, field: str
) -> None:
    kubectl, name = server.kubectl.in_namespace(namespace), f"byhand-{kind}"
    labels = {"app.kubernetes.io/managed-by": "memplane", "memplane.dev/store": name}
    meta = {"name": f"{name}-memory", "labels": labels}
    api = "rbac.authorization.k8s.io"
    if kind == "rolebinding":
        content: dict[str, Any] = {"roleRef": {"apiGroup": api, "kind": "Role", "name": "other"}}
        kubectl.apply({"apiVersion": f"{api}/v1", "kind": "RoleBinding", "metadata": meta, **content})
    else:
        pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "memory", "image": "x"}]}}
        content = {"selector": {"matchLabels": {"a": "b"}}, "replicas": 0, "template": pod}
        kubectl.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": content})
    kubectl.apply(store(name))
    wait_for(server, namespace, ("memorystore", name), ("Stalled", "True ApplyFailed"))
    conditions = kubectl.get("memorystore", name)["status"]["conditions"]
    (said,) = [item["message"] for item in conditions if item["type"] == "Stalled"]
    assert f"Somebody has made it with another {field}: delete it, and it is made again." in said
    kubectl("delete", kind, meta["name"])
    wait_for(server, namespace, ("memorystore", name), ("Ready", "True Available"))
    assert condition(server, namespace, "memorystore", name, "Stalled") is None


def test_an_account_that_nobody_has_made_is_named_and_the_earlier_one_goes_with_its_last_pod(
    server: LocalCluster, namespace: str, operator: OperatorProcess
) -> None:
    bring_up(server, namespace, "moved")
    kubectl = server.kubectl.in_namespace(namespace)
    kubectl.patch("agentmemory", "moved-bot", {"spec": {"agent": {"serviceAccountName": "later"}}})
    kubectl.patch("memorystore", "moved", {"spec": {"serviceAccountName": "later"}})

    def messages(kind: str, name: str) -> str:
        found = kubectl.get(kind, name)["status"]["conditions"]
        return " ".join(item["message"] for item in found if item["type"] == "Reconciling")

    for kind, name in (("agentmemory", "moved-bot"), ("memorystore", "moved")):
        server.wait_until(
            f"{name} says which account is missing",
            lambda kind=kind, name=name: 'serviceaccount "later" not found' in messages(kind, name),
            explain=lambda: kubectl("get", "agentmemory,memorystore,deployment", "-o", "yaml"),
        )
        assert kubectl.find("serviceaccount", "moved-bot" if name == "moved-bot" else "moved-memory")
    assert condition(server, namespace, "memorystore", "moved", "Ready") == "True Available"
    kubectl("create", "serviceaccount", "later")
    for name in ("moved-bot", "moved-memory"):
        # The controller that makes pods waits longer after each refusal.
        kubectl("delete", "replicaset", "--selector", f"memplane.dev/{'agent' if 'bot' in name else 'store'}")
        server.wait_until(
            f"the account {name} goes",
            lambda name=name: kubectl.find("serviceaccount", name) is None,
            explain=operator.text,
        )
    subjects = kubectl.get("rolebinding", "moved-memory")["subjects"]
    assert [item["name"] for item in subjects] == ["later"]


def test_an_edit_is_put_back_and_another_managers_field_stays(
    server: LocalCluster, namespace: str, operator: OperatorProcess
) -> None:
    bring_up(server, namespace, "edited")
    kubectl = server.kubectl.in_namespace(namespace)
    kubectl("annotate", "service", "edited-memory", "theirs=1")
    kubectl.patch("service", "edited-memory", {"spec": {"selector": {"memplane.dev/store": "wrong"}}})
    server.wait_until(
        "the selector is put back",
        lambda: kubectl.get("service", "edited-memory")["spec"]["selector"]["memplane.dev/store"] == "edited",
        seconds=5,
    )
    assert kubectl.get("service", "edited-memory")["metadata"]["annotations"]["theirs"] == "1"


def test_a_quiet_cluster_sees_no_write_but_the_lease(
    server: LocalCluster, namespace: str, operator: OperatorProcess
) -> None:
    bring_up(server, namespace, "quiet")
    last = time.monotonic()
    mark = server.audit.mark()

    def is_quiet() -> bool:
        nonlocal last, mark
        if server.audit.writes(mark, user=USER, where=lambda write: write.resource != "leases"):
            last, mark = time.monotonic(), server.audit.mark()
        return time.monotonic() - last > 20

    server.wait_until(
        "twenty seconds without a write",
        is_quiet,
        seconds=60,
        explain=lambda: "\n".join(map(str, server.audit.writes(0, user=USER)[-20:])),
    )
    assert server.audit.writes(mark, user=USER), "the Lease is renewed"


def test_a_deleted_store_degrades_its_agent_and_leaves_its_pods(
    server: LocalCluster, namespace: str, operator: OperatorProcess
) -> None:
    bring_up(server, namespace, "gone")
    kubectl = server.kubectl.in_namespace(namespace)
    before = kubectl.get("deployment", "gone-bot")
    kubectl("delete", "memorystore", "gone", "--wait=false")
    wait_for(server, namespace, ("agentmemory", "gone-bot"), ("MemoryDegraded", "True StoreNotFound"), seconds=15)
    assert condition(server, namespace, "agentmemory", "gone-bot", "Ready") == "True Bound"
    after = kubectl.get("deployment", "gone-bot")
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


def test_pods_that_stay_ready_and_cannot_be_reached_degrade_their_agents_and_recover(
    server: LocalCluster, namespace: str, operator: OperatorProcess, reports: Reports
) -> None:
    """That it takes 15 s at most is shown on a clock that does not share this machine: test_io.py."""
    bring_up(server, namespace, "silent")
    agent = ("agentmemory", "silent-bot")
    with reports.silent():
        wait_for(server, namespace, agent, ("MemoryDegraded", "True StoreUnreachable"), seconds=45)
        assert condition(server, namespace, *agent, "Ready") == "True Bound"
    wait_for(server, namespace, agent, ("MemoryDegraded", "False MemoryHealthy"), seconds=45)


def test_the_token_review_binding_lists_the_stores(
    server: LocalCluster, namespace: str, operator: OperatorProcess
) -> None:
    bring_up(server, namespace, "reviewed")

    def is_listed() -> bool:
        found = server.kubectl.find("clusterrolebinding", "memplane-token-review") or {}
        subjects = [(item["namespace"], item["name"]) for item in found.get("subjects") or ()]
        return (namespace, "reviewed-memory") in subjects

    server.wait_until("the store is listed", is_listed)


def test_probes_and_metrics_answer(operator: OperatorProcess) -> None:
    for path in ("/livez", "/readyz"):
        with urllib.request.urlopen(f"{operator.url}{path}") as answer:
            assert answer.read() == b"ok"
    with urllib.request.urlopen(f"{operator.url}/metrics") as answer:
        text = answer.read().decode()
    assert "memplane_operator_leader 1.0" in text
    assert 'memplane_operator_reconciles_total{kind="MemoryStore",result="ok"}' in text


def test_a_namespace_with_stores_is_deleted_without_hanging(server: LocalCluster, operator: OperatorProcess) -> None:
    with server.new_namespace("leaving") as leaving:
        bring_up(server, leaving.name, "notes")
        server.kubectl("delete", "namespace", leaving.name, "--timeout=60s")


Starter = Callable[[], OperatorProcess]


@pytest.fixture
def start_another(server: LocalCluster, kubeconfig: Path, reports: Reports, tmp_path: Path) -> Iterator[Starter]:
    """Starts operators that wait for the Lease; none of them outlives the test."""
    started: list[OperatorProcess] = []

    def start() -> OperatorProcess:
        process = OperatorProcess(server, kubeconfig, tmp_path, f"another-{len(started)}", reports)
        started.append(process)
        server.wait_until(f"{process.name} waits", lambda: process.url, seconds=60, explain=process.text)
        return process

    yield start
    for process in started:
        process.stop(signal.SIGKILL)


def hand_over(leader: OperatorProcess, heir: OperatorProcess, number: int) -> float:
    """End the leader by a signal; return how many seconds later the heir had filled its caches and led."""
    assert not heir.is_leading
    began = datetime.now(UTC)
    leader.stop(number)
    heir.wait_to_lead(60)
    return (heir.led_at - began).total_seconds()


def test_leadership_is_handed_over_at_once_on_term_and_after_the_lease_on_kill(
    server: LocalCluster, namespace: str, operator: OperatorProcess, start_another: Starter
) -> None:
    """About 3 s and 20 s (15 of which are the Lease's) on a machine whose cores are free.

    The limits leave room for other tests beside this one, and more where more processes run than there are cores.
    """
    heir, slack = start_another(), max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    took = hand_over(operator, heir, signal.SIGTERM)
    assert took < 10 * slack, f"slack {slack:.1f}"
    leader, heir = heir, start_another()
    took = hand_over(leader, heir, signal.SIGKILL)
    assert took < 15 + 10 * slack, f"slack {slack:.1f}"
    leader = heir
    server.kubectl.in_namespace(namespace).apply(store("late"))
    wait_for(server, namespace, ("memorystore", "late"), ("Ready", "True Available"))
    assert leader.stop() == 0, leader.text()


def test_what_a_store_owns_goes_with_it_while_no_operator_runs(
    server: LocalCluster, namespace: str, operator: OperatorProcess, start_another: Starter
) -> None:
    operator.stop()
    process = start_another()
    process.wait_to_lead()
    bring_up(server, namespace, "orphan")
    assert process.stop() == 0, process.text()
    kubectl = server.kubectl.in_namespace(namespace)
    kubectl("delete", "memorystore/orphan", "agentmemory/orphan-bot", "--timeout=10s")
    for kind in ("deployment", "service", "configmap", "serviceaccount", "role", "rolebinding", "networkpolicy"):
        server.wait_until(
            f"every {kind} of the store is gone",
            lambda kind=kind: not kubectl.list(kind, selector="memplane.dev/store=orphan"),
            seconds=60,
        )
