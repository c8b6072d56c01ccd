"""What a route is given: who calls, in which role, the composed service, and the request's idempotency key."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, Request, Response
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.types import Scope

from memory_service.api.gate import seconds_since_arrival
from memory_service.bootstrap import Runtime
from memory_service.contract.ids import IDEMPOTENCY_KEY_PATTERN
from memory_service.contract.limits import MAX_KEY_CHARS
from memory_service.domain.callers import Caller, CallerKind
from memory_service.identity.authenticator import ADMINS, AGENTS, HEALTH_READERS
from memory_service.observability.logs import request_id
from memory_service.operations.once import RequestKey
from memory_service.operations.services import Services

AGENTS_OR_ADMINS: Collection[CallerKind] = (*AGENTS, *ADMINS)

IdempotencyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=IDEMPOTENCY_KEY_PATTERN,
        max_length=MAX_KEY_CHARS,
        description="The same key and body: stored once.",
    ),
]


@dataclass(frozen=True)
class Call:
    """One verified call."""

    runtime: Runtime
    caller: Caller
    scope: Scope
    idempotency_key: str | None = None

    @property
    def services(self) -> Services:
        """The composed service.

        Raises:
            Unavailable: it is not open yet.
        """
        return self.runtime.services()

    @property
    def request_id(self) -> str | None:
        """The id that this request's answer and jobs carry."""
        return request_id.get()

    def seconds_here(self) -> float:
        """Return how long ago this request arrived."""
        return seconds_since_arrival(self.scope)

    def key(self, route: str, body: BaseModel | None) -> RequestKey | None:
        """Return the idempotency key of a body; how long it was queued and on what it builds do not make it another.

        Only what was sent counts: no body is an empty one, null is not the same as nothing, and fields that a later
        version has more are not there.
        """
        if self.idempotency_key is None:
            return None
        without = {"generation", "queued_seconds"}
        text = "{}" if body is None else body.model_dump_json(exclude=without, exclude_unset=True)
        return RequestKey(route, self.idempotency_key, hashlib.sha256(text.encode()).hexdigest())


_VERIFIED = "memplane.verified"


async def verified(
    runtime: Runtime, scope: Scope, roles: Collection[CallerKind], idempotency_key: str | None = None
) -> Call:
    """Return the call of whoever sent the headers of this request; they are looked at once, before its body.

    Raises:
        Unauthenticated, Forbidden: nobody who may call.
    """
    known: tuple[Collection[CallerKind], Caller] | None = scope.get(_VERIFIED)
    if known is None or known[0] != roles:
        known = roles, await runtime.authenticator.authenticate(Headers(scope=scope).items(), roles)
        scope[_VERIFIED] = known
    return Call(runtime, known[1], scope, idempotency_key)


async def _call(request: Request, roles: Collection[CallerKind], idempotency_key: str | None = None) -> Call:
    return await verified(request.app.state.runtime, request.scope, roles, idempotency_key)


async def agent_call(request: Request) -> Call:
    """Let an agent in, with its user if it names one."""
    return await _call(request, AGENTS)


async def writing_call(request: Request, idempotency_key: IdempotencyHeader = None) -> Call:
    """Let an agent in that changes something: it may name an idempotency key."""
    return await _call(request, AGENTS, idempotency_key)


async def agent_or_admin_call(request: Request) -> Call:
    """Let an agent or an admin in."""
    return await _call(request, AGENTS_OR_ADMINS)


async def admin_call(request: Request) -> Call:
    """Let a listed admin in."""
    return await _call(request, ADMINS)


async def health_call(request: Request) -> Call:
    """Let the operator or a listed admin in."""
    return await _call(request, HEALTH_READERS)


ROLES: Mapping[Callable[..., Any], Collection[CallerKind]] = {
    agent_call: AGENTS,
    writing_call: AGENTS,
    agent_or_admin_call: AGENTS_OR_ADMINS,
    admin_call: ADMINS,
    health_call: HEALTH_READERS,
}
"""Who is let in by what a route depends on."""

AgentCall = Annotated[Call, Depends(agent_call)]
WritingCall = Annotated[Call, Depends(writing_call)]
AgentOrAdminCall = Annotated[Call, Depends(agent_or_admin_call)]
AdminCall = Annotated[Call, Depends(admin_call)]
HealthCall = Annotated[Call, Depends(health_call)]


def answer(body: BaseModel, status: int = 200) -> Response:
    """Return a model as the response: it was validated when it was made, so it is not validated again."""
    return Response(body.model_dump_json(), status_code=status, media_type="application/json")
