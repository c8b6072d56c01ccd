"""From `helm install` to an agent that remembers; and who does not get in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.clusters import Cluster, Namespace
from e2e.cluster.errors import ProgramFailed
from e2e.installation import (
    OPERATOR,
    POD_READY_SECONDS,
    RESTRICTED,
    Installation,
    a_team,
    agent_memory,
    agent_pods,
    say,
    store_pods,
    wait_for,
)
from memory_service.client import SyncMemoryClient

TWELVE_LINES = """\
apiVersion: memplane.dev/v1alpha1
kind: MemoryStore
metadata:
  name: team
spec:
  storage:
    type: local
    local:
      persistentVolume:
        size: 64Mi
  longTerm:
    defaultTopK: 5
"""


GUEST = """
from memory_service.client import SyncMemoryClient
client = SyncMemoryClient.bind("team", outbox=None)
told = client.write("today", [{"role": "user", "content": "The spare key is under the blue pot."}])
assert told.status == "stored", told
print(client.recall("Where is the spare key?", include=["long_term"]).long_term.items[0].text)
"""


def connects(namespace: Namespace, pod: str, host: str, address: str = "8800/healthz") -> bool:
    """Whether a pod gets an answer from a port of a store."""
    script = f"import urllib.request as u; print(u.urlopen('http://{host}:{address}', timeout=4).status)"
    try:
        return namespace.kubectl.execute(pod, "python", "-c", script).strip() == "200"
    except ProgramFailed:
        return False


def waiting_pod(image: str, name: str, labels: dict[str, str], account: str = "default") -> dict[str, Any]:
    """A pod that does nothing but can be asked to."""
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", "import signal; signal.pause()"],
        "securityContext": RESTRICTED,
    }
    spec = {"serviceAccountName": account, "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def refusal(namespace: Namespace, token: str) -> tuple[int, str]:
    """With what the store refuses this token; no network policy is in the way."""
    with (
        namespace.forward("service/team-memory", 8800) as url,
        SyncMemoryClient(endpoint=url, token=token, outbox=None) as client,
    ):
        recalled = client.recall("anything")
    assert recalled.problem is not None, recalled
    return recalled.problem.status, recalled.problem.detail or recalled.problem.title


@pytest.fixture(scope="module")
def team(installed: Installation) -> Iterator[Namespace]:
    """A namespace with the twelve lines, and an agent."""
    installed.wait_for_leader()
    assert len(TWELVE_LINES.splitlines()) == 12
    with a_team(installed, "install-to-recall", TWELVE_LINES) as namespace:
        yield namespace


def test_the_installation_passes_its_own_test(memplane: Installation) -> None:
    said = memplane.cluster.helm("test", memplane.release, "--namespace", memplane.namespace, "--logs")
    assert "Succeeded" in said


def test_an_agent_remembers_in_another_conversation_what_it_was_told_in_one(team: Namespace) -> None:
    told = say(team, "My sister Ada plays the cello in Porto.", session="monday")
    assert told["written"] == ["stored"]
    answer = say(team, "Which instrument does my sister Ada play?", session="friday")
    assert answer["outcome"] == "applied"
    assert "plays the cello" in answer["block"]


def test_the_statuses_tell_what_is_there(team: Namespace) -> None:
    store = team.kubectl.get("memorystore", "team")["status"]
    assert store["endpoint"] == f"http://team-memory.{team.name}.svc.cluster.local:8800"
    assert (store["replicas"], store["readyReplicas"]) == (1, 1)
    agent = team.kubectl.get("agentmemory", "assistant")["status"]
    assert agent["agentIdentity"] == f"kaos://agent/{team.name}/assistant"
    assert agent["audience"] == f"memplane:{team.name}/team"
    # A store that has just become ready counts once it has stayed so for some seconds.
    wait_for(team, "agentmemory", "assistant", "MemoryDegraded", "False", seconds=20)
    # Told by the first health report after the first token was reviewed.
    wait_for(team, "memorystore", "team", "RevocationAvailable", "True", seconds=60)


def test_the_agents_own_token_is_the_only_one_that_it_has(team: Namespace) -> None:
    (pod,) = agent_pods(team)
    tokens = [
        source["serviceAccountToken"]["audience"]
        for volume in pod["spec"]["volumes"]
        for source in (volume.get("projected") or {}).get("sources") or ()
        if "serviceAccountToken" in source and volume["name"] == "memplane"
    ]
    assert tokens == [f"memplane:{team.name}/team"]
    assert pod["spec"]["serviceAccountName"] == "assistant"


def test_another_service_account_is_refused(team: Namespace) -> None:
    team.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "stranger"}})
    status, why = refusal(team, team.token("stranger", audience=f"memplane:{team.name}/team"))
    assert status == 403, why


def test_the_agents_account_is_refused_with_a_token_for_another_audience(team: Namespace) -> None:
    # The operator's audience is one that the store knows, and may not recall with; who may use it is checked besides.
    for audience, expected in ((f"memplane:{team.name}/other", 401), (None, 401), ("memplane:operator", 403)):
        status, why = refusal(team, team.token("assistant", audience=audience))
        assert status == expected, (audience, why)


def test_the_agents_account_is_admitted_with_a_token_for_the_store(team: Namespace) -> None:
    token = team.token("assistant", audience=f"memplane:{team.name}/team")
    with (
        team.forward("service/team-memory", 8800) as url,
        SyncMemoryClient(endpoint=url, token=token, outbox=None) as client,
    ):
        assert client.recall("anything").problem is None


def test_a_pod_that_only_names_its_binding_remembers(team: Namespace, memplane: Installation) -> None:
    team.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "guest"}},
        agent_memory("guest", tools="all"),
    )
    wait_for(team, "agentmemory", "guest", "Ready", "True")
    team.apply(waiting_pod(memplane.service_image, "guest", {"memplane.dev/inject": "guest"}, account="guest"))
    team.kubectl.wait("condition=Ready", "pod/guest", seconds=POD_READY_SECONDS)
    said = team.cluster.wait_until(
        "the store to let the pod in",
        lambda: team.kubectl.execute("guest", "python", "-c", GUEST),
        ignoring=(ProgramFailed,),
        explain=team.describe,
    )
    assert said.strip() == "The spare key is under the blue pot."


def test_a_token_is_refused_within_a_minute_of_its_pods_end(team: Namespace, memplane: Installation) -> None:
    pod = waiting_pod(memplane.service_image, "short-lived", {}, account="assistant")
    source = {"serviceAccountToken": {"path": "token", "audience": f"memplane:{team.name}/team"}}
    pod["spec"]["volumes"] = [{"name": "memplane", "projected": {"sources": [source]}}]
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "memplane", "mountPath": "/token"}]
    team.apply(pod)
    team.kubectl.wait("condition=Ready", "pod/short-lived", seconds=POD_READY_SECONDS)
    token = team.kubectl.execute("short-lived", "python", "-c", "print(open('/token/token').read())").strip()
    with (
        team.forward("service/team-memory", 8800) as url,
        SyncMemoryClient(endpoint=url, token=token, outbox=None) as client,
    ):
        assert client.recall("anything").problem is None
        team.kubectl.delete("pod", "short-lived", grace_seconds=0)
        problem = team.cluster.wait_until("the refusal", lambda: client.recall("anything").problem, seconds=60)
    assert problem.status == 401


def test_network_policies_admit_bound_pods_and_the_operator_and_nobody_else(
    team: Namespace, memplane: Installation, cluster: Cluster
) -> None:
    host = f"team-memory.{team.name}.svc.cluster.local"
    bound = {"memplane.dev/binding": "assistant"}
    team.apply(
        waiting_pod(memplane.service_image, "unlabelled", {}),
        waiting_pod(memplane.service_image, "labelled", bound),
    )
    with cluster.new_namespace("elsewhere") as elsewhere:
        elsewhere.apply(waiting_pod(memplane.service_image, "labelled", bound))
        for namespace, name in ((team, "unlabelled"), (team, "labelled"), (elsewhere, "labelled")):
            namespace.kubectl.wait("condition=Ready", f"pod/{name}", seconds=POD_READY_SECONDS)
        cluster.wait_until("a bound pod is admitted", lambda: connects(team, "labelled", host), seconds=30)
        assert connects(team, "deployment/team-memory", "127.0.0.1", "8801/metrics")
        assert not connects(team, "labelled", host, "8801/metrics")
        assert not connects(team, "unlabelled", host)
        assert not connects(elsewhere, "labelled", host)
    system = Namespace(memplane.namespace, cluster, cluster.kubectl.in_namespace(memplane.namespace))
    assert connects(system, f"deployment/{OPERATOR}", host)


def test_the_stores_pod_is_restricted_and_runs_alone(team: Namespace) -> None:
    (pod,) = store_pods(team)
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert team.kubectl.find("poddisruptionbudget", "team-memory") is None
