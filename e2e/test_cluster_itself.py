"""The test cluster is what the journeys take it for: pods, names, volumes, policies, tokens, an audit log, an end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.cluster import archives, home, kwok, runs, sysctls, waiting
from e2e.cluster.clusters import Cluster, LocalCluster, Namespace
from e2e.cluster.errors import ProgramFailed

AUDIENCE = "memplane.test/store"
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod(name: str, script: str, *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A small restricted pod that runs a shell script."""
    container = {
        "name": "main",
        "image": archives.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "securityContext": RESTRICTED,
        **spec.pop("container", {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container], **spec},
    }


def web_server(name: str, *, node: str | None = None) -> dict[str, Any]:
    ready = {"ports": [{"containerPort": 8080}], "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}}
    placed = {"nodeName": node} if node else {}
    return pod(name, "exec httpd -f -p 8080 -h /etc", labels={"app": name}, container=ready, **placed)


def service(name: str) -> dict[str, Any]:
    spec = {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def address(namespace: Namespace, name: str) -> str:
    ip: str = namespace.kubectl.get("pod", name)["status"]["podIP"]
    return ip


def can_fetch(namespace: Namespace, source: str, host: str, port: int) -> bool:
    """Whether a pod gets an answer; by nc, since a static wget cannot look anything up and crashes."""
    script = f"printf 'GET /passwd HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {host} {port}"
    try:
        return "nobody:x:65532" in namespace.kubectl.execute(source, "sh", "-c", script)
    except ProgramFailed:
        return False


def test_two_real_nodes_are_ready(local_cluster: LocalCluster) -> None:
    nodes = local_cluster.kubectl.list("nodes", selector="type!=kwok")
    ready = {
        node["metadata"]["name"]: condition["status"]
        for node in nodes
        for condition in node["status"]["conditions"]
        if condition["type"] == "Ready"
    }
    assert ready == {"node0": "True", "node1": "True"}
    assert {node["status"]["nodeInfo"]["kubeletVersion"] for node in nodes} == {"v1.37.2"}


def test_a_restricted_pod_runs_and_is_reached_from_the_machine(namespace: Namespace) -> None:
    namespace.kubectl(
        "label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=restricted", "--overwrite"
    )
    namespace.apply(web_server("web"), service("web"))
    namespace.kubectl.wait("condition=Ready", "pod/web")
    with namespace.forward("service/web", 80) as url:
        assert "nobody:x:65532" in httpx.get(f"{url}/passwd", trust_env=False).text


def test_pods_find_services_of_either_node_by_name_and_address(namespace: Namespace) -> None:
    namespace.apply(web_server("web", node="node0"), service("web"))
    namespace.apply(*(pod(f"near-{n}", "sleep 600", nodeName=n) for n in ("node0", "node1")))
    namespace.kubectl.wait("condition=Ready", "pod/web", "pod/near-node0", "pod/near-node1")
    ip = namespace.kubectl.get("service", "web")["spec"]["clusterIP"]
    name = f"web.{namespace.name}.svc.cluster.local"
    for source in ("near-node0", "near-node1"):
        assert ip in namespace.kubectl.execute(source, "nslookup", name)
        waiting.until("the service", lambda source=source: can_fetch(namespace, source, ip, 80), seconds=30)


def test_a_claim_is_bound_and_its_data_outlives_the_pod(namespace: Namespace) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    mounted: dict[str, Any] = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    volume: dict[str, Any] = {
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "restartPolicy": "Never",
    }
    namespace.apply(claim, pod("writer", "echo kept >/data/word", container=mounted, **volume))
    namespace.kubectl.wait("jsonpath={.status.phase}=Succeeded", "pod/writer")
    namespace.kubectl.delete("pod", "writer")
    namespace.apply(pod("reader", "cat /data/word", container=mounted, **volume))
    namespace.kubectl.wait("jsonpath={.status.phase}=Succeeded", "pod/reader")
    assert namespace.kubectl("logs", "reader").strip() == "kept"
    assert namespace.kubectl.get("pvc", "data")["status"]["phase"] == "Bound"


def test_two_nodes_share_a_volume_of_the_shared_class(namespace: Namespace) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "shared"},
        "spec": {
            "storageClassName": "shared-path",
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    mounted: dict[str, Any] = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    volume: dict[str, Any] = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "shared"}}]}
    on: dict[str, Any] = {n: {"nodeSelector": {"kubernetes.io/hostname": n}} for n in ("node0", "node1")}
    namespace.apply(
        claim,
        pod("writer", "echo seen >/data/word; sleep 600", container=mounted, **volume, **on["node0"]),
        pod("reader", "sleep 600", container=mounted, **volume, **on["node1"]),
    )
    namespace.kubectl.wait("condition=Ready", "pod/writer", "pod/reader")
    assert namespace.kubectl.execute("reader", "cat", "/data/word").strip() == "seen"


