"""What every `Cluster` does: the fake and the real API server are held to the same sentences.

A test module subclasses `ClusterContract` and gives the fixtures `cluster` and `namespace`.
"""

from __future__ import annotations

from typing import Any

import pytest

from memory_operator.cluster import kinds
from memory_operator.cluster.client import Cluster
from memory_operator.desired.ownership import desired_digest, live_digest
from memory_operator.errors import Conflict, Invalid, NotFound

Json = dict[str, Any]


def config_map(namespace: str, name: str, **data: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/managed-by": "memplane"}},
        "data": data,
    }


def service(namespace: str, name: str, port: int) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "type": "ClusterIP",
            "selector": {"a": "b"},
            "ports": [{"name": "http", "port": port, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def role_binding(namespace: str, role: str) -> Json:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "fixed", "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": "a", "namespace": namespace}],
    }


def lease(namespace: str, holder: str) -> Json:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "turn", "namespace": namespace},
        "spec": {"holderIdentity": holder},
    }


def event(namespace: str, name: str, note: str) -> Json:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "eventTime": "2026-01-01T12:00:00.000000Z",
        "reportingController": "memplane.dev/operator",
        "reportingInstance": "one",
        "action": "Reconcile",
        "reason": "Told",
        "note": note,
        "type": "Normal",
        "regarding": {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "namespace": namespace},
    }


