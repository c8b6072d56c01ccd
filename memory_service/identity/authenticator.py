"""What the API asks: who sent this request, in one of the roles that its route takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, Self

from memory_service.contract.health import Reason
from memory_service.domain.callers import Caller, CallerKind

Now = Callable[[], datetime]
"""The wall clock, aware UTC: token times and the `since` of reports."""

Monotonic = Callable[[], float]
"""Seconds that never go back: ages of caches."""

Headers = Iterable[tuple[str, str]]
"""All headers of a request as pairs, repeated ones too (Starlette's `request.headers.items()`)."""

AGENTS: Collection[CallerKind] = (CallerKind.AGENT,)
ADMINS: Collection[CallerKind] = (CallerKind.ADMIN,)
HEALTH_READERS: Collection[CallerKind] = (CallerKind.OPERATOR, CallerKind.ADMIN)


@dataclass(frozen=True)
class IdentityState:
    """How well callers can be told apart, for readiness and the health report (part `bindings`).

    ok                     whether what is used is known to be current
    ready                  whether any caller can be let in at all
    since                  when `ok` took its present value
    stale_since            when what is used was last known to be current; None while it is
    bindings_revision      contract.bindings.bindings_revision of the rows in use; empty outside of a cluster
    revocation_available   whether removed pods' tokens are refused; None where there is no such thing
    problems               sentences on single entries that were left out
    """

    ok: bool
    ready: bool
    reason: Reason
    message: str
    since: datetime
    stale_since: datetime | None = None
    bindings_revision: str = ""
    revocation_available: bool | None = None
    problems: tuple[str, ...] = ()


class Authenticator(Protocol):
    """One mode of telling who calls. Enter it before use; it owns its clients and tasks until it is left."""

    async def authenticate(self, headers: Headers, roles: Collection[CallerKind] = AGENTS) -> Caller:
        """Return the caller, in one of `roles`.

        A caller proves exactly one role; what a request says beside its tokens never adds one.

        Raises:
            Unauthenticated: no token, or one that proves nothing here.
            Forbidden: the token is good, and its owner may not call this route.
            Unavailable: it cannot be told at the moment; ask again.
        """

    async def refresh(self) -> None:
        """Look at what callers are told apart by, where that is seen at their calls alone: nobody may have called."""

    def state(self) -> IdentityState:
        """Return what the health report says; never waits."""

    async def __aenter__(self) -> Self:
        """Read what is needed and start following it.

        Raises:
            Misconfigured: a person must change the configuration first.
        """

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop following and close what is open."""
