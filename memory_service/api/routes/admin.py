"""The admin's routes: for listed admins only; the absence of a header never opens one."""

from __future__ import annotations

from fastapi import APIRouter, Response

from memory_service.api.calls import AdminCall, answer
from memory_service.api.json_route import JsonRoute
from memory_service.api.routes.memory import Cursor, Limit
from memory_service.contract.limits import DEFAULT_PAGE
from memory_service.contract.sessions import (
    AdminEraseRequest,
    Diagnostics,
    ExportPage,
    ImportRequest,
    ImportResponse,
    ReplayRequest,
    ReplayResponse,
)
from memory_service.contract.verbs import ForgetResponse, ListResponse
from memory_service.operations import admin

router = APIRouter(route_class=JsonRoute, prefix="/v1/admin", tags=["admin"])


@router.post("/erase", response_model=ForgetResponse)
async def admin_erase(body: AdminEraseRequest, call: AdminCall) -> Response:
    """Erase a principal, an agent or a session over the whole store."""
    return answer(await admin.admin_erase(call.services, call.caller, body))


@router.get("/list", response_model=ListResponse)
async def admin_list(call: AdminCall, cursor: Cursor = None, limit: Limit = DEFAULT_PAGE) -> Response:
    """List active facts of the whole store."""
    return answer(await admin.admin_list(call.services, call.caller, cursor=cursor, limit=limit))


@router.get("/diagnostics", response_model=Diagnostics)
async def diagnostics(call: AdminCall) -> Response:
    """Count everything."""
    return answer(await admin.diagnostics(call.services, call.caller))


@router.post("/jobs/replay", response_model=ReplayResponse)
async def replay(body: ReplayRequest, call: AdminCall) -> Response:
    """Put every job of a state back into the queue."""
    return answer(await admin.replay(call.services, call.caller, body.state))


@router.get("/export", response_model=ExportPage)
async def export_page(call: AdminCall, cursor: Cursor = None, limit: Limit = DEFAULT_PAGE) -> Response:
    """Read everything, page by page, in an order that an import can follow."""
    return answer(await admin.export_page(call.services, call.caller, cursor=cursor, limit=limit))


@router.post("/import", response_model=ImportResponse)
async def import_lines(body: ImportRequest, call: AdminCall) -> Response:
    """Store lines of an export."""
    return answer(await admin.import_lines(call.services, call.caller, body))
