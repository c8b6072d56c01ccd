"""What becomes of a MemoryStore: its objects, its conditions, and what happens when somebody interferes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from memory_operator import names
from memory_operator.cluster import kinds
from memory_operator.cluster.keys import TOKEN_REVIEW, ReconcileKey
from memory_operator.cluster.kinds import Kind
from memory_operator.crd.base import ObjectKey
from memory_operator.crd.conditions import Reason
from memory_operator.desired.store import Desired, StoreInputs
from memory_operator.errors import Forbidden, Invalid
from memory_operator.reconcile import store as reconciling
from memory_operator.status.snapshot import ProbeResult
from memory_service.contract.bindings import bindings_revision
from memory_service.contract.config import ServiceConfig
from memory_service.contract.health import Part
from memory_service.contract.health import Reason as HealthReason
from tests.packaging.pages import blocks
from tests.unit.memory_operator.world import Killed, World, report

EXTERNAL = {"storage": {"type": "external", "external": {"connectionSecretRef": {"name": "db", "key": "uri"}}}}
MODELS = {"models": {"summarization": {"modelAPI": "gpt", "model": "m"}}}
REACHABLE = ProbeResult(Reason.REACHABLE, "Answers HTTP 2xx.")


@pytest.fixture
def world() -> World:
    return World()


def children(world: World) -> set[tuple[str, str]]:
    own = {kind.name for kind in kinds.OWN} | {"Event", "Namespace"}
    return {(kind, key.name) for kind, key in world.cluster.objects if kind not in own}


async def test_a_local_store_gets_its_objects(world: World) -> None:
    await world.ready_store()
    await world.settle(2)
    assert children(world) == {
        ("ServiceAccount", "notes-memory"),
        ("Role", "notes-memory"),
        ("RoleBinding", "notes-memory"),
        ("ConfigMap", "notes-bindings-0"),
        ("ConfigMap", "notes-memory-config"),
        ("Service", "notes-memory"),
        ("NetworkPolicy", "notes-memory"),
        ("PersistentVolumeClaim", "notes-memory-data"),
        ("Deployment", "notes-memory"),
        ("ClusterRoleBinding", "memplane-token-review"),
    }


async def test_a_ready_store_says_so(world: World) -> None:
    store = await world.ready_store()
    assert world.of_store(store, "Ready") == ("True", "Available")
    assert world.of_store(store, "StorageReady") == ("True", "Ok")
    assert world.of_store(store, "RevocationAvailable") == ("True", "Ok")
    assert world.of_store(store, "Reconciling") is None
    assert world.of_store(store, "Stalled") is None
    status = world.get(kinds.MEMORY_STORE, "notes")["status"]
    assert status["endpoint"] == "http://notes-memory.a.svc.cluster.local:8800"
    assert (status["facts"], status["version"], status["readyReplicas"]) == (7, "1.0", 1)
    assert status["embedding"] == {"model": "minilm", "dimensions": 384}


async def test_ready_is_unknown_in_the_first_status(world: World) -> None:
    seen: list[Any] = []
    world.cluster.watchers.append(
        lambda kind, event, body: (
            seen.append(body["status"]) if kind == kinds.MEMORY_STORE and "status" in body else None
        )
    )
    world.store()
    await world.settle()
    first = {item["type"]: item["status"] for item in seen[0]["conditions"]}
    assert first["Ready"] == "Unknown"
    assert first["Reconciling"] == "True"


async def test_an_external_store_has_two_pods_a_budget_and_no_claim(world: World) -> None:
    store = await world.ready_store(**EXTERNAL)
    deployment = world.get(kinds.DEPLOYMENT, "notes-memory")
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["strategy"]["type"] == "RollingUpdate"
    assert world.find(kinds.DISRUPTION_BUDGET, "notes-memory") is not None
    assert world.find(kinds.CLAIM, "notes-memory-data") is None
    assert world.of_store(store, "Ready") == ("True", "Available")
    assert world.get(kinds.MEMORY_STORE, "notes")["status"]["schema"].startswith("memplane_0000")


async def test_a_budget_goes_with_the_second_pod(world: World) -> None:
    await world.ready_store(**EXTERNAL)
    world.store(**EXTERNAL, replicas=1)
    await world.settle()
    assert world.find(kinds.DISRUPTION_BUDGET, "notes-memory") is None


async def test_the_configuration_is_one_that_the_service_reads(world: World) -> None:
    await world.ready_store(**EXTERNAL)
    text = world.get(kinds.CONFIG_MAP, "notes-memory-config")["data"]["config.yaml"]
    config = ServiceConfig.model_validate(yaml.safe_load(text))
    assert config.storage.dsn_file == "/run/memplane/dsn/uri"
    assert config.storage.dsn is None
    assert config.identity.audience == "memplane:a/notes"
    assert config.bindings.config_map_prefix == "notes-bindings"


async def test_a_changed_configuration_changes_the_pod_template(world: World) -> None:
    await world.ready_store()
    before = world.get(kinds.DEPLOYMENT, "notes-memory")["spec"]["template"]
    world.store(shortTerm={"tokenBudget": 100})
    await world.settle()
    assert world.get(kinds.DEPLOYMENT, "notes-memory")["spec"]["template"] != before


async def test_new_bindings_do_not_touch_the_pods(world: World) -> None:
    await world.ready_store()
    before = world.get(kinds.DEPLOYMENT, "notes-memory")["metadata"]["resourceVersion"]
    for number in range(5):
        world.agent(f"agent-{number}")
    await world.settle(3)
    assert world.get(kinds.DEPLOYMENT, "notes-memory")["metadata"]["resourceVersion"] == before
    assert len(world.get(kinds.CONFIG_MAP, "notes-bindings-0")["data"]) == 5


async def test_nothing_is_written_when_nothing_changed(world: World) -> None:
    store = await world.ready_store()
    world.agent()
    await world.settle()
    await world.make_ready(store)
    await world.settle(20)
    writes = len(world.cluster.writes)
    for key in (store, ObjectKey("a", "helper")):
        for kind in (names.MEMORY_STORE, names.AGENT_MEMORY):
            world.context.enqueue({kinds_key(kind, key)})
    await world.settle(600)
    assert world.writes_since(writes) == []


def kinds_key(kind: str, key: ObjectKey) -> Any:
    return ReconcileKey(kind, key)


async def test_a_new_process_writes_nothing_to_a_cluster_at_rest(world: World) -> None:
    store = await world.ready_store()
    world.agent(agent={"template": {"spec": {"containers": [{"name": "a", "image": "x"}]}}})
    await world.settle()
    await world.make_ready(store)
    world.pods("helper", 1)
    await world.settle(20)
    writes = len(world.cluster.writes)
    health = world.context.health
    await world.restart()
    await world.settle(2)
    world.context.health.update(health)
    world.context.enqueue({kinds_key(names.MEMORY_STORE, store)})
    await world.settle(600)
    assert world.writes_since(writes) == []


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kinds.SERVICE_ACCOUNT, "notes-memory"),
        (kinds.ROLE, "notes-memory"),
        (kinds.ROLE_BINDING, "notes-memory"),
        (kinds.CONFIG_MAP, "notes-bindings-0"),
        (kinds.CONFIG_MAP, "notes-memory-config"),
        (kinds.SERVICE, "notes-memory"),
        (kinds.NETWORK_POLICY, "notes-memory"),
        (kinds.CLAIM, "notes-memory-data"),
        (kinds.DEPLOYMENT, "notes-memory"),
    ],
    ids=str,
)
async def test_a_deleted_child_is_made_again_and_an_edited_one_put_back(world: World, kind: Any, name: str) -> None:
    await world.ready_store()
    wanted = world.cluster.dump()
    key = ObjectKey("a", name)
    world.cluster.remove(kind, "a", name)
    await world.settle()
    assert (kind.name, key) in world.cluster.objects
    world.cluster.edit(kind, key, lambda live: live["metadata"]["labels"].update({names.STORE_LABEL: "other"}))
    await world.settle()
    world.cluster.edit(kind, key, lambda live: live["metadata"]["labels"].pop(names.MANAGED_BY_LABEL))
    await world.settle()
    world.cluster.edit(kind, key, lambda live: live["metadata"].pop("ownerReferences", None))
    await world.settle()
    live = world.cluster.dump()
    shown, before = live[f"{kind} {key}"], wanted[f"{kind} {key}"]
    shown.pop("conditions")
    before.pop("conditions")
    assert shown == before


async def test_fields_of_other_managers_stay(world: World) -> None:
    await world.ready_store()
    key = ObjectKey("a", "notes-memory")
    world.cluster.edit(kinds.DEPLOYMENT, key, lambda live: live["metadata"].update(annotations={"theirs": "1"}))
    world.store(shortTerm={"tokenBudget": 99})
    await world.settle()
    assert world.get(kinds.DEPLOYMENT, "notes-memory")["metadata"]["annotations"]["theirs"] == "1"


async def test_a_field_that_is_no_longer_wanted_is_removed(world: World) -> None:
    await world.ready_store(nodeSelector={"disk": "fast"})
    assert "nodeSelector" in world.get(kinds.DEPLOYMENT, "notes-memory")["spec"]["template"]["spec"]
    world.store()
    await world.settle()
    assert "nodeSelector" not in world.get(kinds.DEPLOYMENT, "notes-memory")["spec"]["template"]["spec"]


async def test_a_retained_claim_outlives_its_store_and_is_adopted_again(world: World) -> None:
    store = await world.ready_store()
    world.cluster.remove(kinds.MEMORY_STORE, "a", "notes")
    world.cluster.collect_garbage()
    await world.settle(5)
    uid = world.get(kinds.CLAIM, "notes-memory-data")["metadata"]["uid"]
    assert world.find(kinds.DEPLOYMENT, "notes-memory") is None
    world.store(storage={"type": "local", "local": {"persistentVolume": {"size": "1Gi", "storageClassName": "other"}}})
    await world.settle()
    claim = world.get(kinds.CLAIM, "notes-memory-data")
    assert claim["metadata"]["uid"] == uid
    assert claim["spec"]["resources"]["requests"]["storage"] == "5Gi"
    assert "storageClassName" not in claim["spec"]
    await world.make_ready(store)
    assert world.of_store(store, "StorageReady") == ("True", "VolumeLargerThanSpec")


async def test_a_claim_that_somebody_restored_as_the_page_says_is_adopted(world: World, repository: Path) -> None:
    page = repository / "docs/how-to/backup-and-restore.md"
    (restored,) = [block for block in blocks(page) if block.about == "restored-claim.yaml"]
    manifest = yaml.safe_load(restored.body)
    manifest["metadata"]["namespace"] = "a"
    uid = world.cluster.make(kinds.CLAIM, manifest)["metadata"]["uid"]
    store = world.store("team")
    await world.settle(5)
    assert world.get(kinds.CLAIM, "team-memory-data")["metadata"]["uid"] == uid
    assert world.of_store(store, "Stalled") is None
    assert world.find(kinds.DEPLOYMENT, "team-memory") is not None


@pytest.mark.parametrize("named", [None, "fast"])
async def test_a_claim_is_applied_once_when_the_cluster_fills_in_its_class(world: World, named: str | None) -> None:
    applied: list[dict[str, Any]] = []
    apply = world.cluster.apply

    async def filling_in(kind: Kind, manifest: dict[str, Any]) -> dict[str, Any]:
        if kind == kinds.CLAIM:
            applied.append(manifest)
        live = await apply(kind, manifest)
        if kind == kinds.CLAIM:
            world.cluster.objects[("PersistentVolumeClaim", ObjectKey("a", "notes-memory-data"))]["spec"].setdefault(
                "storageClassName", "standard"
            )
            live = await world.cluster.get(kind, "a", "notes-memory-data") or live
        return live

    world.cluster.apply = filling_in  # type: ignore[method-assign]
    volume = {"size": "5Gi", **({"storageClassName": named} if named else {})}
    await world.ready_store(storage={"type": "local", "local": {"persistentVolume": volume}})
    await world.settle(30)
    assert [manifest["spec"].get("storageClassName") for manifest in applied] == [named]


async def test_a_claim_with_the_policy_delete_goes_with_its_store(world: World) -> None:
    await world.ready_store(storage={"type": "local", "local": {"persistentVolumeClaimRetentionPolicy": "Delete"}})
    world.cluster.remove(kinds.MEMORY_STORE, "a", "notes")
    world.cluster.collect_garbage()
    assert world.find(kinds.CLAIM, "notes-memory-data") is None


CLAIM = ObjectKey("a", "notes-memory-data")


def _local(**local: Any) -> dict[str, Any]:
    return {"storage": {"type": "local", "local": local}}


def _volume_claim(world: World) -> dict[str, str]:
    return dict(world.get(kinds.MEMORY_STORE, "notes")["status"]["volumeClaim"])


async def test_a_claim_that_somebody_deletes_is_told_while_the_memory_can_still_be_saved(world: World) -> None:
    store = await world.ready_store()
    before = len(world.cluster.writes)
    world.cluster.edit(
        kinds.CLAIM, CLAIM, lambda live: live["metadata"].update(deletionTimestamp="2026-01-01T12:00:00Z")
    )
    await world.settle()
    for condition, status in (("StorageReady", "False"), ("Stalled", "True")):
        assert world.of_store(store, condition) == (status, "VolumeBeingDeleted")
    assert world.of_store(store, "Ready") == ("True", "Available")
    assert [kind for verb, kind, _ in world.writes_since(before) if verb == "create"] == ["Event"]


async def test_a_store_says_that_its_claim_is_another_one_than_before(world: World) -> None:
    store = await world.ready_store()
    first = _volume_claim(world)
    assert first == {"uid": world.get(kinds.CLAIM, CLAIM.name)["metadata"]["uid"], "retentionPolicy": "Retain"}
    world.cluster.remove(kinds.CLAIM, "a", CLAIM.name)
    await world.settle(5)
    before = len(world.cluster.writes)
    await world.make_ready(store)
    assert world.of_store(store, "StorageReady") == ("True", "VolumeReplaced")
    assert [kind for verb, kind, _ in world.writes_since(before) if verb == "create"] == ["Event"]
    for _ in range(2):
        again = _volume_claim(world)
        assert again["earlierUid"] == first["uid"]
        assert again["uid"] == world.get(kinds.CLAIM, CLAIM.name)["metadata"]["uid"]
        await world.restart()
        await world.settle(5)
    assert world.of_store(store, "StorageReady") == ("True", "VolumeReplaced")


async def test_a_claim_without_a_volume_any_more_is_told(world: World) -> None:
    store = await world.ready_store()
    world.cluster.edit(kinds.CLAIM, CLAIM, lambda live: live["status"].update(phase="Lost"))
    await world.settle()
    assert world.of_store(store, "StorageReady") == ("False", "VolumeLost")
    assert world.of_store(store, "Stalled") == ("True", "VolumeLost")


@pytest.mark.parametrize(("first", "then"), [("Delete", "Retain"), ("Retain", "Delete")])
async def test_what_becomes_of_a_claim_is_applied_while_its_store_is_paused_and_told(
    world: World, first: str, then: str
) -> None:
    await world.ready_store(**_local(persistentVolumeClaimRetentionPolicy=first))
    assert _volume_claim(world)["retentionPolicy"] == first
    world.store(paused=True, **_local(persistentVolumeClaimRetentionPolicy=first))
    await world.settle()
    world.store(paused=True, **_local(persistentVolumeClaimRetentionPolicy=then, persistentVolume={"size": "9Gi"}))
    await world.settle()
    assert _volume_claim(world)["retentionPolicy"] == then
    assert world.get(kinds.CLAIM, CLAIM.name)["spec"]["resources"]["requests"]["storage"] == "5Gi"
    world.cluster.remove(kinds.MEMORY_STORE, "a", "notes")
    world.cluster.collect_garbage()
    assert (world.find(kinds.CLAIM, CLAIM.name) is not None) == (then == "Retain")


async def test_the_claim_of_a_paused_store_is_not_made_again(world: World) -> None:
    await world.ready_store()
    world.store(paused=True)
    await world.settle()
    world.cluster.remove(kinds.CLAIM, "a", CLAIM.name)
    await world.settle(5)
    assert world.find(kinds.CLAIM, CLAIM.name) is None


async def test_a_growing_claim_is_shown(world: World) -> None:
    store = await world.ready_store()
    world.store(storage={"type": "local", "local": {"persistentVolume": {"size": "6Gi"}}})
    await world.settle()
    assert world.get(kinds.CLAIM, "notes-memory-data")["spec"]["resources"]["requests"]["storage"] == "6Gi"
    assert world.of_store(store, "StorageReady") == ("True", "VolumeResizing")


def _never_grows(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have the cluster refuse every claim that is larger than it was; return what is applied of claims."""
    apply, applied = world.cluster.apply, []

    async def refuse(kind: Any, manifest: Any) -> Any:
        if kind == kinds.CLAIM:
            applied.append(manifest["spec"]["resources"]["requests"]["storage"])
            if applied[-1] != "5Gi":
                raise Forbidden("the storage class does not allow expansion")
        return await apply(kind, manifest)

    monkeypatch.setattr(world.cluster, "apply", refuse)
    return applied


