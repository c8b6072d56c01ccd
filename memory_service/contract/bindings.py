"""Bindings: which agents may use a store and how. Written by the operator, read by the service.

They lie in numbered ConfigMaps `<store>-bindings-0`, `-1`, …, one JSON document a key. The revision is a digest of
all rows, so that both sides compute it from what they hold and neither has to count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from memory_service.contract.base import FileModel, Time
from memory_service.contract.ids import AgentIdentity
from memory_service.contract.scopes import FailureMode, Scope, Tools

BINDING_KEY_SUFFIX = ".json"


class ClientParams(FileModel):
    """What a client is told to ask for unless the agent says otherwise."""

    token_budget: Annotated[int, Field(ge=1)] | None = None
    rolling_summary: bool = True


class BindingPolicy(FileModel):
    """What a bound agent may do. `read_scopes` empty means the scope alone."""

    scope: Scope = Scope.PRIVATE
    read_scopes: tuple[Scope, ...] = ()
    tools: Tools | None = None
    failure_mode: FailureMode = FailureMode.SOFT
    share_across_users: bool = False
    client_params: ClientParams = ClientParams()

    @property
    def readable(self) -> tuple[Scope, ...]:
        """The scopes that a read may use, never empty."""
        return self.read_scopes or (self.scope,)


class Binding(BindingPolicy):
    """One row: the agent's identity, the ServiceAccount that proves it, and the policy."""

    agent: AgentIdentity
    namespace: str
    service_account: str
    created_at: Time


def bindings_revision(rows: Mapping[str, str]) -> str:
    """Return the revision of these rows (ConfigMap key → JSON text, over all of the store's ConfigMaps)."""
    digest = hashlib.sha256()
    for key in sorted(rows):
        for part in (key, rows[key]):
            data = part.encode()
            digest.update(len(data).to_bytes(8, "big"))
            digest.update(data)
    return digest.hexdigest()[:32]


BINDING_FILE = "binding.json"
"""In the folder that a bound agent's pod mounts; beside it lie `token` and, for a store with TLS, `ca.crt`."""


class ProjectedBinding(FileModel):
    """What an agent's client reads from `binding.json`: where its store is, and what the store will allow."""

    store: str
    namespace: str
    endpoint: str
    audience: str
    agent: AgentIdentity
    scope: Scope
    read_scopes: tuple[Scope, ...]
    tools: Tools | None = None
    failure_mode: FailureMode
    token_budget: int | None = None
    rolling_summary: bool = True
