"""The agent's verbs: write, recall, remember, list, forget, facts and receipts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from memory_service.api.calls import AgentCall, AgentOrAdminCall, WritingCall, answer
from memory_service.api.json_route import JsonRoute
from memory_service.contract.ids import Id, SessionId, Workspace
from memory_service.contract.items import Item
from memory_service.contract.limits import DEFAULT_PAGE, MAX_CURSOR_CHARS, MAX_PAGE
from memory_service.contract.scopes import Scope
from memory_service.contract.verbs import (
    FactBatchRequest,
    FactBatchResponse,
    FactPatch,
    ForgetRequest,
    ForgetResponse,
    HistoryResponse,
    ListRequest,
    ListResponse,
    RecallRequest,
    RecallResponse,
    Receipt,
    RememberRequest,
    RememberResponse,
    SupersedeRequest,
    WriteRequest,
    WriteResponse,
)
from memory_service.errors import StorageUnavailable
from memory_service.operations import facts as facts_verbs
from memory_service.operations import forget as forget_verb
from memory_service.operations import list as list_verb
from memory_service.operations import recall as recall_verb
from memory_service.operations import remember as remember_verb
from memory_service.operations import write as write_verb

router = APIRouter(route_class=JsonRoute)

Cursor = Annotated[str | None, Query(max_length=MAX_CURSOR_CHARS)]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]


@router.post(
    "/v1/write",
    response_model=WriteResponse,
    responses={202: {"model": WriteResponse, "description": "Stored; background work was scheduled."}},
    tags=["memory"],
)
async def write(body: WriteRequest, call: WritingCall) -> Response:
    """Append turns to a session."""
    written = await write_verb.write(
        call.services,
        call.caller,
        body,
        request_key=call.key("write", body),
        request_id=call.request_id,
        seconds_here=call.seconds_here,
    )
    return answer(written, 202 if written.scheduled else 200)


@router.post("/v1/recall", response_model=RecallResponse, tags=["memory"])
async def recall(body: RecallRequest, call: AgentCall) -> Response:
    """Find what is remembered and assemble it; an outage makes the answer poorer, never an error."""
    try:
        services = call.services
    except StorageUnavailable as error:
        return answer(recall_verb.recall_unopened(call.runtime.meter, call.caller, body, error))
    return answer(await recall_verb.recall(services, call.caller, body))


@router.post("/v1/facts", response_model=RememberResponse, status_code=201, tags=["facts"])
async def remember(body: RememberRequest, call: WritingCall) -> Response:
    """Save a fact now."""
    saved = await remember_verb.remember(
        call.services,
        call.caller,
        body,
        request_key=call.key("remember", body),
        seconds_here=call.seconds_here,
    )
    return answer(saved, 201)


@router.post("/v1/facts/batch", response_model=FactBatchResponse, status_code=201, tags=["facts"])
async def remember_batch(body: FactBatchRequest, call: WritingCall) -> Response:
    """Save facts, all or none."""
    saved = await remember_verb.remember_batch(
        call.services,
        call.caller,
        body,
        request_key=call.key("batch", body),
        seconds_here=call.seconds_here,
    )
    return answer(saved, 201)


@router.get("/v1/facts", response_model=ListResponse, tags=["facts"])
async def list_facts(
    call: AgentCall,
    *,
    scope: Scope | None = None,
    session_id: SessionId | None = None,
    workspace: Workspace | None = None,
    cursor: Cursor = None,
    limit: Limit = DEFAULT_PAGE,
) -> Response:
    """List the facts of one scope."""
    request = ListRequest(
        scope=scope, session_id=session_id, workspace=workspace, tiers=("fact",), cursor=cursor, limit=limit
    )
    return answer(await list_verb.list_items(call.services, call.caller, request))


@router.get("/v1/facts/{fact_id}", response_model=Item, tags=["facts"])
async def get_fact(fact_id: Id, call: AgentCall) -> Response:
    """Show one fact."""
    return answer(await facts_verbs.get_fact(call.services, call.caller, fact_id))


@router.patch("/v1/facts/{fact_id}", response_model=Item, tags=["facts"])
async def patch_fact(fact_id: Id, body: FactPatch, call: WritingCall) -> Response:
    """Correct one fact."""
    return answer(
        await facts_verbs.patch_fact(
            call.services, call.caller, fact_id, body, request_key=call.key(f"patch:{fact_id}", body)
        )
    )


@router.delete("/v1/facts/{fact_id}", response_model=ForgetResponse, tags=["facts"])
async def delete_fact(fact_id: Id, call: WritingCall) -> Response:
    """Delete one fact."""
    return answer(
        await facts_verbs.delete_fact(
            call.services, call.caller, fact_id, request_key=call.key(f"delete:{fact_id}", None)
        )
    )


@router.get("/v1/facts/{fact_id}/history", response_model=HistoryResponse, tags=["facts"])
async def fact_history(fact_id: Id, call: AgentCall) -> Response:
    """Show a fact's changes."""
    return answer(await facts_verbs.fact_history(call.services, call.caller, fact_id))


@router.post("/v1/facts/{fact_id}/supersede", response_model=RememberResponse, status_code=201, tags=["facts"])
async def supersede_fact(fact_id: Id, body: SupersedeRequest, call: WritingCall) -> Response:
    """Put a new statement in a fact's place."""
    return answer(
        await facts_verbs.supersede_fact(
            call.services,
            call.caller,
            fact_id,
            body,
            request_key=call.key(f"supersede:{fact_id}", body),
            seconds_here=call.seconds_here,
        ),
        201,
    )


@router.post("/v1/list", response_model=ListResponse, tags=["memory"])
async def list_items(body: ListRequest, call: AgentCall) -> Response:
    """List everything visible at one scope."""
    return answer(await list_verb.list_items(call.services, call.caller, body))


@router.post("/v1/forget", response_model=ForgetResponse, tags=["memory"])
async def forget(body: ForgetRequest, call: WritingCall) -> Response:
    """Erase a scope that the caller owns."""
    return answer(await forget_verb.forget(call.services, call.caller, body, request_key=call.key("forget", body)))


@router.get("/v1/receipts/{receipt_id}", response_model=Receipt, tags=["memory"])
async def get_receipt(receipt_id: Id, call: AgentOrAdminCall) -> Response:
    """Show how far an erasure is."""
    return answer(await forget_verb.get_receipt(call.services, call.caller, receipt_id))