@pytest.mark.parametrize("source", ["node0", "node1"])
def test_a_network_policy_admits_one_pod_and_blocks_another(namespace: Namespace, source: str) -> None:
    """On the server's own node and across nodes."""
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "only-friends"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "web"}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"friend": "yes"}}}]}],
        },
    }
    namespace.apply(
        web_server("web", node="node0"),
        pod("friend", "sleep 600", labels={"friend": "yes"}, nodeName=source),
        pod("stranger", "sleep 600", nodeName=source),
    )
    namespace.kubectl.wait("condition=Ready", "pod/web", "pod/friend", "pod/stranger")
    target = address(namespace, "web")
    assert can_fetch(namespace, "stranger", target, 8080)
    namespace.apply(policy)
    waiting.until("the policy", lambda: not can_fetch(namespace, "stranger", target, 8080), seconds=30)
    waiting.until("the admitted pod", lambda: can_fetch(namespace, "friend", target, 8080), seconds=30)


def test_a_projected_token_passes_review_for_its_own_audience_only(namespace: Namespace) -> None:
    source = {"serviceAccountToken": {"path": "token", "audience": AUDIENCE, "expirationSeconds": 600}}
    projected = {"name": "identity", "projected": {"sources": [source]}}
    mounted: dict[str, Any] = {"volumeMounts": [{"name": "identity", "mountPath": "/identity", "readOnly": True}]}
    namespace.apply(pod("agent", "sleep 600", container=mounted, volumes=[projected]))
    namespace.kubectl.wait("condition=Ready", "pod/agent")
    token = namespace.kubectl.execute("agent", "cat", "/identity/token")

    def review(audience: str) -> dict[str, Any]:
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        said: dict[str, Any] = json.loads(
            namespace.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(request))
        )["status"]
        return said

    accepted = review(AUDIENCE)
    assert accepted["authenticated"]
    assert accepted["user"]["username"] == f"system:serviceaccount:{namespace.name}:default"
    assert accepted["user"]["extra"]["authentication.kubernetes.io/pod-name"] == ["agent"]
    assert not review("memplane.test/another").get("authenticated", False)


def test_the_audit_log_says_who_wrote_what(local_cluster: LocalCluster, namespace: Namespace) -> None:
    mark = local_cluster.audit.mark()
    namespace.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "noted"}, "data": {"a": "b"}},
    )
    namespace.kubectl.get("configmap", "noted")
    (write,) = local_cluster.audit.writes(mark, namespace=namespace.name, where=lambda w: w.name == "noted")
    assert (write.user, write.verb, write.resource, write.code) == ("admin", "patch", "configmaps", 201)
    assert write.field_manager == "kubectl"


def test_a_cluster_goes_on_after_its_api_server_restarts(local_cluster: LocalCluster, namespace: Namespace) -> None:
    namespace.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "before"}})
    local_cluster.restart_api_server()
    assert namespace.kubectl.get("configmap", "before")
    with local_cluster.without("kube-controller-manager"):
        assert "kube-controller-manager" in local_cluster.components
    namespace.apply(web_server("web"))
    namespace.kubectl.wait("condition=Ready", "pod/web")


def test_a_drain_moves_pods_to_the_other_node(local_cluster: LocalCluster, namespace: Namespace) -> None:
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": web_server("web")["spec"]},
        },
    }
    namespace.apply(deployment)
    namespace.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    (before,) = namespace.kubectl.list("pods")
    node = before["spec"]["nodeName"]
    with local_cluster.drained(node):
        namespace.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
        pods = [p for p in namespace.kubectl.list("pods") if "deletionTimestamp" not in p["metadata"]]
        moved = [p["spec"]["nodeName"] for p in pods]
        assert moved == [({"node0", "node1"} - {node}).pop()]


