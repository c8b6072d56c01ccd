"""The one place where a caller becomes owner keys.

Every operation asks here which owner a write goes to, which owners a read may see, what an erasure covers and whether
a row found by its id is the caller's. Nothing else computes an owner. Everything is pure: values in, values or a
refusal out, and an owner that cannot be named is a refusal, never a wider query.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from memory_service.contract.ids import SESSION_PATTERN, WORKSPACE_PATTERN
from memory_service.contract.scopes import Scope
from memory_service.contract.sessions import ErasureSubject
from memory_service.contract.verbs import RecallMode
from memory_service.domain.callers import Caller, CallerKind, Principal
from memory_service.domain.owners import (
    AgentErasure,
    AgentPairs,
    Erasure,
    Owner,
    PairErasure,
    PrincipalErasure,
    PrincipalPairs,
    SessionErasure,
    agent_mark,
)
from memory_service.errors import FieldProblem, Forbidden, InvalidRequest, ScopeUnresolved

_SESSION = re.compile(SESSION_PATTERN)
_WORKSPACE = re.compile(WORKSPACE_PATTERN)

Readable = Owner | AgentPairs | PrincipalPairs
"""What one query of a read is about: one owner, or pairs that storage resolves to the owners that exist."""


# Writing -------------------------------------------------------------------------------------------------------------


def write_owner(
    caller: Caller, scope: Scope | None = None, session_id: str | None = None, workspace: str | None = None
) -> Owner:
    """Return the owner of a fact that this call saves, or that is extracted from this call's turns.

    Raises:
        Forbidden: the scope is neither the binding's own nor `session`.
        ScopeUnresolved: `user` without a principal, `session` without a session id.
        InvalidRequest: an id does not match its published pattern.
    """
    _agents_only(caller)
    chosen = caller.writable[0] if scope is None else scope
    if chosen not in caller.writable:
        raise Forbidden(
            f"scope {chosen.value!r} is not writable by {caller.agent!r}; its binding allows {_names(caller.writable)}",
            [FieldProblem("scope", _names(caller.writable), chosen.value)],
        )
    match chosen:
        case Scope.PRIVATE:
            return home_owner(caller, workspace)
        case Scope.USER:
            return Owner(Scope.USER, principal=_principal(caller), workspace=_workspace(workspace))
        case Scope.SHARED:
            return Owner(Scope.SHARED, workspace=_workspace(workspace))
        case Scope.SESSION:
            return session_owner(caller, _session(session_id), workspace)


def home_owner(caller: Caller, workspace: str | None = None) -> Owner:
    """Return the private pair (agent, principal or none) of this call: it owns its sessions, turns and episodes."""
    _agents_only(caller)
    return Owner(Scope.PRIVATE, caller.agent, caller.principal_hash, workspace=_workspace(workspace))


def session_owner(caller: Caller, session_id: str, workspace: str | None = None) -> Owner:
    """Return the key of the caller's session: another agent or another user with the same id has another session."""
    _agents_only(caller)
    return Owner(
        Scope.SESSION, caller.agent, caller.principal_hash, _session(session_id), workspace=_workspace(workspace)
    )


def fact_owner(session: Owner, scope: Scope) -> Owner:
    """Return the owner of facts from a session's turns, for work that runs after the call (`scope` as it was then).

    Raises:
        ScopeUnresolved: `user` for a session without a principal, which no write leaves behind.
    """
    if scope is Scope.USER and not session.principal:
        raise _unresolved(SkipReason.PRINCIPAL_MISSING)
    match scope:
        case Scope.PRIVATE:
            return Owner(scope, session.agent, session.principal, workspace=session.workspace)
        case Scope.USER:
            return Owner(scope, principal=session.principal, workspace=session.workspace)
        case Scope.SHARED:
            return Owner(scope, workspace=session.workspace)
        case Scope.SESSION:
            return session


# Reading -------------------------------------------------------------------------------------------------------------


class SkipReason(StrEnum):
    """Why a scope that the binding allows was not read."""

    PRINCIPAL_MISSING = "PrincipalMissing"
    SESSION_MISSING = "SessionMissing"


