"""Fake nodes: pods on them become Ready without running, so a thousand cost nothing.

In a cluster with real nodes the fake ones are tainted; a pod must ask for them: `PLACEMENT` in its spec does.
"""

from typing import Any

from . import programs
from .control_plane import ControlPlane

_ANNOTATION = "kwok.x-k8s.io/node"
TAINT = {"key": _ANNOTATION, "value": "fake", "effect": "NoSchedule"}
PLACEMENT: dict[str, Any] = {
    "nodeSelector": {"type": "kwok"},
    "tolerations": [{"key": _ANNOTATION, "operator": "Exists", "effect": "NoSchedule"}],
}


def _node(number: int, *, tainted: bool) -> dict[str, Any]:
    name = f"fake-{number}"
    room = {"cpu": "1k", "memory": "1Ti", "pods": "2k"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {_ANNOTATION: "fake"},
            "labels": {"type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "spec": {"taints": [TAINT] if tainted else []},
        "status": {"allocatable": room, "capacity": room},
    }


def start(control_plane: ControlPlane, nodes: int, *, tainted: bool) -> None:
    """Start kwok with this many fake nodes and wait until they are Ready."""
    run, processes = control_plane.run, control_plane.run.processes()
    processes.start(
        "kwok",
        [
            programs.path("kwok"),
            f"--config={programs.kwok_stages()}",
            f"--kubeconfig={control_plane.keys.kubeconfig('kwok')}",
            f"--cidr={run.addresses.fake_pods}",
            "--manage-all-nodes=false",
            f"--manage-nodes-with-annotation-selector={_ANNOTATION}=fake",
            "--node-lease-duration-seconds=40",
        ],
    )
    kubectl = control_plane.kubectl
    kubectl.apply(*(_node(number, tainted=tainted) for number in range(nodes)))
    processes.until_ready(
        "kwok",
        f"{nodes} fake nodes",
        lambda: sum(_is_ready(node) for node in kubectl.list("nodes", selector="type=kwok")) == nodes,
    )


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
