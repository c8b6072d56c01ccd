"""The verbs beside the five: facts, sessions, jobs, receipts, health, admin."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from memory_service.client import requests
from memory_service.client.calls import Verbs, missing, outage_of
from memory_service.client.errors import ContractError, ServiceUnavailable
from memory_service.client.results import SessionActed
from memory_service.contract.health import HealthReport
from memory_service.contract.items import Item
from memory_service.contract.scopes import FailureMode, Scope
from memory_service.contract.sessions import (
    Diagnostics,
    ExportPage,
    ImportResponse,
    Job,
    JobsResponse,
    JobState,
    ReplayResponse,
    SessionDetail,
    SessionsResponse,
    TurnsResponse,
)
from memory_service.contract.verbs import (
    FactBatchResponse,
    ForgetResponse,
    HistoryResponse,
    ListResponse,
    NewFact,
    Receipt,
)

logger = logging.getLogger(__name__)


class Facts(Verbs):
    """Inspect, correct and delete single facts."""

    async def get(self, fact_id: str) -> Item:
        """Return one fact."""
        return await self._ask(requests.facts.get(fact_id))

    async def patch(self, /, fact_id: str, *, idempotency_key: str | None = None, **changes: Any) -> Item:
        """Correct one fact and return it; with `revision` a fact that changed meanwhile raises Conflict."""
        return await self._ask(requests.facts.patch(fact_id, idempotency_key=idempotency_key, **changes))

    async def delete(self, fact_id: str, *, idempotency_key: str | None = None) -> ForgetResponse:
        """Delete one fact and return the receipt; nothing reads it any more when this returns."""
        return await self._ask(requests.facts.delete(fact_id, idempotency_key=idempotency_key))

    async def list(
        self,
        *,
        scope: Scope | str | None = None,
        session_id: str | None = None,
        workspace: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> ListResponse:
        """Return one page of facts."""
        return await self._ask(
            requests.facts.list(scope=scope, session_id=session_id, workspace=workspace, cursor=cursor, limit=limit)
        )

    async def batch(
        self,
        facts: Iterable[NewFact | Mapping[str, Any]],
        *,
        generation: str | None = None,
        idempotency_key: str | None = None,
    ) -> FactBatchResponse:
        """Save facts together, all or none."""
        return await self._ask(requests.facts.batch(facts, generation=generation, idempotency_key=idempotency_key))

    async def history(self, fact_id: str) -> HistoryResponse:
        """Return a fact's changes, oldest first."""
        return await self._ask(requests.facts.history(fact_id))

    async def supersede(self, /, fact_id: str, text: str, *, idempotency_key: str | None = None, **fields: Any) -> Item:
        """Put another statement in a fact's place and return it; the old one keeps its validity and its successor."""
        return await self._ask(requests.facts.supersede(fact_id, text, idempotency_key=idempotency_key, **fields))


class Sessions(Verbs):
    """Look at sessions, and end, flush or compact them."""

    async def list(
        self, *, workspace: str | None = None, cursor: str | None = None, limit: int | None = None
    ) -> SessionsResponse:
        """Return one page of the caller's sessions of a workspace, or of none, newest write first.

        A session that is written to meanwhile may come twice, none is left out.
        """
        return await self._ask(requests.sessions.list(workspace=workspace, cursor=cursor, limit=limit))

    async def get(self, session_id: str, *, workspace: str | None = None) -> SessionDetail:
        """Return a session with its window and digests."""
        return await self._ask(requests.sessions.get(session_id, workspace=workspace))

    async def turns(
        self, session_id: str, *, after: int | None = None, limit: int | None = None, workspace: str | None = None
    ) -> TurnsResponse:
        """Return turns past the seq `after`, in order; every turn that was kept, not the window alone."""
        return await self._ask(requests.sessions.turns(session_id, after=after, limit=limit, workspace=workspace))

    async def end(
        self,
        session_id: str,
        *,
        workspace: str | None = None,
        idempotency_key: str | None = None,
        failure_mode: FailureMode | str | None = None,
    ) -> SessionActed:
        """Say that the conversation is over, so that it is remembered however short it was."""
        return await self._act("end", session_id, workspace, idempotency_key, failure_mode)

    async def compact(
        self,
        session_id: str,
        *,
        workspace: str | None = None,
        idempotency_key: str | None = None,
        failure_mode: FailureMode | str | None = None,
    ) -> SessionActed:
        """Fold older turns into the digest now; `busy` when that runs already."""
        return await self._act("compact", session_id, workspace, idempotency_key, failure_mode)

    async def flush(
        self,
        session_id: str,
        *,
        workspace: str | None = None,
        idempotency_key: str | None = None,
        failure_mode: FailureMode | str | None = None,
    ) -> SessionActed:
        """Extract facts from the turns that wait, without ending the session."""
        return await self._act("flush", session_id, workspace, idempotency_key, failure_mode)

    async def _act(
        self,
        action: Literal["end", "compact", "flush"],
        session_id: str,
        workspace: str | None,
        idempotency_key: str | None,
        failure_mode: FailureMode | str | None,
    ) -> SessionActed:
        request = requests.sessions.act(action, session_id, workspace=workspace, idempotency_key=idempotency_key)
        strict = self._is_strict(failure_mode)
        try:
            answer = await self._ask(request)
        except (ServiceUnavailable, ContractError) as error:
            outage = outage_of(error)
            if strict or outage is None:
                raise
            logger.warning("session action not asked for", extra={"action": action, "reason": outage.reason})
            return SessionActed(session_id=session_id, jobs=(), scheduled=False, degraded=(missing(outage),))
        return SessionActed.model_validate(answer.model_dump())