@dataclass(frozen=True)
class ScopeRead:
    """The queries of one scope: one for each member, never one for several. Results are fused afterwards.

    facts      owners of facts
    episodes   owners of turns: a private pair, all pairs of an agent or a principal, or one session of the caller
    """

    scope: Scope
    facts: tuple[Readable, ...]
    episodes: tuple[Readable, ...]


@dataclass(frozen=True)
class SkippedScope:
    """A scope among the binding's defaults that this call cannot name an owner for; an answer says so."""

    scope: Scope
    reason: SkipReason


@dataclass(frozen=True)
class ReadPlan:
    """What a read looks at. No reads means that nothing is looked at (`disable`), never that everything is."""

    reads: tuple[ScopeRead, ...]
    skipped: tuple[SkippedScope, ...] = ()


def read_plan(
    caller: Caller,
    scopes: Sequence[Scope] | None = None,
    session_id: str | None = None,
    workspace: str | None = None,
    mode: RecallMode = RecallMode.INHERIT,
) -> ReadPlan:
    """Return the owners that a recall or a list reads, scope by scope, in the order in which they were asked for.

    Without `scopes` all of the binding's readScopes are read, in every mode but `disable`. With them `inherit` and
    `replace` read exactly those, and `append` reads the binding's own scope too, as far as it is readable. A call that
    names a workspace reads its part and the part without a workspace; one that names none reads only the latter.

    Raises:
        Forbidden: a scope is not among the binding's readScopes.
        ScopeUnresolved: a scope that was asked for, or every default one, has no owner in this call.
        InvalidRequest: an id does not match its published pattern, or `scopes` is empty.
    """
    _agents_only(caller)
    if session_id is not None:
        _session(session_id)
    parts = _parts(workspace)
    if mode is RecallMode.DISABLE:
        return ReadPlan(())
    if scopes is None:
        return _default_plan(caller, session_id, parts)
    if not scopes:
        raise InvalidRequest(
            "`scopes` is empty; leave it out to read all of the binding's readScopes",
            [FieldProblem("scopes", f"at least one of {_names(caller.readable)}", [])],
        )
    refused = [scope for scope in scopes if scope not in caller.readable]
    if refused:
        raise Forbidden(
            f"scope {refused[0].value!r} is not readable by {caller.agent!r}; "
            f"its binding's readScopes are {_names(caller.readable)}",
            [FieldProblem("scopes", _names(caller.readable), [scope.value for scope in refused])],
        )
    own = (caller.policy.scope,) if mode is RecallMode.APPEND and caller.policy.scope in caller.readable else ()
    reads = []
    skipped = []
    for scope in dict.fromkeys((*own, *scopes)):
        missing = _missing(caller, scope, session_id)
        if missing is None:
            reads.append(_scope_read(caller, scope, session_id, parts))
        elif scope in scopes:
            raise _unresolved(missing)
        else:
            skipped.append(SkippedScope(scope, missing))
    return ReadPlan(tuple(reads), tuple(skipped))


def _default_plan(caller: Caller, session_id: str | None, parts: Sequence[str]) -> ReadPlan:
    reads = []
    skipped = []
    for scope in dict.fromkeys(caller.readable):
        missing = _missing(caller, scope, session_id)
        if missing is None:
            reads.append(_scope_read(caller, scope, session_id, parts))
        else:
            skipped.append(SkippedScope(scope, missing))
    if not reads:
        raise _unresolved(skipped[0].reason)
    return ReadPlan(tuple(reads), tuple(skipped))


def _missing(caller: Caller, scope: Scope, session_id: str | None) -> SkipReason | None:
    if scope is Scope.USER and caller.principal is None:
        return SkipReason.PRINCIPAL_MISSING
    if scope is Scope.SESSION and session_id is None:
        return SkipReason.SESSION_MISSING
    return None


def _unresolved(reason: SkipReason) -> ScopeUnresolved:
    if reason is SkipReason.PRINCIPAL_MISSING:
        return ScopeUnresolved(
            "scope 'user' needs a principal; send the user's token in X-Memplane-User",
            [FieldProblem("X-Memplane-User", "the token of the user on whose behalf the agent acts", None)],
        )
    return ScopeUnresolved(
        "scope 'session' needs a session; send `session_id`",
        [FieldProblem("session_id", "the id of the session", None)],
    )


