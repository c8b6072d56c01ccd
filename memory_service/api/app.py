"""The application: routes, error table and gate around one Runtime."""

from __future__ import annotations

from typing import Any, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from memory_service import __version__
from memory_service.api.gate import Gate
from memory_service.api.problems import STATUS, problem, problem_of, problem_of_http, problem_of_validation
from memory_service.api.routes import admin, health, memory, sessions
from memory_service.api.turn_verbs import TurnVerbs
from memory_service.bootstrap import Runtime
from memory_service.contract.problems import PROBLEM_MEDIA_TYPE, Problem, ProblemKind
from memory_service.errors import MemoryServiceError
from memory_service.identity.build import http_rules


def create_app(runtime: Runtime) -> ASGIApp:
    """Return the whole ASGI application of a runtime that somebody else enters and leaves."""
    return Gate(
        TurnVerbs(create_api(runtime), runtime),
        rules=http_rules(runtime.config),
        max_in_flight=runtime.config.server.max_in_flight,
        meter=runtime.meter,
    )


def create_api(runtime: Runtime | None) -> FastAPI:
    """Return the routes with their error table; without a runtime only the document can be asked for."""
    api = FastAPI(
        title="Memplane memory service",
        version=__version__,
        description="Memory for AI agents: a verbatim window, a rolling digest and long-term facts, by owner.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        separate_input_output_schemas=False,
        # A redirect would be answered before anybody is asked who calls, with the Host that was sent.
        redirect_slashes=False,
    )
    api.state.runtime = runtime
    for router in (memory.router, sessions.router, admin.router, health.router):
        api.include_router(router)
    if runtime is None or runtime.config.server.metrics_port is None:
        api.include_router(health.metrics_router)
    api.add_exception_handler(MemoryServiceError, _own)
    api.add_exception_handler(RequestValidationError, _validation)
    api.add_exception_handler(HTTPException, _http)
    api.add_exception_handler(Exception, _unexpected)
    api.openapi = lambda: _openapi(api)  # type: ignore[method-assign]
    return api


def create_metrics_app(runtime: Runtime) -> FastAPI:
    """Return an application that serves metrics alone, for a port of its own."""
    api = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    api.state.runtime = runtime
    api.include_router(health.metrics_router)
    return api


async def _own(_request: Request, error: Exception) -> Response:
    return problem_of(cast(MemoryServiceError, error))


async def _validation(_request: Request, error: Exception) -> Response:
    return problem_of_validation(cast(RequestValidationError, error))


async def _http(_request: Request, error: Exception) -> Response:
    return problem_of_http(cast(HTTPException, error))


async def _unexpected(_request: Request, _error: Exception) -> Response:
    """Answer before the error goes on to the gate, which logs it; without this the framework would say it its way."""
    return problem(
        ProblemKind.INTERNAL, "the service failed on this request; its log has the traceback under this request_id"
    )


def _openapi(api: FastAPI) -> dict[str, Any]:
    """Return the document, with Problem as the answer of every error status and the two tokens as security schemes."""
    if api.openapi_schema is not None:
        return api.openapi_schema
    document = get_openapi(title=api.title, version=api.version, description=api.description, routes=api.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    own = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(own.pop("$defs", {}))
    schemas["Problem"] = own
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    document["components"]["securitySchemes"] = {
        "agent": {"type": "http", "scheme": "bearer", "description": "The caller's own token."},
        "user": {
            "type": "apiKey",
            "in": "header",
            "name": "X-Memplane-User",
            "description": "The token of the user on whose behalf the agent acts.",
        },
    }
    content = {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    statuses = sorted({status for status, _title in STATUS.values()})
    for path, operations in document["paths"].items():
        public = path in ("/healthz", "/readyz", "/metrics")
        for operation in operations.values():
            operation["security"] = [{}] if public else [{"agent": []}, {"agent": [], "user": []}, {}]
            for status in statuses:
                operation["responses"].setdefault(str(status), {"description": "Problem", "content": content})
            if "422" in operation["responses"]:
                operation["responses"]["422"] = {"description": "Problem", "content": content}
    api.openapi_schema = document
    return document
