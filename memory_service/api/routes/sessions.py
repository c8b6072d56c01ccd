"""Sessions and jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Query, Response

from memory_service.api.calls import AgentCall, Call, WritingCall, answer
from memory_service.api.json_route import JsonRoute
from memory_service.api.routes.memory import Cursor, Limit
from memory_service.contract.ids import Id, SessionId, Workspace
from memory_service.contract.limits import DEFAULT_PAGE, MAX_WHOLE_NUMBER
from memory_service.contract.sessions import (
    Job,
    JobsResponse,
    JobState,
    SessionAction,
    SessionActionResponse,
    SessionDetail,
    SessionsResponse,
    TurnsResponse,
)
from memory_service.operations import jobs as jobs_verbs
from memory_service.operations import sessions as sessions_verbs

router = APIRouter(route_class=JsonRoute)


@router.get("/v1/sessions", response_model=SessionsResponse, tags=["sessions"])
async def list_sessions(
    call: AgentCall, workspace: Workspace | None = None, cursor: Cursor = None, limit: Limit = DEFAULT_PAGE
) -> Response:
    """List the caller's sessions, newest write first; one that is written to while you page may come twice."""
    return answer(
        await sessions_verbs.list_sessions(call.services, call.caller, workspace=workspace, cursor=cursor, limit=limit)
    )


@router.get("/v1/sessions/{session_id}", response_model=SessionDetail, tags=["sessions"])
async def get_session(session_id: SessionId, call: AgentCall, workspace: Workspace | None = None) -> Response:
    """Show a session's window and digests."""
    return answer(await sessions_verbs.get_session(call.services, call.caller, session_id, workspace=workspace))


@router.get("/v1/sessions/{session_id}/turns", response_model=TurnsResponse, tags=["sessions"])
async def read_turns(
    session_id: SessionId,
    call: AgentCall,
    workspace: Workspace | None = None,
    after: Annotated[int, Query(ge=0, le=MAX_WHOLE_NUMBER)] = 0,
    limit: Limit = DEFAULT_PAGE,
) -> Response:
    """Read every turn kept, in order."""
    return answer(
        await sessions_verbs.read_turns(
            call.services, call.caller, session_id, workspace=workspace, after=after, limit=limit
        )
    )


@router.post("/v1/sessions/{session_id}/end", response_model=SessionActionResponse, tags=["sessions"])
async def end_session(session_id: SessionId, call: WritingCall, body: SessionAction | None = None) -> Response:
    """End a session and extract what waits."""
    return await _act("end", sessions_verbs.end_session, session_id, call, body)


@router.post("/v1/sessions/{session_id}/flush", response_model=SessionActionResponse, tags=["sessions"])
async def flush_session(session_id: SessionId, call: WritingCall, body: SessionAction | None = None) -> Response:
    """Index and extract what waits now."""
    return await _act("flush", sessions_verbs.flush_session, session_id, call, body)


@router.post("/v1/sessions/{session_id}/compact", response_model=SessionActionResponse, tags=["sessions"])
async def compact_session(session_id: SessionId, call: WritingCall, body: SessionAction | None = None) -> Response:
    """Fold the window down to its target now."""
    return await _act("compact", sessions_verbs.compact_session, session_id, call, body)


@router.get("/v1/jobs", response_model=JobsResponse, tags=["jobs"])
async def list_jobs(
    call: AgentCall,
    *,
    state: JobState | None = None,
    session_id: SessionId | None = None,
    workspace: Workspace | None = None,
    cursor: Cursor = None,
    limit: Limit = DEFAULT_PAGE,
) -> Response:
    """List the caller's background work."""
    found = await jobs_verbs.list_jobs(
        call.services,
        call.caller,
        state=state,
        session_id=session_id,
        workspace=workspace,
        cursor=cursor,
        limit=limit,
    )
    return answer(found)


@router.get("/v1/jobs/{job_id}", response_model=Job, tags=["jobs"])
async def get_job(job_id: Id, call: AgentCall) -> Response:
    """Show one job."""
    return answer(await jobs_verbs.get_job(call.services, call.caller, job_id))


@router.post("/v1/jobs/{job_id}/retry", response_model=Job, status_code=202, tags=["jobs"])
async def retry_job(job_id: Id, call: WritingCall) -> Response:
    """Put a dead job back."""
    again = await jobs_verbs.retry_job(
        call.services, call.caller, job_id, request_key=call.key(f"retry:{job_id}", None)
    )
    return answer(again, 202)


async def _act(
    action: str,
    verb: Callable[..., Awaitable[SessionActionResponse]],
    session_id: str,
    call: Call,
    body: SessionAction | None,
) -> Response:
    done = await verb(
        call.services,
        call.caller,
        session_id,
        workspace=body.workspace if body is not None else None,
        request_id=call.request_id,
        request_key=call.key(f"{action}:{session_id}", body),
    )
    return answer(done, 202 if done.scheduled else 200)
