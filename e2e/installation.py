"""Memplane installed by its chart, and what journeys do with it: stores, agents that run, and what they say.

`memplane` installs the chart once for all journeys, with the images of this checkout, into a namespace that admits
restricted pods only.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import home
from e2e.cluster.clusters import Cluster, Namespace
from e2e.cluster.errors import NotInTime, ProgramFailed

__all__ = ["installed", "memplane", "team"]

CHART = home.REPOSITORY / "charts" / "memplane"
SYSTEM = "memplane-system"
OPERATOR = "memplane-operator"
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "runAsGroup": 65532,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
POD_READY_SECONDS = 180
"""The service loads an embedding model when it starts; on a busy machine that takes its time."""

AGENT_PROGRAM = """
import json, os
from http.server import BaseHTTPRequestHandler, HTTPServer
from memory_service.client import SyncAgentMemory, SyncMemoryClient

client = SyncMemoryClient.bind(os.environ["STORE"], outbox="/tmp/outbox")
window = []

class Agent(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        memory = SyncAgentMemory(client, session_id=asked["session"])
        prelude = memory.before_run(asked["text"])
        turns = [{"role": "user", "content": asked["text"]}]
        written = memory.after_run(turns)
        window.extend(turn["content"] for turn in turns)
        answer = {
            "outcome": prelude.outcome,
            "block": prelude.block,
            "degraded": [f"{item.part} {item.reason}" for item in prelude.degraded],
            "written": [item.status for item in written],
            "own_window": window,
        }
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass

HTTPServer(("", 8000), Agent).serve_forever()
"""
"""An agent with a runtime of a few lines: it recalls before a run, keeps what was said after it, and has a window."""

_ASK = """
import sys, urllib.request
request = urllib.request.Request("http://127.0.0.1:8000/", data=sys.argv[1].encode())
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""


@dataclass(frozen=True)
class Installation:
    """An installed release."""

    cluster: Cluster
    operator_image: str
    service_image: str
    namespace: str = SYSTEM
    release: str = "memplane"

    def values(self, **others: Any) -> list[str]:
        """The arguments of helm that name this checkout's images; others by their path, `__` for a dot."""
        operator, service = (image.rpartition(":") for image in (self.operator_image, self.service_image))
        values = {
            "replicas": 1,
            "image.repository": operator[0],
            "image.tag": operator[2],
            "image.pullPolicy": "IfNotPresent",
            "stores.image.repository": service[0],
            "stores.image.tag": service[2],
            "podDisruptionBudget.enabled": "false",
            "injection.enabled": "true",
            **{name.replace("__", "."): value for name, value in others.items()},
        }
        return [part for name, value in values.items() for part in ("--set", f"{name}={value}")]

    def upgrade(self, *arguments: str, chart: Path = CHART, **values: Any) -> str:
        """Install the chart, or upgrade it, and wait until the operator is ready."""
        return self.cluster.helm(
            "upgrade",
            "--install",
            self.release,
            str(chart),
            "--namespace",
            self.namespace,
            "--wait",
            f"--timeout={POD_READY_SECONDS}s",
            *self.values(**values),
            *arguments,
            timeout_seconds=POD_READY_SECONDS + 30,
        )

    def uninstall(self) -> None:
        """Uninstall the release; what it keeps stays."""
        self.cluster.helm("uninstall", self.release, "--namespace", self.namespace, "--wait", "--ignore-not-found")

    def operators(self) -> list[dict[str, Any]]:
        """The operator's pods that are not on their way out."""
        kubectl = self.cluster.kubectl.in_namespace(self.namespace)
        pods = kubectl.list("pods", selector="app.kubernetes.io/component=operator")
        return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]

    def leader(self) -> str:
        """The pod that holds the Lease, or an empty text."""
        lease = self.cluster.kubectl.in_namespace(self.namespace).find("lease", OPERATOR) or {}
        return str((lease.get("spec") or {}).get("holderIdentity") or "")

    def wait_for_leader(self, seconds: float = 60) -> str:
        """Wait until an operator that runs leads, and return its name."""

        def leading() -> str:
            holder = self.leader()
            return holder if holder in [pod["metadata"]["name"] for pod in self.operators()] else ""

        return self.cluster.wait_until("a leader", leading, seconds=seconds, explain=self.log)

    def log(self) -> str:
        """The end of the operators' logs."""
        try:
            return self.cluster.kubectl.in_namespace(self.namespace)(
                "logs", "--selector=app.kubernetes.io/component=operator", "--prefix", "--tail=60"
            )
        except ProgramFailed as error:
            return error.output


