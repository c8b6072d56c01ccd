"""Somebody who follows the pages about stores and bindings sees what they say."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from e2e.cluster import home, network
from e2e.cluster.clusters import Namespace
from e2e.installation import Installation
from tests.packaging.pages import Reader

HOW_TO = home.REPOSITORY / "docs" / "how-to"
IDLE = ["python", "-c", "import signal; signal.pause()"]


def workload(name: str, image: str) -> dict[str, Any]:
    """A Deployment that the reader has already."""
    labels = {"app": name}
    container = {"name": name, "image": image, "imagePullPolicy": "IfNotPresent", "command": IDLE}
    template = {
        "metadata": {"labels": labels},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def test_a_reader_makes_a_store_and_binds_agents(memplane: Installation, namespace: Namespace, tmp_path: Path) -> None:
    own_image = f"{memplane.service_image}\n            command: {json.dumps(IDLE)}"
    replaced = {
        "registry.example.com/helper:1": own_image,
        "size: 5Gi": "size: 64Mi",
        "ghcr.io/memplane/memplane:0.1.0": memplane.service_image,
        "team-memory.default": f"team-memory.{namespace.name}",
        "default/team": f"{namespace.name}/team",
        "namespace: default": f"namespace: {namespace.name}",
        "18800": str(network.free_ports(1)[0]),
    }
    with Reader(tmp_path / "reader", home.REPOSITORY, replaced=replaced) as reader:
        reader.provide("kubectl", shlex.join(namespace.kubectl.command()))
        assert reader.follow(HOW_TO / "first-store.md", about="cluster") == 1
        namespace.apply(workload("assistant", memplane.service_image))
        assert reader.follow(HOW_TO / "bind-an-agent.md", about="cluster") == 5
        assert reader.follow(HOW_TO / "admin-on-kubernetes.md", about="cluster") == 7
        assert reader.follow(HOW_TO / "tls.md", about="cluster") == 3
