"""Owner keys: who owns a row, one key per scope.

An Owner is a value; storage gives each a number. Nothing else in the program names an owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from memory_service.contract.scopes import Scope


class Owner(NamedTuple):
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
    """All private pairs of one principal, over all agents: where a user's episodes are. `principal` is the hash."""

    principal: str
    workspace: str = ""


def agent_mark(agent: str) -> Owner:
    """Return the owner whose generation moves when everything of an agent is erased.

    It holds no rows: a session id is never empty. It is what a write is compared with whose own pair had stored
    nothing yet when the agent was erased.
    """
    return Owner(Scope.SESSION, agent=agent)


@dataclass(frozen=True, order=True)
class SessionErasure:
    """A session, and the facts that come from it alone, whatever their owner key."""

    agent: str
    principal: str
    session: str

    @property
    def marks(self) -> tuple[Owner, ...]:
        """The owners whose generation moves, whether or not they hold a row."""
        return (Owner(Scope.SESSION, self.agent, self.principal, self.session),)


@dataclass(frozen=True, order=True)
class PairErasure:
    """The rows and sessions of one agent for one principal (hash), or for none (empty).

    All workspaces; facts under `private` and `session`, episodes, and every tier of the sessions. What the agent gave
    to `user` or `shared` is that owner's and stays.
    """

    agent: str
    principal: str

    @property
    def marks(self) -> tuple[Owner, ...]:
        """The owners whose generation moves, whether or not they hold a row."""
        return (Owner(Scope.PRIVATE, self.agent, self.principal),)


@dataclass(frozen=True, order=True)
class PrincipalErasure:
    """Every row said for one principal (hash), under every owner key, agent and workspace of the store."""

    principal: str

    @property
    def marks(self) -> tuple[Owner, ...]:
        """The owners whose generation moves, whether or not they hold a row."""
        return (Owner(Scope.USER, principal=self.principal),)


@dataclass(frozen=True, order=True)
class AgentErasure:
    """Every row of one agent, of all its principals and of none, under every owner key and workspace."""

    agent: str

    @property
    def marks(self) -> tuple[Owner, ...]:
        """The owners whose generation moves, whether or not they hold a row."""
        return (agent_mark(self.agent),)


Erasure = SessionErasure | PairErasure | PrincipalErasure | AgentErasure
"""What an erasure covers. Storage deletes the rows and moves the generation of each of `marks`, in one transaction."""


def erasure_of(mark: Owner) -> Erasure:
    """Return the erasure that has this mark.

    Raises:
        ValueError: none has.
    """
    match mark:
        case Owner(Scope.SESSION, agent, "", "", "") if agent:
            return AgentErasure(agent)
        case Owner(Scope.SESSION, agent, principal, session, "") if agent and session:
            return SessionErasure(agent, principal, session)
        case Owner(Scope.PRIVATE, agent, principal, "", "") if agent:
            return PairErasure(agent, principal)
        case Owner(Scope.USER, "", principal, "", "") if principal:
            return PrincipalErasure(principal)
    raise ValueError(f"nothing is erased by {mark!r}")


def covering(owner: Owner) -> list[Owner]:
    """Return the marks of every erasure that covers an owner; whoever stores under it holds them first."""
    marks: list[Owner] = []
    if owner.agent:
        marks += AgentErasure(owner.agent).marks + PairErasure(owner.agent, owner.principal).marks
    if owner.principal:
        marks += PrincipalErasure(owner.principal).marks
    if owner.session:
        marks += SessionErasure(owner.agent, owner.principal, owner.session).marks
    return marks