@pytest.fixture(scope="session")
def installed(cluster: Cluster, operator_image: str, service_image: str) -> Iterator[Installation]:
    """The release of all journeys, as it is when the session starts."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM, "labels": labels}})
    installation = Installation(cluster, operator_image, service_image)
    installation.upgrade()
    yield installation
    installation.uninstall()


@pytest.fixture
def memplane(installed: Installation) -> Installation:
    """The release, with an operator that leads whatever the test before did to it."""
    installed.wait_for_leader()
    return installed


# --- what journeys apply


def local_store(name: str = "team", **spec: Any) -> dict[str, Any]:
    """A store on a small volume."""
    volume = {"persistentVolume": {"size": "64Mi"}}
    storage = {"type": "local", "local": volume}
    return memory_store(name, **{"storage": storage, **spec})


def external_store(name: str, secret: str, **spec: Any) -> dict[str, Any]:
    """A store on the Postgres whose URI is in a Secret."""
    storage = {"type": "external", "external": {"connectionSecretRef": {"name": secret}}}
    return memory_store(name, **{"storage": storage, **spec})


def memory_store(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "memplane.dev/v1alpha1", "kind": "MemoryStore", "metadata": {"name": name}, "spec": spec}


def agent_pod(image: str, store: str) -> dict[str, Any]:
    """The pod template of an agent."""
    container = {
        "name": "agent",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", AGENT_PROGRAM],
        "env": [{"name": "STORE", "value": store}],
        "ports": [{"containerPort": 8000}],
        "readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 2},
        "securityContext": RESTRICTED,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    volumes = [{"name": "tmp", "emptyDir": {}}]
    return {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container], "volumes": volumes}}


def agent_memory(name: str = "assistant", store: str | None = "team", **spec: Any) -> dict[str, Any]:
    """A binding; `agent={"template": agent_pod(...)}` has the operator run the agent."""
    named = {"memoryStore": store} if store else {}
    return {
        "apiVersion": "memplane.dev/v1alpha1",
        "kind": "AgentMemory",
        "metadata": {"name": name},
        "spec": {**named, **spec},
    }


# --- what journeys see


def conditions(namespace: Namespace, kind: str, name: str) -> dict[str, dict[str, Any]]:
    """An object's conditions by type; none when it or its status is not there yet."""
    found = namespace.kubectl.find(kind, name) or {}
    return {item["type"]: item for item in (found.get("status") or {}).get("conditions") or ()}


def wait_for(
    namespace: Namespace,
    kind: str,
    name: str,
    condition: str,
    status: str,
    *,
    reason: str | None = None,
    seconds: float = POD_READY_SECONDS,
) -> dict[str, Any]:
    """Wait until an object's condition has a status (and a reason), and return the condition."""

    def reached() -> dict[str, Any] | None:
        found = conditions(namespace, kind, name).get(condition)
        if found is None or found["status"] != status or (reason is not None and found["reason"] != reason):
            return None
        return found

    def explain() -> str:
        return json.dumps(conditions(namespace, kind, name), indent=1)

    what = f"{condition}={status} {reason or ''} of {kind} {name}"
    return namespace.cluster.wait_until(what, reached, seconds=seconds, explain=explain)


def pods_of(namespace: Namespace, selector: str) -> list[dict[str, Any]]:
    """The pods with these labels that are not on their way out."""
    pods = namespace.kubectl.list("pods", selector=selector)
    return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]


def store_pods(namespace: Namespace, store: str = "team") -> list[dict[str, Any]]:
    return pods_of(namespace, f"memplane.dev/store={store}")


def agent_pods(namespace: Namespace, agent: str = "assistant") -> list[dict[str, Any]]:
    return pods_of(namespace, f"memplane.dev/agent={agent}")


def fingerprint(pods: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """What must not change when a store comes or goes: which pods there are, and how often they were restarted."""
    return sorted(
        (pod["metadata"]["uid"], sum(status["restartCount"] for status in pod["status"].get("containerStatuses") or ()))
        for pod in pods
    )


def say(namespace: Namespace, text: str, *, session: str = "s1", agent: str = "assistant") -> dict[str, Any]:
    """Say something to an agent in its own pod and return what became of it."""
    asked = json.dumps({"session": session, "text": text})
    answer: dict[str, Any] = json.loads(
        namespace.kubectl.execute(f"deployment/{agent}", "python", "-c", _ASK, asked, timeout_seconds=90)
    )
    return answer


def until_it_reaches_its_store(namespace: Namespace, agent: str = "assistant") -> None:
    """Wait until what is said to an agent is stored at once: after an outage its client asks again after a while."""
    namespace.cluster.wait_until(
        f"{agent} reaches its store",
        lambda: say(namespace, "Hello.", session="hello", agent=agent)["written"] == ["stored"],
        seconds=60,
    )


@contextlib.contextmanager
def a_team(memplane: Installation, prefix: str, store: dict[str, Any] | str | None = None) -> Iterator[Namespace]:
    """A namespace for restricted pods with a ready store `team` and a bound agent `assistant` that runs."""
    with memplane.cluster.new_namespace(prefix) as namespace:
        namespace.kubectl("label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=restricted")
        template = agent_pod(memplane.service_image, "team")
        namespace.apply(store or local_store(), agent_memory(tools="all", agent={"template": template}))
        try:
            wait_for(namespace, "memorystore", "team", "Ready", "True")
            wait_for(namespace, "agentmemory", "assistant", "Ready", "True")
        except NotInTime as error:
            raise AssertionError(f"{error}\n{namespace.describe()}\n{memplane.log()}") from error
        yield namespace


@pytest.fixture(scope="module")
def team(installed: Installation, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """What most journeys start from, once for each file."""
    installed.wait_for_leader()
    with a_team(installed, request.path.stem.removeprefix("test_").replace("_", "-")) as namespace:
        yield namespace
