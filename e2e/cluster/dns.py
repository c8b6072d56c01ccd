"""CoreDNS as a real cluster has it: pods labelled k8s-app=kube-dns behind the Service kube-dns in kube-system.

So a network policy that lets pods ask the cluster's DNS, and only that, means here what it means elsewhere. A
DaemonSet, so that draining a node moves no DNS.
"""

from typing import Any

from . import archives
from .control_plane import ControlPlane

_LABELS = {"k8s-app": "kube-dns"}
_COREFILE = """\
.:53 {
  errors
  health :8080
  ready :8181
  kubernetes cluster.local in-addr.arpa ip6.arpa {
    pods insecure
  }
  cache 2
}
"""


def install(control_plane: ControlPlane) -> None:
    """Create the DNS pods and their service; `until_ready` waits for them."""
    address = str(control_plane.run.addresses.dns_service)
    control_plane.kubectl.in_namespace("kube-system").apply(*_objects(address))


def until_ready(control_plane: ControlPlane) -> None:
    """Wait until DNS answers on every node."""
    control_plane.kubectl.in_namespace("kube-system")(
        "rollout", "status", "daemonset/coredns", "--timeout=120s", timeout_seconds=130
    )


def _objects(address: str) -> list[dict[str, Any]]:
    meta = {"name": "coredns", "namespace": "kube-system"}
    role = {"name": "system:coredns"}
    rules = [
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    ports = [
        {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53},
    ]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": role, "rules": rules},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": role,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **role},
            "subjects": [{"kind": "ServiceAccount", **meta}],
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"Corefile": _COREFILE}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": _LABELS},
            "spec": {"clusterIP": address, "selector": _LABELS, "ports": ports},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {**meta, "labels": _LABELS},
            "spec": {
                "selector": {"matchLabels": _LABELS},
                "template": {"metadata": {"labels": _LABELS}, "spec": _pod()},
            },
        },
    ]


def _pod() -> dict[str, Any]:
    container = {
        "name": "coredns",
        "image": archives.COREDNS,
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "ports": [{"containerPort": 53, "protocol": p} for p in ("UDP", "TCP")],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "livenessProbe": {"httpGet": {"path": "/health", "port": 8080}},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
    }
    return {
        "serviceAccountName": "coredns",
        "dnsPolicy": "Default",
        "priorityClassName": "system-cluster-critical",
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _REAL_NODES}},
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
    }


_REAL_NODES = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "type", "operator": "NotIn", "values": ["kwok"]}]}]}
