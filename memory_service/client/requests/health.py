"""Requests about a replica's health."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from memory_service.client.wire import Request
from memory_service.contract.base import Wire
from memory_service.contract.health import Alive, HealthReport


class Ready(Wire):
    """What /readyz answers: whether the service can serve, and each part's reason when it says so."""

    ready: bool
    parts: dict[str, Any] = Field(default_factory=dict)


def live() -> Request[Alive]:
    """Whether the process answers; touches no store."""
    return Request("health.live", "GET", "/healthz", Alive, is_open=True)


def ready() -> Request[Ready]:
    """Whether the service can serve; a service that is not ready answers 503 with the reasons."""
    return Request("health.ready", "GET", "/readyz", Ready, allow_statuses=(503,), is_open=True)


def report() -> Request[HealthReport]:
    """One replica's view of itself; for the operator and admins."""
    return Request("health.report", "GET", "/v1/health/report", HealthReport)