class ClusterContract:
    """The sentences."""

    async def test_what_lacks_our_label_is_listed_by_its_metadata(self, cluster: Cluster, namespace: str) -> None:
        await cluster.create(kinds.CONFIG_MAP, config_map(namespace, "labelled", a="1"))
        stranger = config_map(namespace, "stranger", a="1")
        del stranger["metadata"]["labels"]
        made = await cluster.create(kinds.CONFIG_MAP, stranger)
        found = await cluster.list_unmanaged(kinds.CONFIG_MAP, namespace)
        assert found is not None
        assert found.resource_version >= int(made["metadata"]["resourceVersion"])
        by_name = {item["metadata"]["name"]: item for item in found.items}
        assert "labelled" not in by_name
        assert "data" not in by_name["stranger"]

    @pytest.mark.parametrize(
        "text",
        [
            "ünï ☂ 🦉 \u2028 \u0085 \x7f \ttab 'one' \"two\" \\ \\ud83e\\udd89 back: - # & * yes",
            "\x7f \ttab \x1b 'one' \"two\" \\ \\ud83e\\udd89 back: - # & * yes",
        ],
        ids=["any", "ascii"],
    )
    async def test_any_text_arrives_as_it_is(self, cluster: Cluster, namespace: str, text: str) -> None:
        made = await cluster.apply(kinds.CONFIG_MAP, config_map(namespace, "words", a=text))
        assert made["data"]["a"] == text
        found = await cluster.get(kinds.CONFIG_MAP, namespace, "words")
        assert found is not None
        assert found["data"]["a"] == text

    async def test_what_does_not_exist_is_none(self, cluster: Cluster, namespace: str) -> None:
        assert await cluster.get(kinds.CONFIG_MAP, namespace, "nobody") is None

    async def test_apply_makes_an_object_and_gives_it_back(self, cluster: Cluster, namespace: str) -> None:
        made = await cluster.apply(kinds.CONFIG_MAP, config_map(namespace, "made", a="1"))
        assert made["data"] == {"a": "1"}
        assert made["metadata"]["uid"]
        found = await cluster.get(kinds.CONFIG_MAP, namespace, "made")
        assert found is not None
        assert found["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]

    async def test_the_same_apply_again_changes_no_version(self, cluster: Cluster, namespace: str) -> None:
        first = await cluster.apply(kinds.SERVICE, service(namespace, "still", 80))
        second = await cluster.apply(kinds.SERVICE, service(namespace, "still", 80))
        assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]

    async def test_versions_are_growing_numbers(self, cluster: Cluster, namespace: str) -> None:
        first = await cluster.apply(kinds.CONFIG_MAP, config_map(namespace, "grows", a="1"))
        second = await cluster.apply(kinds.CONFIG_MAP, config_map(namespace, "grows", a="2"))
        assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])

    async def test_a_field_that_is_no_longer_applied_goes(self, cluster: Cluster, namespace: str) -> None:
        await cluster.apply(kinds.CONFIG_MAP, config_map(namespace, "shrinks", a="1", b="2"))
        after = await cluster.apply(kinds.CONFIG_MAP, config_map(namespace, "shrinks", a="1"))
        assert after["data"] == {"a": "1"}

    async def test_the_digest_of_what_was_applied_is_the_digest_of_what_is_there(
        self, cluster: Cluster, namespace: str
    ) -> None:
        manifest = service(namespace, "same", 80)
        live = await cluster.apply(kinds.SERVICE, manifest)
        assert live_digest(live) == desired_digest(manifest)

    async def test_a_changed_list_item_replaces_the_old_one(self, cluster: Cluster, namespace: str) -> None:
        await cluster.apply(kinds.SERVICE, service(namespace, "moves", 80))
        manifest = service(namespace, "moves", 81)
        live = await cluster.apply(kinds.SERVICE, manifest)
        assert [port["port"] for port in live["spec"]["ports"]] == [81]
        assert live_digest(live) == desired_digest(manifest)

    async def test_an_immutable_field_is_refused(self, cluster: Cluster, namespace: str) -> None:
        await cluster.apply(kinds.ROLE_BINDING, role_binding(namespace, "one"))
        with pytest.raises(Invalid):
            await cluster.apply(kinds.ROLE_BINDING, role_binding(namespace, "two"))

    async def test_an_immutable_config_map_takes_no_change_until_it_is_made_again(
        self, cluster: Cluster, namespace: str
    ) -> None:
        await cluster.apply(kinds.CONFIG_MAP, config_map(namespace, "frozen", a="1"))
        meta = {"name": "frozen", "namespace": namespace}
        frozen = await cluster.patch(kinds.CONFIG_MAP, {"metadata": meta, "immutable": True})
        changes: list[Json] = [{"data": {"a": None}}, {"immutable": False}]
        for change in changes:
            with pytest.raises(Invalid):
                await cluster.patch(kinds.CONFIG_MAP, {"metadata": meta, **change})
        with pytest.raises(Invalid):
            await cluster.apply(kinds.CONFIG_MAP, config_map(namespace, "frozen", a="2"))
        await cluster.delete(kinds.CONFIG_MAP, namespace, "frozen", frozen["metadata"]["uid"])
        made = await cluster.apply(kinds.CONFIG_MAP, config_map(namespace, "frozen", a="2"))
        assert "immutable" not in made
        assert made["data"] == {"a": "2"}

    async def test_a_list_gives_what_has_the_labels(self, cluster: Cluster, namespace: str) -> None:
        await cluster.apply(kinds.CONFIG_MAP, config_map(namespace, "labelled", a="1"))
        plain = config_map(namespace, "plain", a="1")
        del plain["metadata"]["labels"]
        await cluster.apply(kinds.CONFIG_MAP, plain)
        listing = await cluster.list(kinds.CONFIG_MAP, namespace, "app.kubernetes.io/managed-by=memplane")
        found = {item["metadata"]["name"] for item in listing.items}
        assert "labelled" in found
        assert "plain" not in found
        assert listing.resource_version >= max(int(item["metadata"]["resourceVersion"]) for item in listing.items)

    async def test_delete_needs_the_uid_and_forgives_what_is_gone(self, cluster: Cluster, namespace: str) -> None:
        made = await cluster.apply(kinds.CONFIG_MAP, config_map(namespace, "goes", a="1"))
        with pytest.raises(Conflict):
            await cluster.delete(kinds.CONFIG_MAP, namespace, "goes", "11111111-1111-4111-8111-111111111111")
        await cluster.delete(kinds.CONFIG_MAP, namespace, "goes", made["metadata"]["uid"])
        await cluster.delete(kinds.CONFIG_MAP, namespace, "goes", made["metadata"]["uid"])
        assert await cluster.get(kinds.CONFIG_MAP, namespace, "goes") is None

    async def test_the_note_of_an_event_is_counted_in_bytes(self, cluster: Cluster, namespace: str) -> None:
        await cluster.create(kinds.EVENT, event(namespace, "whole", "x" * 1021 + "\u2026"))
        with pytest.raises(Invalid):
            await cluster.create(kinds.EVENT, event(namespace, "cut", "x" * 1023 + "\u2026"))

    async def test_creating_twice_is_a_conflict(self, cluster: Cluster, namespace: str) -> None:
        await cluster.create(kinds.LEASE, lease(namespace, "a"))
        with pytest.raises(Conflict):
            await cluster.create(kinds.LEASE, lease(namespace, "b"))

    async def test_replacing_an_old_version_is_a_conflict(self, cluster: Cluster, namespace: str) -> None:
        manifest = lease(namespace, "a")
        manifest["metadata"]["name"] = "turn-2"
        made = await cluster.create(kinds.LEASE, manifest)
        manifest["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]
        manifest["spec"]["holderIdentity"] = "b"
        await cluster.replace(kinds.LEASE, manifest)
        with pytest.raises(Conflict):
            await cluster.replace(kinds.LEASE, manifest)

    async def test_a_patch_takes_out_what_anybody_has_put_there_and_keeps_the_rest_ours(
        self, cluster: Cluster, namespace: str
    ) -> None:
        made = await cluster.apply(kinds.CONFIG_MAP, config_map(namespace, "patched", ours="1", gone="2"))
        meta = {"name": "patched", "namespace": namespace, "resourceVersion": made["metadata"]["resourceVersion"]}
        foreign = {"metadata": meta, "data": {"foreign": "3"}}
        added = await cluster.patch(kinds.CONFIG_MAP, foreign)
        with pytest.raises(Conflict):
            await cluster.patch(kinds.CONFIG_MAP, foreign)
        meta["resourceVersion"] = added["metadata"]["resourceVersion"]
        taken = {"foreign": None, "gone": None}
        live = await cluster.patch(kinds.CONFIG_MAP, {"metadata": meta, "data": taken, "binaryData": taken})
        assert live["data"] == {"ours": "1"}
        assert "binaryData" not in live
        assert live_digest(live) == desired_digest(config_map(namespace, "patched", ours="1"))

    async def test_a_status_is_apart_from_the_spec(self, cluster: Cluster, namespace: str) -> None:
        store = {
            "apiVersion": "memplane.dev/v1alpha1",
            "kind": "MemoryStore",
            "metadata": {"name": "kept", "namespace": namespace},
            "spec": {"storage": {"type": "local"}},
        }
        made = await cluster.apply(kinds.MEMORY_STORE, store)
        meta = {"name": "kept", "namespace": namespace}
        status: Json = {"observedGeneration": 1, "endpoint": "http://x"}
        body = {"apiVersion": store["apiVersion"], "kind": "MemoryStore", "metadata": meta, "status": status}
        written = await cluster.apply_status(kinds.MEMORY_STORE, body)
        assert written["status"] == status
        assert written["metadata"]["generation"] == made["metadata"]["generation"]
        assert written["spec"]["storage"] == {"type": "local"}
        del status["endpoint"]
        again = await cluster.apply_status(kinds.MEMORY_STORE, body)
        assert again["status"] == {"observedGeneration": 1}

    async def test_a_status_for_an_old_version_is_a_conflict(self, cluster: Cluster, namespace: str) -> None:
        store = {
            "apiVersion": "memplane.dev/v1alpha1",
            "kind": "MemoryStore",
            "metadata": {"name": "moved", "namespace": namespace},
            "spec": {"storage": {"type": "local"}, "replicas": 1},
        }
        made = await cluster.apply(kinds.MEMORY_STORE, store)
        meta = {"name": "moved", "namespace": namespace, "resourceVersion": made["metadata"]["resourceVersion"]}
        body = {"apiVersion": store["apiVersion"], "kind": "MemoryStore", "metadata": meta}
        await cluster.apply_status(kinds.MEMORY_STORE, {**body, "status": {"observedGeneration": 1}})
        with pytest.raises(Conflict):
            await cluster.apply_status(kinds.MEMORY_STORE, {**body, "status": {"observedGeneration": 2}})

    async def test_the_status_of_what_is_gone_is_not_found(self, cluster: Cluster, namespace: str) -> None:
        body = {
            "apiVersion": "memplane.dev/v1alpha1",
            "kind": "MemoryStore",
            "metadata": {"name": "gone", "namespace": namespace},
            "status": {"observedGeneration": 1},
        }
        with pytest.raises(NotFound):
            await cluster.apply_status(kinds.MEMORY_STORE, body)
