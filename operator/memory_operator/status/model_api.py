"""A ModelAPI's status."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from memory_operator.crd import conditions
from memory_operator.crd.conditions import Condition, ConditionType, Reason
from memory_operator.crd.model_api import ModelApi, Probe
from memory_operator.status.snapshot import ProbeResult


def _ready(model: ModelApi, probe: ProbeResult | None) -> Condition:
    kind = ConditionType.READY
    if model.spec.probe is Probe.NONE:
        return Condition(kind, True, Reason.PROBE_DISABLED, "spec.probe is none: taken to be reachable.")
    if probe is None:
        return Condition(kind, None, Reason.RECONCILING, "Not probed yet.")
    return Condition(kind, probe.is_reachable, probe.reason, probe.message)


def model_api_status(model: ModelApi, probe: ProbeResult | None, now: datetime) -> dict[str, Any]:
    """Return a valid ModelAPI's status; a probe that was not made by this process leaves what was known."""
    ready = _ready(model, probe)
    is_current = model.status.get("observedGeneration") == model.id.generation
    old = conditions.by_type(model.status).get(ConditionType.READY)
    if ready.status is None and old is not None and is_current:
        return dict(model.status)
    merged = conditions.merge(model.status, [ready], model.id.generation, now)
    return {"observedGeneration": model.id.generation, "conditions": merged}
