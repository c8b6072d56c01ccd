"""Which jobs a state of a session calls for. Pure: the caller enqueues them in the transaction that made the state."""

from __future__ import annotations

from datetime import datetime

from memory_service.contract.config import ServiceConfig
from memory_service.contract.sessions import JobKind
from memory_service.domain import window
from memory_service.operations.services import Services
from memory_service.ports.records import JobDraft, SessionRow


def index_job(config: ServiceConfig, session: SessionRow, now: datetime, request_id: str | None) -> JobDraft | None:
    """Return the job that makes vectors of a session's new turns, or None where episodes are switched off."""
    if not indexes_turns(config):
        return None
    return _session_job(JobKind.INDEX_TURNS, session, now, request_id, lane=f"index:{session.id}")


def indexes_turns(config: ServiceConfig) -> bool:
    """Return whether turns get vectors, to be found as episodes."""
    return config.long_term.enabled and config.long_term.episodes


def fold_job(
    services: Services, session: SessionRow, now: datetime, request_id: str | None, *, force: bool = False
) -> JobDraft | None:
    """Return the job that folds a session's older turns, or None while its window is below the trigger.

    `force`: the target mark is the trigger.
    """
    if services.chat is None or not services.config.digests_enabled:
        return None
    if not (fold_is_due(services, session) or (force and _fold_would_shrink(services, session))):
        return None
    return _session_job(JobKind.FOLD, session, now, request_id, lane=f"session:{session.id}", force=force)


def fold_is_due(services: Services, session: SessionRow) -> bool:
    """Return whether a session's window is over its trigger mark or its event cap."""
    config = services.config
    return window.fold_due(
        session.window_tokens,
        session.window_turns,
        trigger_tokens=config.compaction_trigger,
        event_cap=config.short_term.hard_event_cap,
    )


def _fold_would_shrink(services: Services, session: SessionRow) -> bool:
    config = services.config
    return window.over_target(
        session.window_tokens,
        session.window_turns,
        target_tokens=config.compaction_target,
        event_cap=config.short_term.hard_event_cap,
    )


def extract_job(
    services: Services, session: SessionRow, now: datetime, request_id: str | None, *, force: bool = False
) -> JobDraft | None:
    """Return the job that extracts facts, or None while too few turns wait (`force`: any turn is enough)."""
    if services.engine is None or not services.config.long_term.enabled:
        return None
    due = window.extraction_due(
        last_seq=session.last_seq,
        extracted_seq=session.extracted_seq,
        min_turns=services.config.extraction.min_turns,
        at_rest=force,
    )
    if not due:
        return None
    return _session_job(JobKind.EXTRACT, session, now, request_id, lane=f"session:{session.id}")


def _session_job(
    kind: JobKind,
    session: SessionRow,
    now: datetime,
    request_id: str | None,
    *,
    lane: str,
    force: bool = False,
) -> JobDraft:
    return JobDraft(
        kind=kind,
        dedupe_key=f"{kind.value}:{session.id}",
        run_at=now,
        lane=lane,
        session_id=session.id,
        owner_id=session.home_id,
        payload={"force": True} if force else {},
        request_id=request_id,
    )
