"""Owner keys: who owns a row, one key per scope.

An Owner is a value; storage gives each a number. Nothing else in the program names an owner.
"""

from __future__ import annotations

from dataclasses import dataclass

from memory_service.contract.scopes import Scope


@dataclass(frozen=True, order=True)
class Owner:
    """One owner key. Unused parts are empty strings.

    private   agent + principal hash (or empty)           the fence between the users of one agent
    user      principal hash
    shared    nothing: the store's one `kaos:shared`
    session   agent + principal hash + session id

    `workspace` partitions any of them; empty is the part without a workspace.
    """

    scope: Scope
    agent: str = ""
    principal: str = ""
    session: str = ""
    workspace: str = ""


@dataclass(frozen=True)
class AgentPairs:
    """All private pairs of one agent (`shareAcrossUsers`): resolved by storage to the owners that exist."""

    agent: str
    workspace: str = ""


@dataclass(frozen=True)
class PrincipalPairs:
    """All private pairs of one principal over every agent: what `user` scope reads as episodes."""

    principal: str
    workspace: str = ""


@dataclass(frozen=True)
class Erasure:
    """Whose memory goes. Exactly one shape:

    session     `agent` + `principal` + `session`: that session in every workspace, and the facts that come from it alone
    private     `agent` + `principal` (empty: the pair without one): its rows and sessions, in every workspace
    principal   `principal` alone: every row said for it, under every owner key and agent
    agent       `agent` with `whole_agent`: all pairs and sessions of the agent
    shared      `whole_shared`: everything under `kaos:shared`
    """

    agent: str = ""
    principal: str = ""
    session: str = ""
    whole_agent: bool = False
    whole_shared: bool = False
