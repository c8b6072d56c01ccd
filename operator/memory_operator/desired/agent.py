"""What a bound agent is given: a folder with its binding and token and, when the operator runs it, its pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from memory_operator import names
from memory_operator.crd.agent_memory import AgentMemory
from memory_operator.crd.base import JsonObject
from memory_operator.crd.memory_store import MemoryStore
from memory_operator.crd.quantity import resources
from memory_operator.desired import bindings
from memory_operator.desired.metadata import Manifest, agent_labels, canonical_json, child, earlier
from memory_operator.settings import OperatorSettings
from memory_service.contract import pods
from memory_service.contract.bindings import BINDING_FILE, ProjectedBinding


@dataclass(frozen=True)
class AgentInputs:
    """What an agent's objects depend on."""

    agent: AgentMemory
    settings: OperatorSettings
    store: MemoryStore | None = None
    """The store that it names, if it exists and is valid."""
    ca: str | None = None
    """What the store's certificate is checked against."""
    endpoint: str | None = None
    """Where its store is, or was when last seen."""
    started_endpoint: str | None = None
    """The endpoint that its pods were started with; None before the first Deployment."""
    earlier_accounts: tuple[str, ...] = ()
    """ServiceAccounts that pods of earlier templates may still have."""
    earlier_audiences: tuple[str, ...] = ()
    """Of other stores: what the tokens of such pods may be for."""
    may_start: bool = True
    """Whether the Deployment may be made: False while the first creation waits for the store."""
    folder_audience: str | None = None
    """Of the store that its folder names as it is; None while it has no folder."""


def default_endpoint(agent: AgentMemory, settings: OperatorSettings) -> str | None:
    """Return where the agent's store will be, as long as nobody has seen it."""
    if agent.store is None:
        return None
    host = names.service_host(agent.store.namespace, agent.store.name, settings.cluster_domain)
    return f"http://{host}:{names.PORT}"


def _same_place(left: str, right: str) -> bool:
    return left.partition("://")[2] == right.partition("://")[2]


def pod_endpoint(inputs: AgentInputs) -> str | None:
    """Return the endpoint for the pods' environment.

    A store that turns TLS on, comes or goes changes the binding's folder, which wins over the environment in the
    client, and never the pod template; another store, or another address, does.
    """
    current = inputs.endpoint or default_endpoint(inputs.agent, inputs.settings)
    started = inputs.started_endpoint
    if current is not None and started is not None and _same_place(current, started):
        return started
    return current


def _is_moved(inputs: AgentInputs) -> bool:
    """Whether the folder names another store than the spec."""
    store, named = inputs.agent.store, inputs.folder_audience
    return store is not None and named not in (None, names.audience(store.namespace, store.name))


def config_map(inputs: AgentInputs) -> Manifest | None:
    """Return the ConfigMap with the agent's binding; None while it has no store to be bound to.

    That of an agent that was moved to a store which is missing or not allowed names that store all the same: with the
    earlier one's address it would show that one its token.
    """
    agent, store = inputs.agent, inputs.store
    if agent.store is None or (store is None and not _is_moved(inputs)):
        return None
    audience = names.audience(agent.store.namespace, agent.store.name)
    allowed = bindings.policy(agent, store)
    binding = ProjectedBinding(
        store=agent.store.name,
        namespace=agent.store.namespace,
        endpoint=inputs.endpoint or default_endpoint(agent, inputs.settings) or "",
        audience=audience,
        agent=names.agent_identity(agent.id.namespace, agent.id.name),
        scope=allowed.scope,
        read_scopes=allowed.readable,
        tools=allowed.tools,
        failure_mode=allowed.failure_mode,
        token_budget=allowed.client_params.token_budget,
        rolling_summary=allowed.client_params.rolling_summary,
    )
    data = {BINDING_FILE: canonical_json(binding.model_dump(mode="json", by_alias=True, exclude_none=True))}
    if inputs.ca:
        data[pods.CA_FILE] = inputs.ca
    name = names.agent_binding(agent.id.name)
    annotations = {names.AUDIENCE_ANNOTATION: audience}
    return child(agent.id, "v1", "ConfigMap", name, agent_labels(agent.id.name), annotations=annotations, data=data)


def environment(inputs: AgentInputs) -> dict[str, str]:
    """Return the variables of a templated agent; they depend on its own spec alone."""
    agent = inputs.agent
    spec = agent.spec
    variables = {"AGENT_IDENTITY": names.agent_identity(agent.id.namespace, agent.id.name)}
    if agent.store is None:
        return variables
    variables |= {
        "MEMPLANE_ENDPOINT": pod_endpoint(inputs) or "",
        "MEMPLANE_AUDIENCE": names.audience(agent.store.namespace, agent.store.name),
        "MEMPLANE_SCOPE": spec.scope.value,
        "MEMPLANE_READ_SCOPES": ",".join(spec.read_scopes or (spec.scope,)),
        "MEMPLANE_ROLLING_SUMMARY": str(spec.client_params.rolling_summary).lower(),
    }
    if spec.tools is not None:
        variables["MEMPLANE_TOOLS"] = spec.tools.value
    if spec.failure_mode is not None:
        variables["MEMPLANE_FAILURE_MODE"] = spec.failure_mode.value
    if spec.client_params.token_budget is not None:
        variables["MEMPLANE_TOKEN_BUDGET"] = str(spec.client_params.token_budget)
    return variables


