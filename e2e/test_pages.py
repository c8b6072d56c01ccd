"""Somebody who follows the pages about stores and bindings sees what they say."""

from __future__ import annotations

import shlex
from pathlib import Path

from e2e.cluster import home
from e2e.cluster.clusters import Namespace
from e2e.installation import Installation
from tests.packaging.pages import Reader

HOW_TO = home.REPOSITORY / "docs" / "how-to"
IDLE = "command: [python, -c, 'import signal; signal.pause()']"


def test_a_reader_makes_a_store_and_binds_agents(memplane: Installation, namespace: Namespace, tmp_path: Path) -> None:
    own_image = f"{memplane.service_image}\n            {IDLE}"
    replaced = {"registry.example.com/helper:1": own_image, "size: 5Gi": "size: 64Mi"}
    with Reader(tmp_path / "reader", home.REPOSITORY, replaced=replaced) as reader:
        reader.provide("kubectl", shlex.join(namespace.kubectl.command()))
        assert reader.follow(HOW_TO / "first-store.md", about="cluster") == 1
        assert reader.follow(HOW_TO / "bind-an-agent.md", about="cluster") == 4