def test_a_killed_container_is_started_again(local_cluster: LocalCluster, namespace: Namespace) -> None:
    namespace.apply(web_server("web"))
    namespace.kubectl.wait("condition=Ready", "pod/web")
    local_cluster.kill_pod_processes(namespace.kubectl.get("pod", "web"))
    namespace.kubectl.wait("jsonpath={.status.containerStatuses[0].restartCount}=1", "pod/web", seconds=30)


def test_fake_nodes_take_the_pods_that_ask_for_them(namespace: Namespace) -> None:
    namespace.apply(pod("fake", "true", **kwok.PLACEMENT))
    namespace.kubectl.wait("condition=Ready", "pod/fake")
    assert namespace.kubectl.get("pod", "fake")["spec"]["nodeName"].startswith("fake-")


def test_a_service_account_kubeconfig_has_only_its_own_permissions(cluster: Cluster, namespace: Namespace) -> None:
    kubeconfig = cluster.kubeconfig_of(namespace.name, "default")
    said = Cluster(kubeconfig).kubectl.refusal("get", "secrets")
    assert f"system:serviceaccount:{namespace.name}:default" in said
    assert "cannot list" in said


def test_no_packet_for_a_test_address_has_a_way_out(local_cluster: LocalCluster) -> None:
    namespace = local_cluster.run.namespace
    inside = subprocess.run(
        ["ip", "-n", namespace.name, "route", "show", "default"], capture_output=True, text=True, check=True
    )
    assert inside.stdout == ""
    for network in (namespace.addresses.pods, namespace.addresses.services):
        way = subprocess.run(["ip", "route", "get", str(network[9])], capture_output=True, text=True, check=True)
        assert f"dev {namespace.name}-m" in way.stdout


def test_deployments_become_ready_without_real_nodes(fake_namespace: Namespace) -> None:
    fake_namespace.kubectl("create", "deployment", "web", "--image=nowhere", "--replicas=3")
    fake_namespace.kubectl("expose", "deployment", "web", "--port=80")
    fake_namespace.kubectl("rollout", "status", "deployment/web", "--timeout=30s")
    (found,) = waiting.until(
        "endpoints", lambda: fake_namespace.kubectl.list("endpointslices", selector="kubernetes.io/service-name=web")
    )
    assert len(waiting.until("three endpoints", lambda: found["endpoints"])) >= 1


_START_AND_WAIT = """
import sys
from e2e.cluster import local
from e2e.cluster.tiers import Tier
started = local.start(Tier(sys.argv[1]), fake_nodes=1)
print(started.run.slot, started.kubeconfig, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("tier", ["control-plane", "nodes"])
def test_nothing_is_left_of_a_cluster_whose_owner_dies(tier: str, number: signal.Signals, cluster: Cluster) -> None:
    """Processes, mounts, the namespace, devices, control groups; however the owner ends, also with pods running."""
    if tier == "nodes" and os.geteuid() != 0:
        pytest.skip("real nodes need root")
    before = sysctls.read()
    with subprocess.Popen(
        [sys.executable, "-c", _START_AND_WAIT, tier],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=home.REPOSITORY,
    ) as owner:
        assert owner.stdout is not None
        slot, kubeconfig = owner.stdout.readline().split()
        run = runs.Run(int(slot))
        if tier == "nodes":
            kubectl = Cluster(Path(kubeconfig)).kubectl
            kubectl.apply(web_server("web"))
            kubectl.wait("condition=Ready", "pod/web")
        shims = set(runs.shim_sockets(run))
        assert runs.leftovers(run)
        owner.send_signal(number)
    waiting.until(
        "the end of all of it",
        lambda: not runs.leftovers(run) and {path.name for path in run.folder.iterdir()} <= {"logs", "processes"},
        seconds=60,
        explain=lambda: f"{runs.leftovers(run)}, {list(run.folder.iterdir())}",
    )
    assert not [socket for socket in shims if socket.exists()]
    assert sysctls.read() == before
