"""Liveness, readiness, metrics and the health report."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from memory_service.api.calls import HealthCall, answer
from memory_service.bootstrap import Runtime
from memory_service.contract.base import Wire
from memory_service.contract.health import Alive, HealthReport, Part, PartHealth
from memory_service.observability.metrics import CONTENT_TYPE

router = APIRouter(tags=["health"])
metrics_router = APIRouter(tags=["health"])


class Readiness(Wire):
    """Whether requests can be served, and each part with its reason. Models never make a service unready."""

    ready: bool
    parts: dict[Part, PartHealth]


@router.get("/healthz", response_model=Alive)
async def healthz() -> Response:
    """Answer; touches no store, so that a database that is down restarts no pod."""
    return answer(Alive(status="alive"))


@router.get(
    "/readyz",
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "Not ready; the parts say why."}},
)
async def readyz(request: Request) -> Response:
    """Say whether requests can be served."""
    runtime: Runtime = request.app.state.runtime
    ready, parts = await runtime.ready()
    # Messages may name hosts and files: they are for the operator and admins.
    shown = {part: health.model_copy(update={"message": ""}) for part, health in parts.items()}
    return answer(Readiness(ready=ready, parts=shown), 200 if ready else 503)


@router.get("/v1/health/report", response_model=HealthReport)
async def health_report(call: HealthCall) -> Response:
    """Report every part, counters and versions, to the operator and admins."""
    return answer(await call.runtime.report())


@metrics_router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return Prometheus metrics."""
    runtime: Runtime = request.app.state.runtime
    await runtime.report()
    return Response(runtime.meter.render(), media_type=CONTENT_TYPE)
