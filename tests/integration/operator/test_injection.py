"""Pods that ask for their binding by a label are given it by the API server itself; no other pod is touched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e.cluster.clusters import LocalCluster
from e2e.cluster.kubectl import Kubectl
from manifests import render
from memory_operator import names
from memory_operator.crd.agent_memory import parse
from memory_operator.desired.agent import snippet

Json = dict[str, Any]
TOKEN_OF_THE_API = "kube-api-access"
STORE: Json = {"memoryStore": "notes"}
OWN: Json = {"name": "own", "mountPath": "/var/run/memplane"}


@pytest.fixture(scope="module")
def kubectl(server: LocalCluster, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """The chart's policy in force, two accounts and three bindings."""
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    rendered = render.template("--set", "injection.enabled=true")
    policy.write_text(
        yaml.safe_dump_all(item for item in rendered if item["kind"].startswith("MutatingAdmissionPolicy"))
    )
    kubectl = server.kubectl.in_namespace(namespace)
    for name in ("assistant", "shared-account"):
        kubectl.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
    kubectl.apply(
        agent("assistant", STORE),
        agent("far", {**STORE, "memoryStoreNamespace": "team-b", "agent": {"serviceAccountName": "shared-account"}}),
        agent("alone", {"agent": {"serviceAccountName": "assistant"}}),
    )
    kubectl.apply(policy)
    # The API server learns of a policy and of what it looks at a moment later.
    server.wait_until(
        "the policy to be in force", lambda: "memplane" in volumes(admitted(kubectl, pod(inject="assistant")))
    )
    yield kubectl
    kubectl("delete", "-f", str(policy))


def agent(name: str, spec: Json) -> Json:
    return {"apiVersion": names.API_VERSION, "kind": names.AGENT_MEMORY, "metadata": {"name": name}, "spec": spec}


def pod(*, inject: str | None, account: str = "assistant", **spec: Any) -> Json:
    labels = {"app": "mine", **({"memplane.dev/inject": inject} if inject else {})}
    container = {"name": "main", "image": "x", "volumeMounts": [{"name": "own", "mountPath": "/own"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one", "labels": labels},
        "spec": {
            "serviceAccountName": account,
            "containers": [container, {"name": "side", "image": "x"}],
            "volumes": [{"name": "own", "emptyDir": {}}],
            **spec,
        },
    }


def admitted(kubectl: Kubectl, manifest: Json) -> Json:
    """What the API server would store."""
    text = kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(manifest))
    found: Json = json.loads(text)
    return found


def volumes(stored: Json) -> dict[str, Json]:
    return {
        volume["name"]: volume
        for volume in stored["spec"]["volumes"]
        if not volume["name"].startswith(TOKEN_OF_THE_API)
    }


def mounts(container: Json) -> dict[str, Json]:
    return {
        mount["name"]: mount
        for mount in container.get("volumeMounts", ())
        if not mount["name"].startswith(TOKEN_OF_THE_API)
    }


def shown(kubectl: Kubectl, name: str) -> Json:
    """The pod template of a binding's snippet."""
    found: Json = yaml.safe_load(snippet(parse(kubectl.get("agentmemory", name))))["template"]
    return found


@pytest.mark.parametrize(
    ("name", "account"),
    [("assistant", "assistant"), ("far", "shared-account")],
    ids=["a store of its own namespace", "another namespace's, under a named account"],
)
def test_a_pod_that_asks_is_given_what_the_snippet_says(kubectl: Kubectl, name: str, account: str) -> None:
    stored = admitted(kubectl, pod(inject=name, account=account, initContainers=[{"name": "first", "image": "x"}]))
    wanted = shown(kubectl, name)
    assert wanted["spec"]["serviceAccountName"] == account
    assert stored["metadata"]["labels"] == {"app": "mine", "memplane.dev/inject": name, **wanted["metadata"]["labels"]}
    assert volumes(stored) == {"own": {"name": "own", "emptyDir": {}}, "memplane": wanted["spec"]["volumes"][0]}
    (mount,) = wanted["spec"]["containers"][0]["volumeMounts"]
    main, side = stored["spec"]["containers"]
    assert mounts(main) == {"own": {"name": "own", "mountPath": "/own"}, "memplane": mount}
    assert mounts(side) == {"memplane": mount}
    assert mounts(stored["spec"]["initContainers"][0]) == {"memplane": mount}


@pytest.mark.parametrize(
    "asking",
    [
        pod(inject=None),
        pod(inject="nobody"),
        pod(inject="alone"),
        pod(inject="far"),
        pod(inject="assistant", initContainers=[{"name": "first", "image": "x", "volumeMounts": [OWN]}]),
    ],
    ids=[
        "does not ask",
        "names no binding",
        "names one without a store",
        "has another account than the binding",
        "has something of its own mounted there",
    ],
)
def test_any_other_pod_is_admitted_as_it_came(kubectl: Kubectl, asking: Json) -> None:
    stored = admitted(kubectl, asking)
    assert stored["metadata"]["labels"] == asking["metadata"]["labels"]
    assert set(volumes(stored)) == {"own"}
    assert [set(mounts(container)) for container in stored["spec"]["containers"]] == [{"own"}, set()]


@pytest.mark.parametrize("path", ["/var/run/memplane", "/var/run/memplane/"])
def test_a_pod_keeps_what_it_mounts_where_its_binding_would_be(kubectl: Kubectl, path: str) -> None:
    asking = pod(inject="assistant")
    asking["spec"]["containers"][1]["volumeMounts"] = [{**OWN, "mountPath": path}]
    side = admitted(kubectl, asking)["spec"]["containers"][1]
    assert mounts(side) == {"own": {"name": "own", "mountPath": path}}


def test_a_pod_without_any_volume_is_given_its_first(kubectl: Kubectl) -> None:
    bare = pod(inject="assistant", automountServiceAccountToken=False)
    del bare["spec"]["volumes"]
    bare["spec"]["containers"] = [{"name": "main", "image": "x"}]
    stored = admitted(kubectl, bare)
    assert stored["spec"]["volumes"] == shown(kubectl, "assistant")["spec"]["volumes"]
    assert set(mounts(stored["spec"]["containers"][0])) == {"memplane"}


def test_a_pod_that_has_the_volume_keeps_its_own(kubectl: Kubectl) -> None:
    own = {"name": "memplane", "emptyDir": {}}
    stored = admitted(kubectl, pod(inject="assistant", volumes=[{"name": "own", "emptyDir": {}}, own]))
    assert volumes(stored)["memplane"] == own
    assert [set(mounts(container)) for container in stored["spec"]["containers"]] == [{"own"}, set()]
