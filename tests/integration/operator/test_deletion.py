"""A store that is to leave its claim behind is deleted only once it will; no namespace is held up by that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e.cluster.clusters import LocalCluster
from e2e.cluster.errors import ProgramFailed
from e2e.cluster.kubectl import Kubectl
from manifests import render
from memory_operator import names

Json = dict[str, Any]


@pytest.fixture(scope="module")
def kubectl(server: LocalCluster, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """The chart's policy in force."""
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    rendered = [item for item in render.template() if item["kind"].startswith("ValidatingAdmissionPolicy")]
    policy.write_text(yaml.safe_dump_all(rendered))
    kubectl = server.kubectl.in_namespace(namespace)
    kubectl.apply(policy)
    make(kubectl, "probe", wanted="Retain", held="Delete")
    # The API server learns of a policy a moment later.
    server.wait_until("the policy to be in force", lambda: refusal(kubectl, "probe", "--dry-run=server") is not None)
    yield kubectl
    kubectl("delete", "-f", str(policy))


def make(kubectl: Kubectl, name: str, *, wanted: str | None, held: str | None) -> None:
    """A store whose spec asks for one policy and whose claim has another, as the status says."""
    local = {"persistentVolumeClaimRetentionPolicy": wanted} if wanted else {}
    spec: Json = {"storage": {"type": "local", **({"local": local} if local else {})}}
    kubectl.apply(
        {"apiVersion": names.API_VERSION, "kind": names.MEMORY_STORE, "metadata": {"name": name}, "spec": spec}
    )
    if held:
        status = f'{{"status":{{"volumeClaim":{{"uid":"u","retentionPolicy":"{held}"}}}}}}'
        kubectl("patch", "memorystore", name, "--subresource=status", "--type=merge", "-p", status)


def refusal(kubectl: Kubectl, name: str, *options: str) -> str | None:
    """What the API server says to the deletion of a store; None when it deletes it."""
    try:
        kubectl("delete", "memorystore", name, "--wait=false", *options)
    except ProgramFailed as error:
        return str(error)
    return None


def test_a_store_is_not_deleted_while_its_claim_would_go_with_it_against_its_spec(kubectl: Kubectl) -> None:
    make(kubectl, "early", wanted="Retain", held="Delete")
    said = refusal(kubectl, "early")
    assert said is not None
    assert "status.volumeClaim.retentionPolicy says Retain too" in said
    make(kubectl, "early", wanted="Retain", held="Retain")
    assert refusal(kubectl, "early") is None


@pytest.mark.parametrize(
    ("wanted", "held"), [("Delete", "Delete"), ("Delete", "Retain"), (None, "Retain"), (None, None), ("Retain", None)]
)
def test_any_other_store_is_deleted_at_once(kubectl: Kubectl, wanted: str | None, held: str | None) -> None:
    name = f"{wanted or 'none'}-{held or 'none'}".lower()
    make(kubectl, name, wanted=wanted, held=held)
    assert refusal(kubectl, name) is None


def test_a_store_that_nobody_has_asked_to_keep_its_claim_of_is_held_by_default(kubectl: Kubectl) -> None:
    make(kubectl, "default", wanted=None, held="Delete")
    assert refusal(kubectl, "default") is not None


def test_a_namespace_takes_its_stores_with_it(server: LocalCluster, kubectl: Kubectl) -> None:
    with server.new_namespace("deletion-goes") as gone:
        make(gone.kubectl, "early", wanted="Retain", held="Delete")
        assert refusal(gone.kubectl, "early", "--dry-run=server") is not None
        server.kubectl("delete", "namespace", gone.name, "--timeout=60s")
