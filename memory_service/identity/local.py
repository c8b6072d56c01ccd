"""The mode `none`: on one's own machine the caller is who it says it is."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Self

from memory_service.contract.bindings import BindingPolicy
from memory_service.contract.health import Reason
from memory_service.contract.ids import AGENT_PATTERN, LOCAL_AGENT, LOCAL_ISSUER
from memory_service.contract.scopes import Scope, Tools
from memory_service.domain.callers import Caller, CallerKind, Principal
from memory_service.errors import FieldProblem, Forbidden, InvalidRequest, Misconfigured
from memory_service.identity.authenticator import AGENTS, Headers, IdentityState, Now
from memory_service.identity.credentials import (
    AGENT_HEADER,
    USER_HEADER,
    header_text,
    principal_flaw,
    read_credentials,
)
from memory_service.identity.http_rules import is_loopback

_AGENT = re.compile(AGENT_PATTERN)
_MAX_AGENT_CHARS = 331
_ALL_SCOPES = (Scope.PRIVATE, Scope.USER, Scope.SHARED, Scope.SESSION)
_POLICY = BindingPolicy(scope=Scope.PRIVATE, read_scopes=_ALL_SCOPES, tools=Tools.ALL)


class LocalAuthenticator:
    """Takes the caller's word, with every id checked against its pattern.

    An agent names itself in `X-Memplane-Agent` and its user in `X-Memplane-User`, both in plain text; all four scopes
    can be read and written.

    Admin routes and the health report are open exactly when the service listens on loopback and
    `allowUnauthenticated` is off: then whoever can connect sits at this machine and owns the store's folder anyway.
    No header is needed for that and none can add to it. As soon as strangers may reach the port (another bind, or
    `allowUnauthenticated`), admin routes are refused: a store that others use needs the mode `static` or `cluster` to
    be administered.
    """

    def __init__(self, *, host: str, allow_unauthenticated: bool, now: Now) -> None:
        if not is_loopback(host) and not allow_unauthenticated:
            raise Misconfigured(
                f"auth mode `none` lets anybody in, and {host!r} can be reached from other machines; listen on "
                "127.0.0.1, choose `--auth static` or `cluster`, or set identity.allowUnauthenticated",
                reason="AuthModeUnsafe",
            )
        self._is_own_machine = is_loopback(host) and not allow_unauthenticated
        self._state = IdentityState(ok=True, ready=True, reason=Reason.OK, message="auth mode `none`", since=now())

    async def authenticate(self, headers: Headers, roles: Collection[CallerKind] = AGENTS) -> Caller:
        """Return the agent that the caller says it is, or the admin where the route takes no agent.

        Raises:
            InvalidRequest: a name does not match its pattern.
            Forbidden: an admin route, and strangers may reach this service.
        """
        if CallerKind.AGENT in roles:
            return self._agent(headers)
        if CallerKind.ADMIN in roles and self._is_own_machine:
            return Caller(CallerKind.ADMIN, "local")
        raise Forbidden(
            "this route is for admins, and in the auth mode `none` only a service on loopback without "
            "allowUnauthenticated knows one; use `--auth static` with an admin token"
        )

    def _agent(self, headers: Headers) -> Caller:
        given = read_credentials(headers)
        agent = LOCAL_AGENT if given.agent is None else given.agent
        if len(agent) > _MAX_AGENT_CHARS or _AGENT.fullmatch(agent) is None:
            raise InvalidRequest(
                f"{AGENT_HEADER} is not an agent's identity; expected kaos://agent/<namespace>/<name> in lower case",
                [FieldProblem(AGENT_HEADER, AGENT_PATTERN, agent[:200])],
            )
        principal = None
        if given.user is not None:
            name = header_text(USER_HEADER, given.user)
            flaw = principal_flaw(name)
            if flaw is not None:
                raise InvalidRequest(
                    f"{USER_HEADER} {flaw}; send the user's name as plain text, or leave the header out",
                    [FieldProblem(USER_HEADER, "a name in plain text", None)],
                )
            principal = Principal(LOCAL_ISSUER, name)
        return Caller(CallerKind.AGENT, agent, agent, principal, _POLICY, write_scopes=_ALL_SCOPES)

    async def refresh(self) -> None:
        """Do nothing."""

    def state(self) -> IdentityState:
        """Return that everything is as it should be."""
        return self._state

    async def __aenter__(self) -> Self:
        """Do nothing."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Do nothing."""