def _volume(agent: AgentMemory) -> JsonObject:
    assert agent.store is not None, "an agent without a store has no binding"
    audience = names.audience(agent.store.namespace, agent.store.name)
    return pods.binding_volume(names.agent_binding(agent.id.name), audience)


def snippet(agent: AgentMemory) -> str:
    """Return the part of a pod template that binds an existing workload, as YAML."""
    assert agent.store is not None, "an agent without a store has no binding"
    content = pods.bound_template(
        agent.id.name,
        service_account=agent.service_account,
        config_map=names.agent_binding(agent.id.name),
        audience=names.audience(agent.store.namespace, agent.store.name),
    )
    return yaml.safe_dump({"template": content}, sort_keys=False)


def _container(container: Mapping[str, Any], variables: Mapping[str, str], is_bound: bool) -> JsonObject:
    result = dict(container)
    own = {item["name"] for item in container.get("env") or ()}
    added = [{"name": name, "value": value} for name, value in sorted(variables.items()) if name not in own]
    result["env"] = [dict(item) for item in container.get("env") or ()] + added
    if container.get("resources"):
        result["resources"] = resources(container["resources"])
    if is_bound:
        mounts = [dict(item) for item in container.get("volumeMounts") or ()]
        mounts.append(pods.binding_mount())
        result["volumeMounts"] = mounts
    return result


def deployment(inputs: AgentInputs) -> Manifest | None:
    """Return the Deployment of an agent that the operator runs."""
    agent = inputs.agent
    template = agent.spec.agent.template
    if template is None:
        return None
    variables, is_bound = environment(inputs), agent.store is not None
    pod: JsonObject = dict(template.get("spec") or {})
    pod.setdefault("enableServiceLinks", False)
    pod["serviceAccountName"] = agent.service_account
    pod["containers"] = [_container(item, variables, is_bound) for item in pod.get("containers") or ()]
    if pod.get("initContainers"):
        pod["initContainers"] = [_container(item, variables, is_bound) for item in pod["initContainers"]]
    if is_bound:
        pod["volumes"] = [dict(item) for item in pod.get("volumes") or ()] + [_volume(agent)]
    meta = template.get("metadata") or {}
    labels = agent_labels(agent.id.name) | (meta.get("labels") or {})
    if is_bound:
        labels[pods.BINDING_LABEL] = agent.id.name
    pod_meta: JsonObject = {"labels": labels}
    if meta.get("annotations"):
        pod_meta["annotations"] = dict(meta["annotations"])
    started = pod_endpoint(inputs)
    return child(
        agent.id,
        "apps/v1",
        "Deployment",
        agent.id.name,
        agent_labels(agent.id.name),
        annotations={
            **({names.ENDPOINT_ANNOTATION: started} if started else {}),
            **earlier(names.EARLIER_ACCOUNTS_ANNOTATION, inputs.earlier_accounts),
            **earlier(names.EARLIER_AUDIENCES_ANNOTATION, inputs.earlier_audiences),
        },
        spec={
            "replicas": agent.spec.agent.replicas,
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": {names.AGENT_LABEL: agent.id.name}},
            "template": {"metadata": pod_meta, "spec": pod},
        },
    )


def _ports(template: Mapping[str, Any]) -> list[JsonObject]:
    """Return what a pod listens on as ports of a Service, of which each needs a name of its own."""
    found: dict[tuple[int, str], JsonObject] = {}
    taken = set()
    for container in (template.get("spec") or {}).get("containers") or ():
        for port in container.get("ports") or ():
            number, protocol = port["containerPort"], port.get("protocol") or "TCP"
            name = port.get("name") or f"port-{number}"
            if name in taken:
                name = f"port-{number}-{protocol.lower()}"
            if (number, protocol) not in found:
                found[(number, protocol)] = {
                    "name": name,
                    "port": number,
                    "targetPort": number,
                    "protocol": protocol,
                }
                taken.add(name)
    return list(found.values())


def service(agent: AgentMemory) -> Manifest | None:
    """Return the Service of an agent that the operator runs and that listens on a port."""
    ports = _ports(agent.spec.agent.template or {})
    if not ports:
        return None
    return child(
        agent.id,
        "v1",
        "Service",
        agent.id.name,
        agent_labels(agent.id.name),
        spec={"type": "ClusterIP", "selector": {names.AGENT_LABEL: agent.id.name}, "ports": ports},
    )


def service_account(agent: AgentMemory) -> Manifest | None:
    """Return the account of an agent that the operator runs and that names none."""
    if not agent.makes_service_account:
        return None
    return child(agent.id, "v1", "ServiceAccount", agent.id.name, agent_labels(agent.id.name))


def desired_objects(inputs: AgentInputs) -> tuple[tuple[Manifest, ...], frozenset[tuple[str, str]]]:
    """Return an agent's objects in the order in which they are applied, and those that stay as they are."""
    agent = inputs.agent
    objects = [service_account(agent), config_map(inputs), service(agent)]
    held = {("ServiceAccount", account) for account in (agent.service_account, *inputs.earlier_accounts)}
    if agent.store is not None and inputs.store is None and not _is_moved(inputs):
        held.add(("ConfigMap", names.agent_binding(agent.id.name)))
    if inputs.may_start:
        objects.append(deployment(inputs))
    elif agent.spec.agent.template is not None:
        held.add(("Deployment", agent.id.name))
    return tuple(item for item in objects if item is not None), frozenset(held)
