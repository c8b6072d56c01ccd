"""Every rule of the CRDs, with a manifest that it accepts and one that it refuses, at a real API server."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.dynamic.client import DynamicClient

from e2e.cluster.clusters import LocalCluster
from e2e.cluster.errors import ProgramFailed
from e2e.cluster.kubectl import Kubectl
from memory_operator.cluster.client import api_client
from memory_operator.crd import agent_memory, memory_store, model_api
from memory_operator.errors import InvalidSpec

Json = dict[str, Any]
PLURALS = {"MemoryStore": "memorystores", "AgentMemory": "agentmemories", "ModelAPI": "modelapis"}
PARSERS = {"MemoryStore": memory_store.parse, "AgentMemory": agent_memory.parse, "ModelAPI": model_api.parse}

LOCAL: Json = {"storage": {"type": "local"}}
EXTERNAL: Json = {"storage": {"type": "external", "external": {"connectionSecretRef": {"name": "db"}}}}
CHAT: Json = {"summarization": {"modelAPI": "gpt", "model": "m"}}
EMBEDDING: Json = {"embedding": {"modelAPI": "gpt", "model": "e", "dimensions": 768}}
REMOTE: Json = {"memoryStore": "notes"}
POD: Json = {"spec": {"containers": [{"name": "a", "image": "x"}]}}


def store(**spec: Any) -> Json:
    return {"kind": "MemoryStore", "spec": {**LOCAL, **spec}}


def external(**spec: Any) -> Json:
    return {"kind": "MemoryStore", "spec": {**EXTERNAL, **spec}}


def disk(size: str = "5Gi", **more: Any) -> Json:
    return {
        "kind": "MemoryStore",
        "spec": {"storage": {"type": "local", "local": {"persistentVolume": {"size": size, **more}}}},
    }


def agent(**spec: Any) -> Json:
    return {"kind": "AgentMemory", "spec": spec}


def templated(**pod: Any) -> Json:
    return agent(**REMOTE, agent={"template": {"spec": {**POD["spec"], **pod}}})


def model(**spec: Any) -> Json:
    return {"kind": "ModelAPI", "spec": {"baseURL": "https://api.example.com/v1", **spec}}


def named(name: str, manifest: Json) -> Json:
    return {**manifest, "name": name}


def issuer(**more: Any) -> Json:
    """An identity with an issuer of users under a CA of its own."""
    return {"users": {"issuers": [{"issuer": "i", "audiences": ["m"], "caConfigMapRef": {"name": "ca"}, **more}]}}


def selecting(*requirements: Json) -> Json:
    """A store that allows namespaces by their labels."""
    return store(access={"allowedNamespaces": {"selector": {"matchExpressions": list(requirements)}}})


def labelled(labels: Json) -> Json:
    """A templated agent whose pods have these labels."""
    return agent(**REMOTE, agent={"template": {"metadata": {"labels": labels}, **POD}})


def listening(**more: Any) -> Json:
    """A templated agent that a Service is made for."""
    return templated(containers=[{"name": "a", "image": "x", "ports": [{"containerPort": 80}]}], **more)


def mounted(path: str) -> Json:
    """A templated agent with a mount of its own."""
    return templated(containers=[{"name": "a", "image": "x", "volumeMounts": [{"name": "v", "mountPath": path}]}])


TLS = {"secretRef": {"name": "tls"}}
LONG = "a" * 53

ACCEPTED: dict[str, Json] = {
    "the smallest store": store(),
    "an external store": external(replicas=3),
    "a local store scaled to zero": store(replicas=0),
    "a name of 52 characters": named("a" * 52, store()),
    "a name of letters, digits and dashes": named("a-1", store()),
    "both models": store(models={**CHAT, **EMBEDDING}),
    "marks in order": store(
        models=CHAT,
        shortTerm={"tokenBudget": 100},
        mediumTerm={"enabled": True, "compactionTrigger": 80, "compactionTarget": 40},
    ),
    "a trigger at the budget": store(mediumTerm={"compactionTrigger": 4096}),
    "a CA in the spec": store(tls={**TLS, "caBundle": "pem"}),
    "a CA in a ConfigMap": store(tls={**TLS, "caConfigMapRef": {"name": "ca"}}),
    "a fold at two tokens": store(mediumTerm={"compactionTrigger": 2}),
    "retention of no day and an hour": store(retention={"turns": "0d1h"}),
    "retention in days and hours": store(retention={"turns": "30d", "facts": "1d12h"}),
    "other namespaces": store(access={"allowedNamespaces": {"names": ["b"], "selector": {"matchLabels": {"a": "b"}}}}),
    "namespaces by expressions": selecting(
        {"key": "a", "operator": "In", "values": ["b"]}, {"key": "example.com/c", "operator": "Exists"}
    ),
    "labels with a prefix": store(podLabels={"example.com/team": "a", "tier": ""}, nodeSelector={"disk": "fast"}),
    "pod labels that people select by": store(
        podLabels={"app.kubernetes.io/name": "a", "app.kubernetes.io/part-of": "b"}
    ),
    "an agent's own name and component": labelled(
        {"app.kubernetes.io/name": "a", "app.kubernetes.io/component": "web"}
    ),
    "a user issuer": store(
        identity={"users": {"issuers": [{"issuer": "https://i", "audiences": ["m"], "jwksURL": "https://i/keys"}]}}
    ),
    "a user issuer under a CA of its own": store(identity=issuer(jwksURL="https://i/keys")),
    "admins": store(identity={"admins": [{"namespace": "a", "name": "b"}]}),
    "resources and a place": store(
        container={"resources": {"requests": {"cpu": 1, "memory": "1Gi"}}, "env": [{"name": "A", "value": "b"}]},
        affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}},
        tolerations=[{"operator": "Exists"}],
        topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    ),
    "a size as a number": disk(size=10_000_000_000),  # type: ignore[arg-type]
    "the smallest size": disk("1"),
    "a remote agent": agent(**REMOTE, tools="all", scope="user", readScopes=["user", "private"]),
    "an agent of another namespace's store": agent(**REMOTE, memoryStoreNamespace="b"),
    "a local agent": agent(type="local", scope="session"),
    "an agent without a store": agent(),
    "an agent named default with its account": named("default", agent(agent={"serviceAccountName": "default"})),
    "a templated agent": templated(),
    "a templated agent that listens": listening(),
    "a dot in the name of an agent that does not listen": named("a.b", templated()),
    "a mount beside the operator's place": mounted("/var/run/memplane-cache"),
    "a bound workload": agent(**REMOTE, agent={"workloadRef": {"kind": "Deployment", "name": "chat"}}),
    "a model endpoint": model(headers={"X-Team": "a"}, apiKeySecretRef={"name": "key", "key": "k"}),
    "a model endpoint at the last port": model(baseURL="http://vllm:65535/v1"),
    "a model endpoint with a query": model(baseURL="https://models.example.com/openai/v1?api-version=preview:0"),
    "a model endpoint in the cluster": model(baseURL="http://vllm.models.svc:8000/v1", probe="none"),
}

REFUSED: dict[str, tuple[Json, str]] = {
    "no storage": ({"kind": "MemoryStore", "spec": {}}, "spec.storage: Required"),
    "no spec": ({"kind": "MemoryStore"}, "spec: Required"),
    "an unknown engine": (store(engine="x"), 'supported values: "mem0", "native"'),
    "an unknown storage type": ({"kind": "MemoryStore", "spec": {"storage": {"type": "s3"}}}, "Unsupported value"),
    "external without its block": (
        {"kind": "MemoryStore", "spec": {"storage": {"type": "external"}}},
        "connectionSecretRef is required",
    ),
    "external without a Secret": (
        {"kind": "MemoryStore", "spec": {"storage": {"type": "external", "external": {}}}},
        "connectionSecretRef: Required",
    ),
    "external with a local block": (
        {"kind": "MemoryStore", "spec": {"storage": {**EXTERNAL["storage"], "local": {}}}},
        "storage.local must not be set",
    ),
    "local with an external block": (
        {"kind": "MemoryStore", "spec": {"storage": {**EXTERNAL["storage"], "type": "local"}}},
        "storage.external must not be set",
    ),
    "two pods of a local store": (store(replicas=2), "replicas must be 0 or 1 when storage.type is local"),
    "too many pods": (external(replicas=51), "less than or equal to 50"),
    "a name of 53 characters": (named(LONG, store()), "no longer than 52 characters"),
    "a dot in a store's name": (named("a.b", store()), "a Service is named after it"),
    "a digit before a store's name": (named("1a", store()), "a Service is named after it"),
    "a fold at one token": (store(mediumTerm={"compactionTrigger": 1}), "greater than or equal to 2"),
    "a retention of nothing": (store(retention={"turns": "0d"}), "turns must be longer than nothing"),
    "a retention of nothing in hours": (store(retention={"facts": "0h00m"}), "facts must be longer than nothing"),
    "a size of zero": (disk(size=0), "size must be above zero"),  # type: ignore[arg-type]
    "a size of zero with a unit": (disk("0Gi"), "size must be above zero"),
    "a negative size": (disk(size=-5), "size must be above zero"),  # type: ignore[arg-type]
    "In without values": (selecting({"key": "a", "operator": "In"}), "values must name some for In"),
    "Exists with values": (
        selecting({"key": "a", "operator": "Exists", "values": ["b"]}),
        "none for Exists and DoesNotExist",
    ),
    "a pod label with a space": (store(podLabels={"a b": "c"}), "the keys of podLabels must be those of labels"),
    "the component of a store's pods": (
        store(podLabels={"app.kubernetes.io/component": "x"}),
        "the operator finds the pods",
    ),
    "a pod label of ours": (store(podLabels={"memplane.dev/agent": "x"}), "the operator finds the pods"),
    "a label of ours on an agent's pods": (labelled({"memplane.dev/store": "x"}), "the stores find the pods"),
    "a node label with two slashes": (store(nodeSelector={"a/b/c": "d"}), "the keys of nodeSelector must be"),
    "a namespace label with a space": (
        store(access={"allowedNamespaces": {"selector": {"matchLabels": {"a b": "c"}}}}),
        "the keys of matchLabels must be those of labels",
    ),
    "a bad schema name": (
        {
            "kind": "MemoryStore",
            "spec": {"storage": {"type": "external", "external": {**EXTERNAL["storage"]["external"], "schema": "A-b"}}},
        },
        "schema",
    ),
    "a digest without a model": (store(mediumTerm={"enabled": True}), "mediumTerm.enabled needs models.summarization"),
    "a trigger above the budget": (
        store(mediumTerm={"compactionTrigger": 4097}),
        "must not be above shortTerm.tokenBudget",
    ),
    "a target at the trigger": (
        store(mediumTerm={"compactionTrigger": 100, "compactionTarget": 100}),
        "must be below mediumTerm.compactionTrigger",
    ),
    "a target at the default budget": (
        store(mediumTerm={"compactionTarget": 4096}),
        "must be below mediumTerm.compactionTrigger",
    ),
    "no concurrency": (store(extraction={"concurrency": 0}), "greater than or equal to 1"),
    "a score above one": (store(longTerm={"scoreFloor": 1.5}), "less than or equal to 1"),
    "a negative score": (store(longTerm={"scoreFloor": -0.5}), "greater than or equal to 0"),
    "101 items": (store(longTerm={"defaultTopK": 101}), "less than or equal to 100"),
    "a duration in words": (store(retention={"turns": "a month"}), "spec.retention.turns"),
    "TLS without a CA": (store(tls=TLS), "exactly one of tls.caBundle and tls.caConfigMapRef"),
    "TLS with two CAs": (
        store(tls={**TLS, "caBundle": "p", "caConfigMapRef": {"name": "c"}}),
        "exactly one of tls.caBundle",
    ),
    "TLS without a key": (store(tls={"caBundle": "p"}), "secretRef: Required"),
    "an embedding without dimensions": (
        store(models={"embedding": {"modelAPI": "a", "model": "b"}}),
        "dimensions: Required",
    ),
    "an issuer without audiences": (
        store(identity={"users": {"issuers": [{"issuer": "i", "audiences": [], "jwksURL": "https://i"}]}}),
        "should have at least 1 items",
    ),
    "an issuer's CA without a certificate to check": (
        store(identity=issuer(jwksURL="http://i/keys")),
        "caConfigMapRef needs a jwksURL that begins with https://",
    ),
    "an unknown size": (disk(size="big"), "size"),
    "an unknown access mode": (disk(accessMode="ReadWriteMany"), "Unsupported value"),
    "a variable with two values": (
        store(
            container={"env": [{"name": "A", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}
        ),
        "only one of value and valueFrom",
    ),
    "quotas, which are reserved": (store(quotas={"factsPerOwner": 1}), 'unknown field "spec.quotas"'),
    "encryption, which is reserved": (store(encryption={"keySecretRef": {}}), 'unknown field "spec.encryption"'),
    "approval, which is reserved": (store(approval={"user": "manual"}), 'unknown field "spec.approval"'),
    "backup, which is reserved": (store(backup={"schedule": "@daily"}), 'unknown field "spec.backup"'),
    "a separate worker, which is reserved": (store(worker={"mode": "separate"}), 'unknown field "spec.worker"'),
    "remote without a store": (agent(type="remote"), "memoryStore is required when type is remote"),
    "local with a store": (agent(type="local", **REMOTE), "memoryStore must not be set when type is local"),
    "a store's namespace without a store": (agent(memoryStoreNamespace="b"), "memoryStoreNamespace needs memoryStore"),
    "user scope without a store": (agent(scope="user"), "scope user and shared need memoryStore"),
    "shared scope without a store": (agent(scope="shared"), "scope user and shared need memoryStore"),
    "shared reads without a store": (agent(readScopes=["shared"]), "readScopes user and shared need memoryStore"),
    "a scope twice": (agent(**REMOTE, readScopes=["user", "user"]), "Duplicate value"),
    "tools without a store": (agent(tools="read"), "tools need memoryStore"),
    "an unknown scope": (agent(**REMOTE, scope="team"), "Unsupported value"),
    "an agent named default": (named("default", agent(**REMOTE)), "must name agent.serviceAccountName"),
    "an agent name of 53 characters": (named(LONG, agent()), "no longer than 52 characters"),
    "a template and a workload": (
        agent(**REMOTE, agent={"template": POD, "workloadRef": {"kind": "Deployment", "name": "x"}}),
        "only one of agent.template and agent.workloadRef",
    ),
    "a template without containers": (agent(agent={"template": {"spec": {}}}), "containers: Required"),
    "an unknown workload kind": (
        agent(**REMOTE, agent={"workloadRef": {"kind": "Rollout", "name": "x"}}),
        "Unsupported value",
    ),
    "a volume of the operator's name": (
        templated(volumes=[{"name": "memplane", "emptyDir": {}}]),
        "volume name memplane is the operator's",
    ),
    "a mount at the operator's place": (mounted("/var/run/memplane"), "is where the operator mounts the binding"),
    "a mount at the operator's place with a slash": (
        mounted("/var/run/memplane/"),
        "is where the operator mounts the binding",
    ),
    "a label of an agent's pods with a space": (
        agent(agent={"template": {"metadata": {"labels": {"a b": "c"}}, **POD}}),
        "the keys of labels must be those of labels",
    ),
    "a node label of an agent with a space": (
        templated(nodeSelector={"a b": "c"}),
        "the keys of nodeSelector must be those of labels",
    ),
    "a dot in the name of an agent that listens": (named("a.b", listening()), "a Service is named after it"),
    "a digit before the name of an agent that listens": (named("1a", listening()), "a Service is named after it"),
    "a host path": (templated(volumes=[{"name": "v", "hostPath": {"path": "/"}}]), "unknown field"),
    "a model endpoint without a URL": ({"kind": "ModelAPI", "spec": {}}, "baseURL: Required"),
    "a model endpoint by file": (model(baseURL="file:///etc/passwd"), "baseURL"),
    "a port that is too large": (model(baseURL="http://vllm:99999/v1"), "must be between 1 and 65535"),
    "port zero": (model(baseURL="http://vllm:0/v1"), "must be between 1 and 65535"),
    "a password in a URL": (model(baseURL="https://u:p@example.com/v1"), "baseURL"),
    "a fragment in a URL": (model(baseURL="https://example.com/v1?a=b#c"), "baseURL"),
    "port zero before a query": (model(baseURL="http://vllm:0?a=b"), "must be between 1 and 65535"),
    "the URL of a request": (
        model(baseURL="https://x.org/v1/chat/completions?a=b"),
        "must be what stands before",
    ),
    "a key as a header": (model(headers={"Authorization": "Bearer x"}), "and not Authorization"),
    "a model name of 53 characters": (named(LONG, model()), "no longer than 52 characters"),
    "an unknown probe": (model(probe="ping"), "Unsupported value"),
}

SCHEMA: Json = {"type": "external", "external": {**EXTERNAL["storage"]["external"], "schema": "one"}}
CHANGES: dict[str, tuple[Json, Json, str | None]] = {
    "a larger volume": (disk("5Gi"), disk("6Gi"), None),
    "a larger volume in other units": (disk("5Gi"), disk("6000Mi"), None),
    "a smaller volume": (disk("5Gi"), disk("4Gi"), "size may grow and never shrink"),
    "a volume that shrinks to its default": (disk("6Gi"), disk("5Gi"), "size may grow and never shrink"),
    "another storage class": (disk(storageClassName="a"), disk(storageClassName="b"), "storageClassName is fixed"),
    "a storage class that comes later": (disk(), disk(storageClassName="b"), "storageClassName is fixed"),
    "a storage class that goes": (disk(storageClassName="a"), disk(), "storageClassName is fixed"),
    "another access mode": (disk(), disk(accessMode="ReadWriteOncePod"), "accessMode is fixed"),
    "a larger volume with its block": (store(), disk("6Gi"), None),
    "a block of defaults that goes": (disk(), store(), None),
    "a larger volume that goes with its block": (disk("6Gi"), store(), "size may grow and never shrink"),
    "a storage class that comes with its block": (store(), disk(storageClassName="b"), "storageClassName is fixed"),
    "a storage class that goes with its block": (disk(storageClassName="a"), store(), "storageClassName is fixed"),
    "an access mode that comes with its block": (store(), disk(accessMode="ReadWriteOncePod"), "accessMode is fixed"),
    "another retention of the claim": (
        disk(),
        {
            "kind": "MemoryStore",
            "spec": {"storage": {"type": "local", "local": {"persistentVolumeClaimRetentionPolicy": "Delete"}}},
        },
        None,
    ),
    "from local to external": (store(), external(), "storage.type is fixed"),
    "another schema": (
        external(storage=SCHEMA),
        external(storage={**SCHEMA, "external": {**SCHEMA["external"], "schema": "two"}}),
        "schema is fixed",
    ),
    "a schema that comes later": (external(), external(storage=SCHEMA), "schema is fixed"),
    "a schema that goes": (external(storage=SCHEMA), external(), "schema is fixed"),
    "another Secret": (
        external(),
        external(storage={"type": "external", "external": {"connectionSecretRef": {"name": "other"}}}),
        None,
    ),
    "more pods": (external(replicas=2), external(replicas=3), None),
    "another chat model": (store(models=CHAT), store(models={"summarization": {"modelAPI": "x", "model": "y"}}), None),
    "an embedding moved to another endpoint": (
        store(models=EMBEDDING),
        store(models={"embedding": {**EMBEDDING["embedding"], "modelAPI": "other"}}),
        None,
    ),
    "another embedding model": (
        store(models=EMBEDDING),
        store(models={"embedding": {**EMBEDDING["embedding"], "model": "other"}}),
        "models.embedding cannot change in place yet",
    ),
    "other dimensions": (
        store(models=EMBEDDING),
        store(models={"embedding": {**EMBEDDING["embedding"], "dimensions": 1}}),
        "models.embedding cannot change in place yet",
    ),
    "an embedding that comes": (store(models=CHAT), store(models={**CHAT, **EMBEDDING}), "models.embedding cannot c"),
    "an embedding that goes with its block": (store(models=EMBEDDING), store(), "models.embedding cannot come or go"),
    "an embedding that comes with its block": (store(), store(models=EMBEDDING), "models.embedding cannot come or go"),
    "another store for an agent": (agent(**REMOTE), agent(memoryStore="other"), None),
    "ports that come under a name with a.dot": (agent(**REMOTE), listening(), "a Service is named after it"),
}


@pytest.fixture
async def api(server: LocalCluster) -> AsyncIterator[DynamicClient]:
    async with api_client({"KUBECONFIG": str(server.kubeconfig)}) as client:
        yield DynamicClient(client)


def full(manifest: Json, namespace: str, name: str = "x") -> Json:
    body = {"apiVersion": "memplane.dev/v1alpha1", **copy.deepcopy(manifest)}
    body["metadata"] = {"name": body.pop("name", name), "namespace": namespace}
    return body


async def dry_run(api: DynamicClient, verb: str, body: Json) -> tuple[Json | None, str]:
    """Return what the API server makes of a create or replace, or what it says against it."""
    path = f"/apis/memplane.dev/v1alpha1/namespaces/{body['metadata']['namespace']}/{PLURALS[body['kind']]}"
    if verb == "put":
        path += f"/{body['metadata']['name']}"
    path += "?fieldValidation=Strict" + ("&dryRun=All" if verb in ("post", "put") else "")
    try:
        answer = await api.request("post" if verb == "make" else verb, path, body=body, serialize=False)
        return await answer.json(), ""
    except ApiException as error:
        if error.status not in (400, 422):
            raise
        return None, str(json.loads(error.body)["message"])


@pytest.mark.parametrize("what", ACCEPTED)
async def test_a_good_manifest_is_accepted_and_understood(what: str, api: DynamicClient, namespace: str) -> None:
    body = full(ACCEPTED[what], namespace)
    made, said = await dry_run(api, "post", body)
    assert made is not None, said
    PARSERS[body["kind"]](made)


@pytest.mark.parametrize("what", REFUSED)
async def test_a_bad_manifest_is_refused_with_a_sentence(what: str, api: DynamicClient, namespace: str) -> None:
    manifest, expected = REFUSED[what]
    made, said = await dry_run(api, "post", full(manifest, namespace))
    assert made is None, "it was accepted"
    assert expected in said


@pytest.mark.parametrize("what", CHANGES)
async def test_a_change_is_accepted_or_refused(what: str, api: DynamicClient, namespace: str) -> None:
    before, after, expected = CHANGES[what]
    name = what.replace(" ", "-").lower()
    made, said = await dry_run(api, "make", full(before, namespace, name))
    assert made is not None, said
    body = full(after, namespace, name)
    body["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]
    changed, said = await dry_run(api, "put", body)
    if expected is None:
        assert changed is not None, said
    else:
        assert changed is None, "it was accepted"
        assert expected in said


_CROSS_FIELD = (
    "external without its block",
    "external with a local block",
    "local with an external block",
    "two pods of a local store",
    "a name of 53 characters",
    "a digest without a model",
    "a dot in a store's name",
    "a digit before a store's name",
    "a fold at one token",
    "a retention of nothing",
    "a size of zero",
    "a negative size",
    "In without values",
    "Exists with values",
    "a dot in the name of an agent that listens",
    "a port that is too large",
    "port zero",
    "a trigger above the budget",
    "a target at the trigger",
    "a target at the default budget",
    "a duration in words",
    "TLS without a CA",
    "TLS with two CAs",
    "quotas, which are reserved",
    "remote without a store",
    "local with a store",
    "a store's namespace without a store",
    "user scope without a store",
    "shared reads without a store",
    "tools without a store",
    "an agent named default",
    "an agent name of 53 characters",
    "a template and a workload",
    "a model endpoint by file",
    "a password in a URL",
    "a fragment in a URL",
    "the URL of a request",
)


@pytest.mark.parametrize("what", _CROSS_FIELD)
def test_the_operator_refuses_what_the_schema_refuses(what: str) -> None:
    """A CRD of another version may let through what this one would not."""
    manifest = full(REFUSED[what][0], "a")
    meta = {"uid": "u", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    manifest["metadata"] |= meta
    with pytest.raises(InvalidSpec) as caught:
        PARSERS[manifest["kind"]](manifest)
    assert all(problem.field for problem in caught.value.problems)


async def test_defaults_are_filled_in_but_not_the_replicas(api: DynamicClient, namespace: str) -> None:
    """A default of 1 would be written into every external store by the API server."""
    made, _ = await dry_run(api, "post", full(external(), namespace))
    assert made is not None
    assert made["spec"]["engine"] == "mem0"
    assert made["spec"]["storage"]["external"]["connectionSecretRef"]["key"] == "uri"
    assert "replicas" not in made["spec"]


def test_columns_short_names_and_the_category_work(server: LocalCluster, namespace: str) -> None:
    server.kubectl.in_namespace(namespace).apply(
        full(store(), namespace, "shown"), full(agent(**REMOTE), namespace, "shown")
    )
    kubectl = server.kubectl.in_namespace(namespace)
    assert kubectl("get", "memstore", "shown").split()[:6] == ["NAME", "TYPE", "READY", "REPLICAS", "FACTS", "AGE"]
    assert "ENDPOINT" in kubectl("get", "memstore", "-o", "wide")
    assert kubectl("get", "agentmem", "shown").split()[:6] == ["NAME", "STORE", "SCOPE", "READY", "DEGRADED", "AGE"]
    everything = kubectl("get", "memplane", "-o", "name").split()
    assert "memorystore.memplane.dev/shown" in everything
    assert "agentmemory.memplane.dev/shown" in everything


def test_a_store_with_a_number_and_a_templated_agent_can_be_scaled(server: LocalCluster, namespace: str) -> None:
    kubectl = server.kubectl.in_namespace(namespace)
    kubectl.apply(full(external(replicas=2), namespace, "scaled"), full(templated(), namespace, "scaled"))
    for plural, wanted in (("memorystores", 2), ("agentmemories", 1)):
        path = f"/apis/memplane.dev/v1alpha1/namespaces/{namespace}/{plural}/scaled/scale"
        assert json.loads(kubectl("get", "--raw", path))["spec"]["replicas"] == wanted
        kubectl("scale", f"{plural}/scaled", "--replicas=3")
    assert kubectl.get("memorystore", "scaled")["spec"]["replicas"] == 3
    assert kubectl.get("agentmemory", "scaled")["spec"]["agent"]["replicas"] == 3


def test_fields_that_are_often_asked_for_can_be_selected(server: LocalCluster, namespace: str) -> None:
    kubectl = server.kubectl.in_namespace(namespace)
    kubectl.apply(
        full(agent(memoryStore="chosen"), namespace, "one"), full(agent(memoryStore="other"), namespace, "two")
    )
    found = kubectl("get", "agentmem", "--field-selector", "spec.memoryStore=chosen", "-o", "name").split()
    assert found == ["agentmemory.memplane.dev/one"]


def test_explain_has_a_sentence_for_each_field(server: LocalCluster) -> None:
    assert "never shrink" in server.kubectl("explain", "memorystore.spec.storage.local.persistentVolume.size")


def test_no_rule_about_a_name_is_asked_again_of_an_object_that_is_older_than_it(request: pytest.FixtureRequest) -> None:
    """The rules of the whole object are asked at each write of a status too, and nobody can change a name."""
    for file in sorted((request.config.rootpath / "crds").glob("*.yaml")):
        schema = yaml.safe_load(file.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for rule in schema["x-kubernetes-validations"]:
            assert rule["optionalOldSelf"] is True, rule["rule"]
            assert "oldSelf.hasValue()" in rule["rule"]


def _is_taken(kubectl: Kubectl, manifest: Json) -> bool:
    """Whether the API server would store an object."""
    try:
        kubectl(
            "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", stdin=json.dumps(manifest)
        )
    except ProgramFailed as error:
        if "a Service is named after it" not in str(error):
            raise
        return False
    return True


@pytest.mark.parametrize("number", [1, 8], ids=["one container", "eight containers"])
def test_an_agent_that_is_older_than_the_rule_about_its_name_can_still_be_written(
    server: LocalCluster, namespace: str, repository: Path, number: int
) -> None:
    kubectl, file = server.kubectl.in_namespace(namespace), repository / "crds" / "memplane.dev_agentmemories.yaml"
    earlier = yaml.safe_load(file.read_text())
    earlier["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"] = []
    containers = [{"name": f"c{at}", "image": "x"} for at in range(number - 1)]
    containers.append({"name": "last", "image": "x", "ports": [{"containerPort": 80}]})
    old, silent = (
        full(templated(containers=items), namespace, f"{name}.{number}")
        for name, items in (("old", containers), ("silent", [{"name": "last", "image": "x"}]))
    )
    new = {**old, "metadata": {"name": f"new.{number}"}}
    server.kubectl.apply(earlier)
    try:
        server.wait_until("the rule to be gone", lambda: _is_taken(kubectl, new))
        kubectl.apply(old, silent)
    finally:
        server.kubectl.apply(file)
    server.wait_until("the rule to be back", lambda: not _is_taken(kubectl, new))
    name = old["metadata"]["name"]
    for change in ('{"metadata":{"finalizers":["example.com/x"]}}', '{"spec":{"tools":"all"}}'):
        kubectl("patch", "agentmemory", name, "--type=merge", "-p", change)
    kubectl("patch", "agentmemory", name, "--subresource=status", "--type=merge", "-p", '{"status":{"bound":true}}')
    kubectl("patch", "agentmemory", name, "--type=merge", "-p", '{"metadata":{"finalizers":[]}}')
    for spec in (templated(containers=[{"name": "last", "image": "x"}])["spec"], {"memoryStore": "notes"}):
        assert _is_taken(kubectl, {**old, "spec": spec}), "what breaks no rule"
    assert not _is_taken(kubectl, {**silent, "spec": old["spec"]}), "what broke no rule before"
    kubectl("delete", "agentmemory", name, silent["metadata"]["name"])


def test_every_field_is_described_and_bounded(request: pytest.FixtureRequest) -> None:
    root = request.config.rootpath / "crds"
    for file in sorted(root.glob("*.yaml")):
        text = file.read_text()
        assert len(text) < 100_000, f"{file.name} is too large for a client-side apply"
        schema = yaml.safe_load(text)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for part in ("spec", "status"):
            _check(schema["properties"][part], f"{file.name}:{part}", is_written_by_people=part == "spec")


def _check(schema: Json, path: str, *, is_written_by_people: bool, is_item: bool = False) -> None:
    assert is_item or schema.get("description"), f"{path} has no description"
    assert "x-kubernetes-preserve-unknown-fields" not in schema, f"{path} keeps unknown fields"
    match schema.get("type"):
        case "string":
            is_bounded = "maxLength" in schema or "enum" in schema or schema.get("format") == "date-time"
            assert is_bounded, f"{path} has no longest length"
        case "array":
            assert "maxItems" in schema, f"{path} has no largest number of items"
            _check(schema["items"], f"{path}[]", is_written_by_people=is_written_by_people, is_item=True)
        case "integer" | "number":
            assert "minimum" in schema, f"{path} has no smallest value"
        case "object":
            if "additionalProperties" in schema:
                assert "maxProperties" in schema, f"{path} has no largest number of keys"
                extra = schema["additionalProperties"]
                _check(extra, f"{path}.*", is_written_by_people=is_written_by_people, is_item=True)
            for name, inner in schema.get("properties", {}).items():
                _check(inner, f"{path}.{name}", is_written_by_people=is_written_by_people)