async def test_a_provisioner_that_refuses_to_grow_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await world.ready_store()
    applied = _never_grows(world, monkeypatch)
    world.store(storage={"type": "local", "local": {"persistentVolume": {"size": "6Gi"}}})
    await world.settle()
    assert world.of_store(store, "StorageReady") == ("False", "VolumeExpansionRefused")
    assert world.of_store(store, "Stalled") == ("True", "VolumeExpansionRefused")
    assert world.of_store(store, "Ready") == ("True", "Available")
    assert set(applied) == {"6Gi"}, "nothing else of the claim has changed"


@pytest.mark.parametrize(("first", "then"), [("Delete", "Retain"), ("Retain", "Delete")])
async def test_what_becomes_of_a_claim_does_not_wait_for_a_growth_that_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, first: str, then: str
) -> None:
    store = await world.ready_store(**_local(persistentVolumeClaimRetentionPolicy=first))
    applied = _never_grows(world, monkeypatch)
    world.store(**_local(persistentVolumeClaimRetentionPolicy=then, persistentVolume={"size": "6Gi"}))
    await world.settle()
    assert _volume_claim(world)["retentionPolicy"] == then
    assert world.of_store(store, "Stalled") == ("True", "VolumeExpansionRefused")
    await world.settle(2 * world.settings.refused_seconds)
    assert (applied.count("6Gi") > 1, applied.count("5Gi")) == (True, 1), "the rest is applied once"
    world.cluster.remove(kinds.MEMORY_STORE, "a", "notes")
    world.cluster.collect_garbage()
    assert (world.find(kinds.CLAIM, CLAIM.name) is not None) == (then == "Retain")


