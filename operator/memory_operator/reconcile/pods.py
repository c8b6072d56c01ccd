"""A look at the pods of a workload that does not get on; pods are not watched, for most of them are well."""

from __future__ import annotations

import logging
from datetime import datetime

from memory_operator.cluster import kinds
from memory_operator.cluster.keys import ReconcileKey
from memory_operator.errors import Refused
from memory_operator.pacing import is_young
from memory_operator.reconcile.context import Context
from memory_operator.status.pods import trouble
from memory_operator.status.snapshot import DeploymentState

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 10.0
"""A pod that starts takes a moment; looking earlier would list the pods of every healthy start."""
_AGAIN_SECONDS = 30.0


async def pod_trouble(
    context: Context, owner: ReconcileKey, state: DeploymentState | None, selector: dict[str, str], now: datetime
) -> tuple[str, float | None]:
    """Return what keeps a workload's pods from running, and after how many seconds to look again, if at all.

    Without the permission to list pods nothing is known, and nothing breaks.
    """
    if state is None or not state.is_troubled:
        context.pods.pop(owner, None)
        return "", None
    waited = (now - state.stuck_since).total_seconds() if state.stuck_since else _PATIENCE_SECONDS
    if is_young(waited, _PATIENCE_SECONDS):
        return "", _PATIENCE_SECONDS - waited
    if state.is_paused:
        return "The Deployment is paused.", None
    if state.refused:
        return state.refused, None
    known = context.pods.get(owner)
    age = (now - known[0]).total_seconds() if known else _AGAIN_SECONDS
    if known is not None and is_young(age, _AGAIN_SECONDS):
        return known[1], _AGAIN_SECONDS - age
    labels = ",".join(f"{name}={value}" for name, value in sorted(selector.items()))
    try:
        listing = await context.cluster.list(kinds.POD, owner.object.namespace, labels)
    except Refused as error:
        logger.debug("pods not listed", extra={"object": str(owner.object), "error": type(error).__name__})
        return "", None
    context.pods[owner] = (now, trouble(listing.items))
    return context.pods[owner][1], _AGAIN_SECONDS
