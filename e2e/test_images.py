"""The images run as the chart runs them: no root, a read-only root file system, no capability."""

from typing import Any

import pytest

from e2e.cluster.clusters import Namespace
from e2e.installation import RESTRICTED


def restricted_pod(image: str, **container: Any) -> dict[str, Any]:
    """A pod that may write to /tmp and to one volume alone."""
    volumes = [{"name": "tmp", "emptyDir": {}}, {"name": "data", "emptyDir": {}}]
    mounts = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "data", "mountPath": "/var/lib/postgresql"}]
    main = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "securityContext": RESTRICTED,
        "volumeMounts": mounts,
        **container,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "main"},
        "spec": {
            "securityContext": {"fsGroup": 65532},
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [main],
            "volumes": volumes,
        },
    }


@pytest.fixture
def restricted(namespace: Namespace) -> Namespace:
    """A namespace that admits restricted pods only."""
    namespace.kubectl("label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=restricted")
    return namespace


def output_of(namespace: Namespace, image: str, *command: str) -> str:
    namespace.apply(restricted_pod(image, command=list(command)))
    namespace.kubectl.wait("jsonpath={.status.phase}=Succeeded", "pod/main", seconds=90)
    return namespace.kubectl("logs", "main")


def test_the_service_image_has_the_service_and_both_backends(restricted: Namespace, service_image: str) -> None:
    script = "import os, chromadb, psycopg, fastapi, mem0, memory_service; print(os.getuid(), memory_service.__name__)"
    assert output_of(restricted, service_image, "python3", "-c", script).split() == ["65532", "memory_service"]


def test_the_operator_image_has_the_operator_and_no_service_parts(restricted: Namespace, operator_image: str) -> None:
    found = "u.find_spec('chromadb'), u.find_spec('fastapi')"
    script = f"import importlib.util as u, os, kopf, memory_operator; print(os.getuid(), {found})"
    assert output_of(restricted, operator_image, "python3", "-c", script).split() == ["65532", "None", "None"]


def test_the_postgres_image_serves_vectors(restricted: Namespace, postgres_image: str) -> None:
    environment = [{"name": "POSTGRES_PASSWORD", "value": "a word"}, {"name": "POSTGRES_DB", "value": "memory"}]
    probe = {"exec": {"command": ["pg_isready", "-h", "127.0.0.1"]}, "periodSeconds": 1}
    restricted.apply(restricted_pod(postgres_image, env=environment, readinessProbe=probe))
    restricted.kubectl.wait("condition=Ready", "pod/main", seconds=90)
    statement = "CREATE EXTENSION vector; SELECT '[1,2]'::vector <-> '[1,4]'::vector"
    answer = restricted.kubectl.execute(
        "main", "env", "PGPASSWORD=a word", "psql", "-h", "127.0.0.1", "-U", "postgres", "memory", "-qAtc", statement
    )
    assert answer.strip() == "2"