@pytest.mark.parametrize("size", [{}, {"size": "6Gi"}])
async def test_an_owner_that_a_claim_may_not_be_given_is_no_refused_expansion(
    world: World, monkeypatch: pytest.MonkeyPatch, size: dict[str, str]
) -> None:
    store = await world.ready_store(**_local(persistentVolumeClaimRetentionPolicy="Delete"))
    apply = world.cluster.apply

    async def refuse(kind: Any, manifest: Any) -> Any:
        if kind == kinds.CLAIM and "ownerReferences" in world.get(kinds.CLAIM, CLAIM.name)["metadata"]:
            raise Forbidden("cannot set an ownerRef on a resource you can't delete")
        return await apply(kind, manifest)

    monkeypatch.setattr(world.cluster, "apply", refuse)
    world.store(**_local(persistentVolumeClaimRetentionPolicy="Retain", persistentVolume=size))
    await world.settle()
    assert world.of_store(store, "Stalled") == ("True", "ApplyFailed")
    assert _volume_claim(world)["retentionPolicy"] == "Delete"
    world.cluster.edit(kinds.CLAIM, CLAIM, lambda live: live["metadata"].pop("ownerReferences"))
    await world.settle()
    assert world.of_store(store, "Stalled") is None
    assert _volume_claim(world)["retentionPolicy"] == "Retain"