class Jobs(Verbs):
    """The state of background work."""

    async def list(
        self,
        *,
        state: JobState | str | None = None,
        session_id: str | None = None,
        workspace: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> JobsResponse:
        """Return one page of jobs of a workspace, or of none, newest first."""
        return await self._ask(
            requests.jobs.list(state=state, session_id=session_id, workspace=workspace, cursor=cursor, limit=limit)
        )

    async def get(self, job_id: str) -> Job:
        """Return one job."""
        return await self._ask(requests.jobs.get(job_id))

    async def retry(self, job_id: str, *, idempotency_key: str | None = None) -> Job:
        """Put a dead job back into the queue."""
        return await self._ask(requests.jobs.retry(job_id, idempotency_key=idempotency_key))


class Receipts(Verbs):
    """What became of erasures."""

    async def get(self, receipt_id: str) -> Receipt:
        """Return how far an erasure is: erased, then purged."""
        return await self._ask(requests.receipts.get(receipt_id))


class Health(Verbs):
    """Whether the service lives, can serve, and how its parts are."""

    async def live(self) -> bool:
        """Return whether the process answers; needs no token, and never raises on an outage."""
        try:
            await self._ask(requests.health.live(), seconds=self._shared.deadlines.recall)
        except ServiceUnavailable:
            return False
        return True

    async def ready(self) -> bool:
        """Return whether the service can serve; needs no token, and never raises on an outage."""
        try:
            return (await self._ask(requests.health.ready(), seconds=self._shared.deadlines.recall)).ready
        except ServiceUnavailable:
            return False

    async def report(self) -> HealthReport:
        """Return one replica's view of itself; for the operator and admins."""
        return await self._ask(requests.health.report())


class Admin(Verbs):
    """Store-wide verbs, for listed admins only."""

    async def erase(
        self,
        *,
        principal: str | None = None,
        agent: str | None = None,
        session: str | None = None,
        idempotency_key: str | None = None,
    ) -> ForgetResponse:
        """Erase a principal, an agent, or an agent's session, over the whole store."""
        request = requests.admin.erase(
            principal=principal, agent=agent, session=session, idempotency_key=idempotency_key
        )
        return await self._ask(request, admin=True)

    async def list(self, *, cursor: str | None = None, limit: int | None = None) -> ListResponse:
        """Return one page of everything in the store."""
        return await self._ask(requests.admin.list(cursor=cursor, limit=limit), admin=True)

    async def diagnostics(self) -> Diagnostics:
        """Return totals of the store."""
        return await self._ask(requests.admin.diagnostics(), admin=True)

    async def replay(
        self, state: JobState | str = JobState.DEAD, *, idempotency_key: str | None = None
    ) -> ReplayResponse:
        """Put every job of a state back into the queue."""
        return await self._ask(requests.admin.replay(state, idempotency_key=idempotency_key), admin=True)

    async def export_page(self, *, cursor: str | None = None, limit: int | None = None) -> ExportPage:
        """Return one page of an export."""
        return await self._ask(requests.admin.export(cursor=cursor, limit=limit), admin=True)

    async def import_lines(
        self, lines: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> ImportResponse:
        """Import lines of an export; a line that was imported before is skipped."""
        return await self._ask(requests.admin.import_lines(lines, idempotency_key=idempotency_key), admin=True)
