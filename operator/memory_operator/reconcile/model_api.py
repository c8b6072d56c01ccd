"""Reconcile a ModelAPI: its status follows the probe of its present generation."""

from __future__ import annotations

from memory_operator.cluster import kinds
from memory_operator.crd import model_api
from memory_operator.crd.base import ObjectKey, identity
from memory_operator.errors import InvalidSpec
from memory_operator.reconcile.context import Context
from memory_operator.reconcile.writing import write_status
from memory_operator.status.invalid import invalid_status
from memory_operator.status.model_api import model_api_status


async def reconcile_model_api(context: Context, key: ObjectKey) -> float | None:
    """Make a ModelAPI's status as it should be."""
    body = context.cache.body(kinds.MODEL_API, key)
    if body is None:
        context.probes.pop(key, None)
        return None
    who, previous, now = identity(body), body.get("status") or {}, context.now()
    try:
        model = model_api.parse(body)
    except InvalidSpec as error:
        await write_status(context, who, previous, invalid_status(who, previous, error.problems, now))
        return None
    probed = context.probes.get(key)
    result = probed[1] if probed is not None and probed[0] == who.generation else None
    if result is None and model.spec.probe is not model_api.Probe.NONE:
        context.watch_model(key)
    await write_status(context, who, previous, model_api_status(model, result, now))
    return None