async def test_a_claim_that_is_refused_when_it_is_first_made_is_no_refused_expansion(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = world.cluster.apply

    async def refuse(kind: Any, manifest: Any) -> Any:
        if kind == kinds.CLAIM:
            raise Forbidden("exceeded quota")
        return await apply(kind, manifest)

    monkeypatch.setattr(world.cluster, "apply", refuse)
    store = world.store()
    await world.settle()
    for condition in ("Ready", "StorageReady"):
        assert world.of_store(store, condition) == ("False", "ApplyFailed")


async def test_a_store_that_has_started_is_put_back_though_its_model_does_not_answer(world: World) -> None:
    world.put(kinds.MODEL_API, "gpt", {"baseURL": "http://one/v1"})
    world.answers["gpt"] = REACHABLE
    store = await world.ready_store(**MODELS)
    world.answers["gpt"] = ProbeResult(Reason.UNREACHABLE, "Does not answer in time.")
    world.context.watch_model(ObjectKey("a", "gpt"))
    await world.settle()
    assert world.of_store(store, "ModelsReady") == ("False", "ModelAPINotReady")
    world.cluster.remove(kinds.DEPLOYMENT, "a", "notes-memory")
    await world.settle(5)
    assert world.find(kinds.DEPLOYMENT, "notes-memory") is not None
    world.cluster.remove(kinds.DEPLOYMENT, "a", "notes-memory")
    await world.restart()
    await world.settle(5)
    assert world.find(kinds.DEPLOYMENT, "notes-memory") is not None


async def test_a_store_waits_for_its_model_endpoint_before_its_first_start(world: World) -> None:
    store = world.store(**MODELS)
    await world.settle()
    assert world.of_store(store, "Ready") == ("False", "WaitingForModelAPI")
    assert world.of_store(store, "ModelsReady") == ("False", "ModelAPINotFound")
    assert world.find(kinds.DEPLOYMENT, "notes-memory") is None
    world.put(kinds.MODEL_API, "gpt", {"baseURL": "http://one/v1"})
    await world.settle()
    assert world.of_store(store, "ModelsReady") == ("Unknown", "ModelAPINotReady")
    world.answers["gpt"] = REACHABLE
    world.context.watch_model(ObjectKey("a", "gpt"))
    await world.settle()
    assert world.find(kinds.DEPLOYMENT, "notes-memory") is not None


async def test_a_moved_model_endpoint_rolls_the_store_and_a_missing_one_does_not_stop_it(world: World) -> None:
    world.answers["gpt"] = REACHABLE
    world.put(kinds.MODEL_API, "gpt", {"baseURL": "http://one/v1"})
    store = await world.ready_store(**MODELS)
    assert world.of_store(store, "ModelsReady") == ("True", "Ok")
    before = world.get(kinds.DEPLOYMENT, "notes-memory")["spec"]["template"]
    world.put(kinds.MODEL_API, "gpt", {"baseURL": "http://two/v1"})
    await world.settle()
    moved = world.get(kinds.DEPLOYMENT, "notes-memory")["spec"]["template"]
    assert moved != before
    assert "http://two/v1" in world.get(kinds.CONFIG_MAP, "notes-memory-config")["data"]["config.yaml"]
    world.cluster.remove(kinds.MODEL_API, "a", "gpt")
    await world.settle()
    assert world.of_store(store, "ModelsReady") == ("False", "ModelAPINotFound")
    assert world.get(kinds.DEPLOYMENT, "notes-memory")["spec"]["template"] == moved


@pytest.mark.parametrize("how", ["deleted", "broken"])
async def test_a_store_whose_model_endpoint_is_gone_is_changed_as_before(world: World, how: str) -> None:
    world.answers["gpt"] = REACHABLE
    world.put(kinds.MODEL_API, "gpt", {"baseURL": "http://one/v1", "apiKeySecretRef": {"name": "keys", "key": "k"}})
    store = await world.ready_store(**MODELS)
    before = world.get(kinds.CONFIG_MAP, "notes-memory-config")["data"]
    if how == "deleted":
        world.cluster.remove(kinds.MODEL_API, "a", "gpt")
    else:
        world.put(kinds.MODEL_API, "gpt", {"baseURL": "ftp://one"})
    await world.restart()
    world.store(**MODELS, container={"image": "new:2"})
    await world.settle()
    deployment = world.get(kinds.DEPLOYMENT, "notes-memory")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "new:2"
    assert world.get(kinds.CONFIG_MAP, "notes-memory-config")["data"] == before
    assert world.of_store(store, "Progressing") == ("True", "RolloutInProgress")
    world.store(**MODELS, container={"image": "new:2"}, replicas=0)
    await world.settle()
    world.pods("notes-memory", 0)
    await world.settle()
    assert world.of_store(store, "Ready") == ("False", "ScaledToZero")
    world.cluster.remove(kinds.DEPLOYMENT, "a", "notes-memory")
    await world.settle(5)
    assert world.find(kinds.DEPLOYMENT, "notes-memory") is not None


async def test_a_change_that_waits_for_a_model_endpoint_is_not_told_as_done(world: World) -> None:
    store = await world.ready_store()
    observed = world.get(kinds.MEMORY_STORE, "notes")["status"]["observedGeneration"]
    world.store(**MODELS, container={"image": "new:2"})
    await world.settle()
    status = world.get(kinds.MEMORY_STORE, "notes")["status"]
    assert status["observedGeneration"] == observed < world.get(kinds.MEMORY_STORE, "notes")["metadata"]["generation"]
    assert world.of_store(store, "Ready") == ("True", "Available")
    assert world.of_store(store, "Reconciling") == ("True", "WaitingForModelAPI")
    assert world.of_store(store, "Progressing") == ("False", "WaitingForModelAPI")
    world.answers["gpt"] = REACHABLE
    world.put(kinds.MODEL_API, "gpt", {"baseURL": "http://one/v1"})
    await world.settle()
    assert world.get(kinds.DEPLOYMENT, "notes-memory")["spec"]["template"]["spec"]["containers"][0]["image"] == "new:2"
    await world.make_ready(store)
    assert world.of_store(store, "Reconciling") is None
    status = world.get(kinds.MEMORY_STORE, "notes")["status"]
    assert status["observedGeneration"] == world.get(kinds.MEMORY_STORE, "notes")["metadata"]["generation"]


@pytest.mark.parametrize("why", ["paused", "waits for a model"])
async def test_a_store_that_serves_is_not_called_scaled_to_zero(world: World, why: str) -> None:
    store = await world.ready_store()
    agent = world.agent()
    await world.settle(10)
    changes: dict[str, Any] = {"paused": True} if why == "paused" else MODELS
    world.store(replicas=0, **changes)
    await world.settle(60)
    assert world.of_store(store, "Ready") == ("True", "Available")
    assert world.of_store(store, "Reconciling") == ("True", "Paused" if why == "paused" else "WaitingForModelAPI")
    assert world.of_agent(agent, "MemoryDegraded") == ("False", "MemoryHealthy")


async def test_a_change_of_a_paused_store_is_told_as_not_applied(world: World) -> None:
    store = await world.ready_store()
    world.store(paused=True)
    await world.settle()
    assert world.of_store(store, "Reconciling") is None
    world.store(paused=True, container={"image": "new:2"})
    await world.settle()
    assert world.of_store(store, "Reconciling") == ("True", "Paused")
    assert world.of_store(store, "Progressing") == ("False", "Paused")
    world.store(container={"image": "new:2"})
    await world.settle()
    await world.make_ready(store)
    assert world.of_store(store, "Reconciling") is None
    assert world.of_store(store, "Progressing") == ("False", "RolloutComplete")


async def test_what_a_configuration_remembers_may_be_garbage(world: World) -> None:
    world.answers["gpt"] = REACHABLE
    world.put(kinds.MODEL_API, "gpt", {"baseURL": "http://one/v1"})
    store = await world.ready_store(**MODELS)
    world.cluster.remove(kinds.MODEL_API, "a", "gpt")
    await world.settle()
    for text in ("no JSON", "[]", '{"gpt": 1}', '{"gpt": {"baseURL": 1}}'):
        world.cluster.edit(
            kinds.CONFIG_MAP,
            ObjectKey("a", "notes-memory-config"),
            lambda live, text=text: live["metadata"]["annotations"].update({"memplane.dev/models": text}),
        )
        await world.settle(5)
        assert world.of_store(store, "Ready") == ("True", "Available")


async def test_models_that_somebody_writes_into_a_configuration_are_not_taken_for_those_it_was_made_of(
    world: World,
) -> None:
    world.answers["gpt"] = REACHABLE
    world.put(kinds.MODEL_API, "gpt", {"baseURL": "http://one/v1"})
    await world.ready_store(**MODELS)
    before = world.get(kinds.CONFIG_MAP, "notes-memory-config")["data"]
    world.cluster.remove(kinds.MODEL_API, "a", "gpt")
    await world.settle()
    forged = json.dumps({"gpt": {"baseURL": "http://elsewhere/v1"}})
    world.cluster.edit(
        kinds.CONFIG_MAP,
        ObjectKey("a", "notes-memory-config"),
        lambda live: live["metadata"]["annotations"].update({"memplane.dev/models": forged}),
    )
    await world.settle(60)
    assert world.get(kinds.CONFIG_MAP, "notes-memory-config")["data"] == before


async def test_a_missing_secret_is_named_by_the_pods(world: World) -> None:
    store = world.store(**EXTERNAL)
    await world.settle()
    world.pods("notes-memory", 0)
    world.says(store, report(ready=False, failing={Part.SECRETS: HealthReason.SECRET_MISSING}))
    await world.settle()
    assert world.of_store(store, "Ready") == ("False", "SecretMissing")
    assert world.of_store(store, "StorageReady")[0] == "False"  # type: ignore[index]
    await world.make_ready(store)
    assert world.of_store(store, "Ready") == ("True", "Available")


async def test_dead_jobs_and_a_failing_model_do_not_make_a_store_unready(world: World) -> None:
    store = await world.ready_store()
    failing = {Part.JOBS: HealthReason.JOBS_DEAD, Part.MODELS: HealthReason.MODEL_UNAUTHORIZED}
    world.says(store, report(failing=failing))
    await world.settle()
    assert world.of_store(store, "ExtractionHealthy") == ("False", "JobsDead")
    assert world.of_store(store, "Ready") == ("True", "Available")


async def test_a_paused_store_is_left_alone_and_says_so(world: World) -> None:
    store = await world.ready_store()
    world.store(paused=True)
    await world.settle()
    assert world.of_store(store, "Paused") == ("True", "Paused")
    world.cluster.remove(kinds.SERVICE, "a", "notes-memory")
    await world.settle(5)
    assert world.find(kinds.SERVICE, "notes-memory") is None
    events = [body for (kind, _), body in world.cluster.objects.items() if kind == "Event"]
    assert [(body["type"], body["regarding"]["name"]) for body in events if body["reason"] == "Paused"] == [
        ("Normal", "notes")
    ]
    world.store()
    await world.settle()
    assert world.of_store(store, "Paused") is None
    assert world.find(kinds.SERVICE, "notes-memory") is not None


ROWS = "notes-bindings-0"


def _rows(world: World, name: str = ROWS) -> list[str]:
    return sorted(world.get(kinds.CONFIG_MAP, name).get("data") or ())


async def _mint(world: World, name: str = ROWS) -> None:
    """Add an agent to the bindings as somebody does who may change ConfigMaps."""
    key = ObjectKey("a", name)
    world.cluster.edit(kinds.CONFIG_MAP, key, lambda live: live.setdefault("data", {}).update({"a.thief.json": "{}"}))
    world.cluster.edit(kinds.CONFIG_MAP, key, lambda live: live.update(binaryData={"a.other.json": "e30="}))


async def test_a_row_that_somebody_adds_to_the_bindings_is_taken_out(world: World) -> None:
    store = await world.ready_store()
    world.agent()
    await world.settle()
    await _mint(world)
    await world.settle(5)
    assert _rows(world) == ["a.helper.json"]
    assert "binaryData" not in world.get(kinds.CONFIG_MAP, ROWS)
    assert world.context.metrics.drift.labels("ConfigMap")._value.get() >= 1
    before = len(world.cluster.writes)
    world.context.queue.add(ReconcileKey("MemoryStore", store))
    await world.settle(5)
    assert world.writes_since(before) == []


async def test_a_row_that_somebody_else_has_set_too_goes_with_its_agent(world: World) -> None:
    await world.ready_store()
    agent = world.agent()
    await world.settle()
    world.cluster.apply_as(
        "someone",
        kinds.CONFIG_MAP,
        {
            "metadata": {"name": ROWS, "namespace": "a"},
            "data": dict(world.get(kinds.CONFIG_MAP, ROWS)["data"]),
        },
    )
    await world.settle()
    world.cluster.remove(kinds.AGENT_MEMORY, agent.namespace, agent.name)
    await world.settle(5)
    assert _rows(world) == []


def _freeze(world: World, name: str) -> str:
    """Make a ConfigMap immutable as somebody does who may change ConfigMaps; return its UID."""
    world.cluster.edit(kinds.CONFIG_MAP, ObjectKey("a", name), lambda live: live.update(immutable=True))
    return str(world.get(kinds.CONFIG_MAP, name)["metadata"]["uid"])


@pytest.mark.parametrize("name", [ROWS, "notes-memory-config", "helper-memory"])
async def test_a_config_map_that_somebody_makes_immutable_is_made_again(world: World, name: str) -> None:
    await world.ready_store()
    world.agent()
    await world.settle()
    before = world.get(kinds.CONFIG_MAP, name)["data"]
    drift = world.context.metrics.drift.labels("ConfigMap")._value
    counted = drift.get()
    uid = _freeze(world, name)
    await world.settle(5)
    again = world.get(kinds.CONFIG_MAP, name)
    assert again["metadata"]["uid"] != uid
    assert again["data"] == before
    assert "immutable" not in again
    assert drift.get() == counted + 1
    count = len(world.cluster.writes)
    await world.restart()
    await world.settle(5)
    assert [item for item in world.writes_since(count) if item[1] == "ConfigMap"] == []


@pytest.mark.parametrize("spec", [{"paused": True}, {"replicas": 3}], ids=["paused", "invalid"])
async def test_immutable_bindings_hold_no_permission_that_was_taken_back(world: World, spec: dict[str, Any]) -> None:
    await world.ready_store()
    world.agent("gone")
    world.agent("stays")
    await world.settle()
    world.store(**spec)
    await world.settle()
    _freeze(world, ROWS)
    await world.settle()
    world.cluster.remove(kinds.AGENT_MEMORY, "a", "gone")
    await world.settle(5)
    assert _rows(world) == ["a.stays.json"]


async def _invalid_with_foreign_agents(world: World, **spec: Any) -> None:
    """A store that was right and is not any more, with agents of two namespaces of which one has gone."""
    allowed = {"allowedNamespaces": {"names": ["b"]}}
    await world.ready_store(access=allowed, defaultFailureMode="strict")
    world.agent("gone")
    world.agent("stays")
    world.agent("foreign", namespace="b", memoryStoreNamespace="a")
    world.agent("stranger", namespace="c", memoryStoreNamespace="a")
    await world.settle()
    world.store(**{"access": allowed, "defaultFailureMode": "strict", "replicas": 3, **spec})
    await world.settle()
    assert world.of_store(ObjectKey("a", "notes"), "Ready") == ("False", "InvalidSpec")
    world.cluster.remove(kinds.AGENT_MEMORY, "a", "gone")


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("at", range(2))
async def test_bindings_outlive_a_process_that_ends_while_it_makes_them_again_though_the_spec_breaks_a_rule(
    world: World, moment: str, at: int
) -> None:
    await _invalid_with_foreign_agents(world)
    wanted = dict(world.get(kinds.CONFIG_MAP, ROWS)["data"])
    del wanted["a.gone.json"]
    _freeze(world, ROWS)
    first = len(world.cluster.writes)

    def kill(number: int) -> None:
        if number == first + at:
            raise Killed

    setattr(world.cluster, f"{moment}_write", kill)
    with pytest.raises(Killed):
        await world.settle(5)
    setattr(world.cluster, f"{moment}_write", lambda number: None)
    await world.restart()
    await world.settle(5)
    assert world.get(kinds.CONFIG_MAP, ROWS)["data"] == wanted
    assert world.context.ledger.revision(ObjectKey("a", "notes")) == bindings_revision(wanted)


async def test_bindings_that_somebody_deletes_are_made_again_though_the_stores_spec_breaks_a_rule(world: World) -> None:
    await _invalid_with_foreign_agents(world)
    world.cluster.remove(kinds.CONFIG_MAP, "a", ROWS)
    await world.restart()
    await world.settle(5)
    assert _rows(world) == ["a.stays.json", "b.foreign.json"]


async def test_an_access_that_breaks_a_rule_takes_no_permission_and_gives_none(world: World) -> None:
    await _invalid_with_foreign_agents(world, access={"allowedNamespaces": {"names": ["B!"]}}, defaultFailureMode="")
    world.agent("late", namespace="b", memoryStoreNamespace="a")
    await world.settle(5)
    assert _rows(world) == ["a.stays.json", "b.foreign.json"]


async def test_a_store_whose_spec_breaks_a_rule_from_the_start_is_not_begun(world: World) -> None:
    world.store(replicas=3)
    world.agent()
    await world.settle(5)
    assert [name for _, key in world.cluster.objects if (name := key.name).startswith("notes-")] == []


async def test_what_an_admission_policy_makes_immutable_is_not_made_again_and_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = world.cluster.apply

    async def freezing(kind: Kind, manifest: dict[str, Any]) -> dict[str, Any]:
        if kind == kinds.CONFIG_MAP and world.find(kind, manifest["metadata"]["name"]) is None:
            await apply(kind, manifest)
            _freeze(world, manifest["metadata"]["name"])
        return await apply(kind, manifest)

    monkeypatch.setattr(world.cluster, "apply", freezing)
    await world.ready_store()
    world.agent()
    await world.settle(5)
    assert _rows(world) == ["a.helper.json"]
    count = len(world.cluster.writes)
    await world.settle(600)
    assert [item for item in world.writes_since(count) if item[1] == "ConfigMap"] == []


async def test_rows_that_cannot_be_taken_out_are_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(kind: Kind, manifest: Any) -> Any:
        raise Invalid("the ConfigMap is immutable")

    store = await world.ready_store()
    monkeypatch.setattr(world.cluster, "patch", refuse)
    await _mint(world)
    await world.settle(5)
    assert world.of_store(store, "Stalled") == ("True", "ApplyFailed")


@pytest.mark.parametrize("labels", [{}, {"app.kubernetes.io/managed-by": "memplane", "memplane.dev/store": "notes"}])
async def test_a_part_of_the_bindings_that_somebody_else_makes_is_told(world: World, labels: dict[str, str]) -> None:
    store = await world.ready_store()
    meta = {"name": "notes-bindings-7", "namespace": "a", "labels": labels}
    world.cluster.make(kinds.CONFIG_MAP, {"metadata": meta, "data": {"a.x.json": ""}})
    world.says(store, report("a revision that was never written"))
    await world.settle(6)
    assert world.of_store(store, "Stalled") == ("True", "NameConflict")
    assert "notes-bindings-7" in str(world.get(kinds.MEMORY_STORE, "notes")["status"]["conditions"])
    assert world.find(kinds.CONFIG_MAP, "notes-bindings-1") is None
    world.cluster.remove(kinds.CONFIG_MAP, "a", "notes-bindings-7")
    await world.make_ready(store)
    await world.settle(10)
    assert world.of_store(store, "Stalled") is None
    assert world.of_store(store, "Ready") == ("True", "Available")


async def test_a_store_that_uses_no_bindings_or_known_ones_has_nobody_look_for_others(world: World) -> None:
    store = await world.ready_store()
    reads = 0

    def count() -> None:
        nonlocal reads
        reads += 1

    world.cluster.before_read = count
    for revision in ("", world.context.ledger.revision(store) or ""):
        world.says(store, report(revision))
        await world.settle(60)
    assert reads == 0


async def test_a_permission_is_taken_back_and_given_while_a_store_is_paused(world: World) -> None:
    store = await world.ready_store(access={"allowedNamespaces": {"names": ["b"]}})
    world.agent("gone")
    world.agent("foreign", namespace="b", memoryStoreNamespace="a")
    await world.settle()
    assert _rows(world) == ["a.gone.json", "b.foreign.json"]
    world.store(paused=True)
    await world.settle()
    world.cluster.remove(kinds.AGENT_MEMORY, "a", "gone")
    agent = world.agent("late")
    await world.settle()
    await _mint(world)
    await world.settle(5)
    assert _rows(world) == ["a.late.json"]
    world.says(store, report(world.context.ledger.revision(store) or ""))
    await world.settle(5)
    assert world.of_agent(agent, "Ready") == ("True", "Bound")


def _hold_in_deletion(world: World, kind: Kind, name: str) -> None:
    """Delete an object that a finalizer of somebody else holds."""
    moment = {"deletionTimestamp": "2026-01-01T12:00:00Z", "finalizers": ["example.com/hold"]}
    world.cluster.edit(kind, ObjectKey("a", name), lambda live: live["metadata"].update(moment))


async def test_a_store_that_is_held_in_deletion_keeps_its_bindings_and_says_so(world: World) -> None:
    store = await world.ready_store()
    world.agent("gone")
    stays = world.agent("stays")
    await world.settle()
    await world.make_ready(store)
    _hold_in_deletion(world, kinds.MEMORY_STORE, "notes")
    await world.settle()
    assert world.of_store(store, "Reconciling") == ("True", "Terminating")
    assert world.of_store(store, "Ready") == ("True", "Available")
    world.cluster.remove(kinds.AGENT_MEMORY, "a", "gone")
    await world.settle()
    await _mint(world)
    await world.settle(5)
    assert _rows(world) == ["a.stays.json"]
    assert world.of_agent(stays, "MemoryDegraded") == ("False", "MemoryHealthy")
    world.cluster.remove(kinds.DEPLOYMENT, "a", "notes-memory")
    await world.settle(10)
    assert world.find(kinds.DEPLOYMENT, "notes-memory") is None
    assert world.of_store(store, "Ready") == ("False", "Terminating")
    assert world.of_store(store, "Progressing") == ("False", "Terminating")
    assert world.of_agent(stays, "MemoryDegraded") == ("True", "StoreNotReady")


async def test_what_has_gone_with_a_store_that_is_being_deleted_does_not_come_back(world: World) -> None:
    store = await world.ready_store()
    _hold_in_deletion(world, kinds.MEMORY_STORE, "notes")
    await world.settle()
    for kind, key in list(world.cluster.objects):
        if kind in {item.name for item in kinds.CHILDREN}:
            world.cluster.remove(kinds.ALL[kind], key.namespace, key.name)
    world.agent("late")
    await world.restart()
    await world.settle(10)
    assert children(world) == {("ClusterRoleBinding", "memplane-token-review"), ("ConfigMap", "late-memory")}
    assert world.of_store(store, "Ready") == ("False", "Terminating")


async def test_a_claim_is_kept_by_a_policy_that_is_changed_while_its_store_is_held_in_deletion(world: World) -> None:
    await world.ready_store(**_local(persistentVolumeClaimRetentionPolicy="Delete"))
    _hold_in_deletion(world, kinds.MEMORY_STORE, "notes")
    world.store(**_local(persistentVolumeClaimRetentionPolicy="Retain"))
    await world.settle()
    world.cluster.remove(kinds.MEMORY_STORE, "a", "notes")
    world.cluster.collect_garbage()
    assert world.find(kinds.CLAIM, CLAIM.name) is not None


async def test_an_agent_that_is_held_in_deletion_has_no_row_and_says_so(world: World) -> None:
    store = await world.ready_store()
    agent = world.agent()
    await world.settle()
    await world.make_ready(store)
    assert world.of_agent(agent, "Ready") == ("True", "Bound")
    _hold_in_deletion(world, kinds.AGENT_MEMORY, "helper")
    await world.settle(5)
    assert _rows(world) == []
    assert world.of_agent(agent, "Ready") == ("False", "Terminating")
    assert world.of_agent(agent, "MemoryDegraded") == ("True", "Terminating")
    before = len(world.cluster.writes)
    world.context.queue.add(ReconcileKey("AgentMemory", agent))
    await world.settle(5)
    assert world.writes_since(before) == []


async def test_a_model_endpoint_that_is_held_in_deletion_is_still_probed(world: World) -> None:
    model = world.put(kinds.MODEL_API, "gpt", {"baseURL": "http://llm"})
    world.answers["gpt"] = REACHABLE
    await world.settle()
    _hold_in_deletion(world, kinds.MODEL_API, "gpt")
    world.answers["gpt"] = ProbeResult(Reason.UNREACHABLE, "Does not answer in time.")
    world.context.watch_model(model)
    await world.settle()
    assert world.condition(kinds.MODEL_API, model, "Ready") == ("False", "Unreachable")


async def test_a_store_that_is_paused_from_the_start_is_not_begun(world: World) -> None:
    world.store(paused=True)
    world.agent()
    await world.settle(5)
    assert [name for _, key in world.cluster.objects if (name := key.name).startswith("notes-")] == []


async def test_an_agent_that_goes_loses_its_row_though_the_stores_spec_breaks_a_rule(world: World) -> None:
    store = await world.ready_store()
    world.agent("gone")
    world.agent("stays")
    await world.settle()
    world.store(replicas=3)
    await world.settle()
    assert world.of_store(store, "Ready") == ("False", "InvalidSpec")
    assert _rows(world) == ["a.gone.json", "a.stays.json"]
    world.cluster.remove(kinds.AGENT_MEMORY, "a", "gone")
    await world.settle()
    await _mint(world)
    await world.settle(5)
    assert _rows(world) == ["a.stays.json"]


async def test_an_invalid_store_keeps_what_runs(world: World) -> None:
    store = await world.ready_store()
    before = world.get(kinds.DEPLOYMENT, "notes-memory")["spec"]
    world.store(replicas=3)
    await world.settle()
    assert world.of_store(store, "Ready") == ("False", "InvalidSpec")
    assert world.of_store(store, "Stalled") == ("True", "InvalidSpec")
    assert "spec.replicas" in json.dumps(world.get(kinds.MEMORY_STORE, "notes")["status"])
    assert world.get(kinds.DEPLOYMENT, "notes-memory")["spec"] == before


async def test_a_store_scaled_to_zero_says_so(world: World) -> None:
    store = await world.ready_store()
    world.store(replicas=0)
    await world.settle()
    assert world.of_store(store, "Ready") == ("False", "ScaledToZero")


async def test_a_name_that_somebody_else_has_takes_nothing_from_a_store_that_serves(world: World) -> None:
    store = await world.ready_store(storage={"type": "external", "external": {"connectionSecretRef": {"name": "db"}}})
    agent = world.agent()
    await world.settle()
    await world.make_ready(store)
    world.cluster.remove(kinds.DISRUPTION_BUDGET, "a", "notes-memory")
    world.filter = lambda kind, event, body: False
    world.cluster.make(kinds.DISRUPTION_BUDGET, {"metadata": {"name": "notes-memory", "namespace": "a"}})
    await world.restart()
    world.filter = lambda kind, event, body: True
    await world.settle()
    await world.make_ready(store)
    await world.settle(10)
    assert world.of_store(store, "Stalled") == ("True", "NameConflict")
    assert world.of_store(store, "Ready") == ("True", "Available")
    assert world.of_agent(agent, "MemoryDegraded") == ("False", "MemoryHealthy")


async def test_an_object_of_somebody_else_is_left_alone(world: World) -> None:
    world.cluster.make(kinds.SERVICE_ACCOUNT, {"metadata": {"name": "notes-memory", "namespace": "a"}})
    store = world.store()
    await world.settle()
    assert world.of_store(store, "Stalled") == ("True", "NameConflict")
    assert "ownerReferences" not in world.get(kinds.SERVICE_ACCOUNT, "notes-memory")["metadata"]


async def test_a_refused_child_is_a_condition_and_the_others_are_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = world.cluster.apply

    async def refuse(kind: Any, manifest: Any) -> Any:
        if kind == kinds.NETWORK_POLICY:
            raise Invalid("no policies here")
        return await apply(kind, manifest)

    monkeypatch.setattr(world.cluster, "apply", refuse)
    store = world.store()
    await world.settle()
    assert world.of_store(store, "Stalled") == ("True", "ApplyFailed")
    assert world.find(kinds.DEPLOYMENT, "notes-memory") is not None


def _reconciles(world: World, kind: str, result: str) -> float:
    return float(world.context.metrics.reconciles.labels(kind, result)._value.get())


@pytest.mark.parametrize(
    ("refused", "kind"),
    [("NetworkPolicy", "MemoryStore"), ("ServiceAccount", "AgentMemory"), ("ClusterRoleBinding", TOKEN_REVIEW.kind)],
)
async def test_a_reconcile_of_which_an_object_is_refused_counts_as_refused_until_it_is_not(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refused: str, kind: str
) -> None:
    await world.ready_store()
    await world.settle(5)
    apply = world.cluster.apply

    async def refuse(one: Kind, manifest: dict[str, Any]) -> dict[str, Any]:
        if one.name == refused:
            raise Forbidden("exceeded quota")
        return await apply(one, manifest)

    with monkeypatch.context() as refusing:
        refusing.setattr(world.cluster, "apply", refuse)
        world.store("other")
        world.agent("bot", agent={"template": {"spec": {"containers": [{"name": "a", "image": "x"}]}}})
        await world.settle(100)
        assert _reconciles(world, kind, "refused") >= 3
        assert "Forbidden: exceeded quota" in {getattr(record, "error", "") for record in caplog.records}
    await world.settle(40)
    before = _reconciles(world, kind, "refused")
    await world.settle(100)
    assert _reconciles(world, kind, "refused") == before
    assert world.context.refused == set()


async def test_the_token_review_binding_lists_the_stores_that_exist(world: World) -> None:
    await world.ready_store()
    world.store("second", "b", serviceAccountName="own")
    await world.settle(3)

    def subjects() -> list[tuple[str, str]]:
        live = world.get(kinds.CLUSTER_ROLE_BINDING, "memplane-token-review", "")
        return [(item["namespace"], item["name"]) for item in live.get("subjects", [])]

    assert subjects() == [("a", "notes-memory"), ("b", "own")]
    world.cluster.remove(kinds.MEMORY_STORE, "a", "notes")
    await world.settle(3)
    assert subjects() == [("b", "own")]


async def test_a_ca_in_a_config_map_reaches_the_agents_and_its_change_too(world: World) -> None:
    authority = {"metadata": {"name": "ca", "namespace": "a"}, "data": {"ca.crt": "ONE"}}
    world.cluster.make(kinds.CONFIG_MAP, authority)
    await world.ready_store(tls={"secretRef": {"name": "tls"}, "caConfigMapRef": {"name": "ca"}})
    agent = world.agent()
    await world.settle()
    assert world.get(kinds.CONFIG_MAP, "helper-memory")["data"]["ca.crt"] == "ONE"
    world.cluster.edit(kinds.CONFIG_MAP, ObjectKey("a", "ca"), lambda live: live.update(data={"ca.crt": "TWO"}))
    await world.settle(70)
    assert world.get(kinds.CONFIG_MAP, "helper-memory")["data"]["ca.crt"] == "TWO"
    world.cluster.remove(kinds.CONFIG_MAP, "a", "ca")
    await world.settle(70)
    assert world.of_agent(agent, "MemoryDegraded") == ("True", "CANotFound")


async def test_stores_that_share_a_config_map_of_cas_each_have_their_own_and_hear_of_its_change(world: World) -> None:
    authority = {"metadata": {"name": "ca", "namespace": "a"}, "data": {"ca.crt": "ONE", "other.crt": "OTHER"}}
    world.cluster.make(kinds.CONFIG_MAP, authority)
    keys = {"notes": "ca.crt", "twin": "ca.crt", "apart": "other.crt"}
    for store, key in keys.items():
        await world.ready_store(store, tls={"secretRef": {"name": "tls"}, "caConfigMapRef": {"name": "ca", "key": key}})
        world.agent(f"of-{store}", memoryStore=store)
    await world.settle()

    def cas() -> list[str]:
        return [world.get(kinds.CONFIG_MAP, f"of-{store}-memory")["data"]["ca.crt"] for store in keys]

    assert cas() == ["ONE", "ONE", "OTHER"]
    changed = {"ca.crt": "TWO", "other.crt": "ANOTHER"}
    world.cluster.edit(kinds.CONFIG_MAP, ObjectKey("a", "ca"), lambda live: live.update(data=changed))
    await world.settle(70)
    assert cas() == ["TWO", "TWO", "ANOTHER"]


async def test_no_finalizer_and_no_annotation_is_left_on_our_objects(world: World) -> None:
    await world.ready_store()
    world.agent()
    await world.settle()
    for kind, name in ((kinds.MEMORY_STORE, "notes"), (kinds.AGENT_MEMORY, "helper")):
        meta = world.get(kind, name)["metadata"]
        assert "finalizers" not in meta
        assert "annotations" not in meta


async def test_a_drift_that_was_put_back_is_counted(world: World) -> None:
    await world.ready_store()
    key = ObjectKey("a", "notes-memory")
    world.cluster.edit(kinds.SERVICE, key, lambda live: live["spec"].update(type="NodePort"))
    await world.settle()
    assert world.context.metrics.drift.labels("Service")._value.get() == 1


async def test_addresses_of_a_slice_that_vanished_unseen_are_forgotten_by_a_resync(world: World) -> None:
    from memory_operator.reconcile.controller import resync

    store = await world.ready_store()
    labels = {names.STORE_LABEL: "notes"}
    slices = {"metadata": {"name": "s", "namespace": "a", "labels": labels}, "endpoints": [{"addresses": ["10.0.0.1"]}]}
    world.cluster.make(kinds.ENDPOINT_SLICE, slices)
    await world.settle()
    assert world.context.cache.addresses(store) == ("10.0.0.1",)
    world.filter = lambda kind, event, body: False
    world.cluster.remove(kinds.ENDPOINT_SLICE, "a", "s")
    await resync(world.context)
    assert world.context.cache.addresses(store) == ()


def _renders(monkeypatch: pytest.MonkeyPatch) -> list[StoreInputs]:
    """What stores' objects are rendered from, from now on."""
    found: list[StoreInputs] = []
    render = reconciling.desired_objects

    def noted(inputs: StoreInputs) -> Desired:
        found.append(inputs)
        return render(inputs)

    monkeypatch.setattr(reconciling, "desired_objects", noted)
    return found


async def test_a_new_stores_objects_are_rendered_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    renders = _renders(monkeypatch)
    world.agent("helper")
    store = world.store(storage={"type": "external", "external": {"connectionSecretRef": {"name": "db"}}})
    await world.settle()
    await world.make_ready(store)
    assert world.of_store(store, "Ready") == ("True", "Available")
    assert "a.helper.json" in world.get(kinds.CONFIG_MAP, "notes-bindings-0")["data"]
    assert len(renders) == 1


async def test_a_stores_objects_are_rendered_only_when_what_they_depend_on_changes_or_one_is_missing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await world.ready_store()
    renders = _renders(monkeypatch)
    world.says(store, report(failing={Part.JOBS: HealthReason.JOBS_DEAD}))
    await world.settle()
    assert world.of_store(store, "ExtractionHealthy") == ("False", "JobsDead")
    assert renders == []
    world.cluster.remove(kinds.SERVICE, "a", "notes-memory")
    await world.settle()
    assert world.find(kinds.SERVICE, "notes-memory") is not None
    assert len(renders) == 1
    world.agent("helper")
    await world.settle()
    assert "a.helper.json" in world.get(kinds.CONFIG_MAP, "notes-bindings-0")["data"]
    assert len(renders) == 2
