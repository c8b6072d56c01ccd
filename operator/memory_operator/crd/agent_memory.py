"""AgentMemory: the binding of one agent to a store, or its purely local memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from pydantic import Field

from memory_operator import names
from memory_operator.crd.base import (
    SERVICE_NAME,
    DnsLabel,
    DnsName,
    Identity,
    JsonObject,
    ObjectKey,
    ObjectName,
    identity,
    parse_spec,
)
from memory_operator.errors import InvalidSpec, Problem
from memory_service.contract.base import FileModel
from memory_service.contract.scopes import FailureMode, Scope, Tools


class MemoryType(StrEnum):
    """`remote`: in a store. `local`: in the agent's own process only."""

    LOCAL = "local"
    REMOTE = "remote"


class ClientParameters(FileModel):
    """What the agent's client asks for."""

    token_budget: int | None = Field(default=None, ge=1)
    rolling_summary: bool = True


class WorkloadRef(FileModel):
    """A workload that somebody else owns."""

    kind: str = Field(pattern=r"^(Deployment|StatefulSet|DaemonSet|Job|CronJob|ReplicaSet|Pod)$")
    name: DnsName


class AgentSpec(FileModel):
    """How the agent comes: a template that the operator runs, a workload that exists, or neither."""

    service_account_name: DnsName | None = None
    replicas: int = Field(default=1, ge=0, le=100)
    template: JsonObject | None = None
    workload_ref: WorkloadRef | None = None


class AgentMemorySpec(FileModel):
    """What is asked for."""

    type: MemoryType | None = None
    memory_store: ObjectName | None = None
    memory_store_namespace: DnsLabel | None = None
    scope: Scope = Scope.PRIVATE
    share_across_users: bool = False
    read_scopes: tuple[Scope, ...] = Field(default=(), max_length=4)
    tools: Tools | None = None
    failure_mode: FailureMode | None = None
    client_params: ClientParameters = ClientParameters()
    wait_for_dependencies: bool = True
    agent: AgentSpec = AgentSpec()


@dataclass(frozen=True)
class AgentMemory:
    """An AgentMemory whose spec keeps all rules."""

    id: Identity
    spec: AgentMemorySpec
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> ObjectKey:
        """Its namespace and name."""
        return self.id.key

    @cached_property
    def store(self) -> ObjectKey | None:
        """The store that it names; None for a local one."""
        return referenced_store(self.id.namespace, self.spec)

    @property
    def service_account(self) -> str:
        """The ServiceAccount whose token proves this agent."""
        return self.spec.agent.service_account_name or self.id.name

    @property
    def makes_service_account(self) -> bool:
        """Whether the operator makes the account: it runs the agent and no account is named."""
        return self.spec.agent.template is not None and self.spec.agent.service_account_name is None


def referenced_store(namespace: str, spec: AgentMemorySpec) -> ObjectKey | None:
    """Return the store that a spec names, if any."""
    if spec.memory_store is None:
        return None
    return ObjectKey(spec.memory_store_namespace or namespace, spec.memory_store)


def _problems(name: str, spec: AgentMemorySpec) -> list[Problem]:
    found = []

    def expect(holds: bool, path: str, message: str) -> None:
        if not holds:
            found.append(Problem(path, message))

    has_store = spec.memory_store is not None
    if spec.type is MemoryType.REMOTE:
        expect(has_store, "spec.memoryStore", "is required when the type is remote")
    if spec.type is MemoryType.LOCAL:
        expect(not has_store, "spec.memoryStore", "must not be set when the type is local")
    if not has_store:
        expect(spec.memory_store_namespace is None, "spec.memoryStoreNamespace", "needs memoryStore")
        expect(spec.scope not in (Scope.USER, Scope.SHARED), "spec.scope", "user and shared need memoryStore")
        expect(
            not {Scope.USER, Scope.SHARED} & set(spec.read_scopes),
            "spec.readScopes",
            "user and shared need memoryStore",
        )
        expect(spec.tools is None, "spec.tools", "needs memoryStore")
    for label in sorted(((spec.agent.template or {}).get("metadata") or {}).get("labels") or ()):
        expect(
            not label.startswith(f"{names.GROUP}/"),
            f"spec.agent.template.metadata.labels.{label}",
            "must not be set: by it the operator and the stores find the pods",
        )
    containers = ((spec.agent.template or {}).get("spec") or {}).get("containers") or ()
    expect(
        SERVICE_NAME.fullmatch(name) is not None or not any(item.get("ports") for item in containers),
        "metadata.name",
        "must begin with a letter and have letters, digits and dashes only when the template has ports: a Service is "
        "named after it",
    )
    expect(
        not (spec.agent.template is not None and spec.agent.workload_ref is not None),
        "spec.agent",
        "only one of template and workloadRef may be set",
    )
    expect(
        spec.agent.service_account_name is not None or name != "default",
        "spec.agent.serviceAccountName",
        "must name the account `default` explicitly: every pod without an account of its own would be this agent",
    )
    return found


def parse(body: Mapping[str, Any]) -> AgentMemory:
    """Return the typed binding.

    Raises:
        InvalidSpec: a rule is broken.
    """
    spec = parse_spec(AgentMemorySpec, body)
    if problems := _problems(body["metadata"]["name"], spec):
        raise InvalidSpec(problems)
    return AgentMemory(identity(body), spec, body.get("status") or {})