def _scope_read(caller: Caller, scope: Scope, session_id: str | None, parts: Sequence[str]) -> ScopeRead:
    match scope:
        case Scope.PRIVATE:
            pairs = _private_pairs(caller, parts)
            return ScopeRead(scope, facts=pairs, episodes=pairs)
        case Scope.USER:
            principal = _principal(caller)
            return ScopeRead(
                scope,
                facts=tuple(Owner(Scope.USER, principal=principal, workspace=part) for part in parts),
                episodes=tuple(PrincipalPairs(principal, part) for part in parts),
            )
        case Scope.SHARED:
            return ScopeRead(scope, facts=tuple(Owner(Scope.SHARED, workspace=part) for part in parts), episodes=())
        case Scope.SESSION:
            session = tuple(
                Owner(Scope.SESSION, caller.agent, caller.principal_hash, _session(session_id), part) for part in parts
            )
            return ScopeRead(scope, facts=session, episodes=session)


def _private_pairs(caller: Caller, parts: Sequence[str]) -> tuple[Readable, ...]:
    if caller.policy.share_across_users:
        return tuple(AgentPairs(caller.agent, part) for part in parts)
    principals = dict.fromkeys((caller.principal_hash, ""))
    return tuple(
        Owner(Scope.PRIVATE, caller.agent, principal, workspace=part) for principal in principals for part in parts
    )


# By id ---------------------------------------------------------------------------------------------------------------


def may_read(caller: Caller, owner: Owner, written_by: str = "") -> bool:
    """Return whether a row of `owner` that was found by its id may be shown; if not, it is as if it were not there.

    Whatever the caller may change it may also see. An id names one row, so its workspace does not matter.
    `written_by` is the agent that wrote the row.
    """
    if caller.kind is not CallerKind.AGENT:
        return caller.kind is CallerKind.ADMIN
    return may_change(caller, owner, written_by) or (owner.scope in caller.readable and _reaches(caller, owner))


def may_change(caller: Caller, owner: Owner, written_by: str = "") -> bool:
    """Return whether a row of `owner` that was found by its id may be corrected, superseded or deleted.

    Only the caller's own pair, session or user under a scope that it may write; under `shared` only what the same
    agent wrote. A lifted fence (`shareAcrossUsers`) widens reads, not this.
    """
    if caller.kind is not CallerKind.AGENT:
        return caller.kind is CallerKind.ADMIN
    if owner.scope not in caller.writable:
        return False
    match owner.scope:
        case Scope.SHARED:
            return bool(written_by) and written_by == caller.agent
        case Scope.USER:
            return caller.principal is not None and owner.principal == caller.principal_hash
        case Scope.PRIVATE | Scope.SESSION:
            return owns(caller, owner)


def owns(caller: Caller, owner: Owner) -> bool:
    """Return whether `owner` is of the caller's own pair: the rule for sessions, jobs, snapshots and receipts."""
    if caller.kind is not CallerKind.AGENT:
        return caller.kind is CallerKind.ADMIN
    if owner.scope not in (Scope.PRIVATE, Scope.SESSION):
        return False
    return owner.agent == caller.agent and owner.principal == caller.principal_hash


def _reaches(caller: Caller, owner: Owner) -> bool:
    match owner.scope:
        case Scope.PRIVATE:
            fence = (caller.principal_hash, "")
            return owner.agent == caller.agent and (caller.policy.share_across_users or owner.principal in fence)
        case Scope.USER:
            return caller.principal is not None and owner.principal == caller.principal_hash
        case Scope.SHARED:
            return True
        case Scope.SESSION:
            return owns(caller, owner)


# Erasing -------------------------------------------------------------------------------------------------------------


def forget_erasure(caller: Caller, scope: Scope | None = None, session_id: str | None = None) -> Erasure:
    """Return what a `forget` of this call covers.

    Raises:
        Forbidden: the scope is not the binding's own or `session`, or it is `shared`, which only an admin erases.
        ScopeUnresolved: `user` without a principal, `session` without a session id.
        InvalidRequest: `session_id` together with a scope that is wider than the session.
    """
    _agents_only(caller)
    chosen = caller.writable[0] if scope is None else scope
    if chosen is Scope.SHARED:
        raise Forbidden(
            "scope 'shared' belongs to all agents of the store and is not erased by one of them; "
            "delete the agent's own facts by their id, or ask an admin",
            [FieldProblem("scope", "a scope of the agent's own", chosen.value)],
        )
    if chosen not in caller.writable:
        raise Forbidden(
            f"scope {chosen.value!r} is not erasable by {caller.agent!r}; its binding allows {_names(caller.writable)}",
            [FieldProblem("scope", _names(caller.writable), chosen.value)],
        )
    if session_id is not None and chosen is not Scope.SESSION:
        raise InvalidRequest(
            f"`session_id` with scope {chosen.value!r} would erase more than the session; "
            "send scope 'session' to erase the session, or leave out `session_id`",
            [FieldProblem("session_id", "only with scope 'session'", session_id)],
        )
    match chosen:
        case Scope.PRIVATE:
            return PairErasure(caller.agent, caller.principal_hash)
        case Scope.USER:
            return PrincipalErasure(_principal(caller))
        case Scope.SESSION:
            return SessionErasure(caller.agent, caller.principal_hash, _session(session_id))


def subject_erasure(caller: Caller, subject: ErasureSubject) -> Erasure:
    """Return what an admin's erasure by subject covers.

    Raises:
        Forbidden: the caller is not an admin.
        InvalidRequest: the principal is not of the form `<issuer>#<subject>`.
    """
    if caller.kind is not CallerKind.ADMIN:
        raise Forbidden("only an admin of the store erases by subject; an agent erases with /v1/forget")
    principal = ""
    if subject.principal is not None:
        try:
            principal = Principal.parse(subject.principal).hash
        except ValueError as error:
            raise InvalidRequest(
                f"`subject.principal` cannot be read: {error}",
                [FieldProblem("subject.principal", "<issuer>#<subject>", subject.principal)],
            ) from error
    if subject.session is not None and subject.agent is not None:
        return SessionErasure(subject.agent, principal, _session(subject.session))
    if subject.agent is not None:
        return AgentErasure(subject.agent)
    if principal:
        return PrincipalErasure(principal)
    raise InvalidRequest(
        "`subject` names nobody; give `principal`, `agent`, or `session` with its `agent`",
        [FieldProblem("subject", "one of principal, agent, session", None)],
    )


def generation_owners(caller: Caller, session_id: str | None = None) -> tuple[Owner, ...]:
    """Return the owners whose generations say whether anything that this call builds on was erased.

    They are the marks of every erasure that can cover the call, so they carry no workspace. One without a row is 0.
    """
    owners = [agent_mark(caller.agent), home_owner(caller)]
    if caller.principal is not None:
        owners.append(Owner(Scope.USER, principal=caller.principal_hash))
    if session_id is not None:
        owners.append(session_owner(caller, session_id))
    return tuple(owners)


# Checks --------------------------------------------------------------------------------------------------------------


def _agents_only(caller: Caller) -> None:
    if caller.kind is not CallerKind.AGENT or not caller.agent:
        raise Forbidden(f"{caller.subject!r} is not an agent and owns no memory; call this with an agent's token")


def _principal(caller: Caller) -> str:
    if caller.principal is None:
        raise _unresolved(SkipReason.PRINCIPAL_MISSING)
    return caller.principal_hash


def _session(session_id: str | None) -> str:
    if session_id is None:
        raise _unresolved(SkipReason.SESSION_MISSING)
    if _SESSION.fullmatch(session_id) is None:
        raise InvalidRequest(
            "`session_id` does not match its pattern; use 1 to 128 letters, digits and `._:-`, a letter or digit first",
            [FieldProblem("session_id", SESSION_PATTERN, session_id[:200])],
        )
    return session_id


def _workspace(workspace: str | None) -> str:
    if workspace is None:
        return ""
    if _WORKSPACE.fullmatch(workspace) is None:
        raise InvalidRequest(
            "`workspace` does not match its pattern; use 1 to 128 letters, digits and `._:-`, a letter or digit first",
            [FieldProblem("workspace", WORKSPACE_PATTERN, workspace[:200])],
        )
    return workspace


def _parts(workspace: str | None) -> tuple[str, ...]:
    part = _workspace(workspace)
    return (part, "") if part else ("",)


def _names(scopes: Iterable[Scope]) -> str:
    return ", ".join(repr(scope.value) for scope in scopes)
