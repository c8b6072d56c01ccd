"""Which ServiceAccounts the pods of a workload still have after its spec has named another one.

A pod keeps the account that it was made with: what is taken from that account is taken from a pod that serves. So the
account, its permissions and its rows stay until no pod has it any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from memory_operator.cluster import kinds
from memory_operator.cluster.children import Child
from memory_operator.crd.base import ObjectKey
from memory_operator.errors import Refused
from memory_operator.reconcile.context import Context

_AGAIN_SECONDS: Final = 5.0
"""An old pod that is ending does so within its grace period, and no watch tells."""
_ENDED: Final = frozenset({"Succeeded", "Failed"})


async def earlier_accounts(
    context: Context, workload: Child | None, account: str, selector: dict[str, str]
) -> tuple[tuple[str, ...], float | None]:
    """Return the accounts that pods of a Deployment may have beside the wanted one, and when to look again, if at all.

    Without the permission to list pods the Deployment's word counts, which does not see those that are ending.
    """
    others = workload.accounts_beside(account) if workload is not None else ()
    if workload is None or workload.deployment is None or not others:
        return (), None
    if workload.account != account or not workload.deployment.is_rolled_out:
        return others, None
    labels = ",".join(f"{name}={value}" for name, value in sorted(selector.items()))
    try:
        listing = await context.cluster.list(kinds.POD, workload.key.namespace, labels)
    except Refused:
        return (), None
    running = [
        pod
        for pod in listing.items
        if (pod.get("status") or {}).get("phase") not in _ENDED and _is_of(workload.key.name, pod)
    ]
    used = {(pod.get("spec") or {}).get("serviceAccountName") for pod in running}
    left = tuple(item for item in others if item in used)
    return left, _AGAIN_SECONDS if left else None


def _is_of(deployment: str, pod: Mapping[str, Any]) -> bool:
    """Whether a pod is a Deployment's: anybody can give one its labels, and would keep an account so."""
    return any(
        reference.get("controller")
        and reference["kind"] == "ReplicaSet"
        and reference["name"].startswith(f"{deployment}-")
        for reference in pod["metadata"].get("ownerReferences") or ()
    )


def claimed_elsewhere(context: Context, owner: ObjectKey, account: str) -> bool:
    """Whether the spec of another store or agent names this ServiceAccount, so that it is not its maker's to delete."""
    key = ObjectKey(owner.namespace, account)
    if any(agent != owner for agent in context.cache.agents_with_account(key)):
        return True
    stores = (
        body for body in context.cache.bodies(kinds.MEMORY_STORE) if body["metadata"]["namespace"] == owner.namespace
    )
    return any(body["spec"].get("serviceAccountName") == account for body in stores)


def earlier_accounts_of(context: Context, agent: ObjectKey) -> tuple[str, ...]:
    """Return the accounts that pods of an agent may have beside its own, unless another binding claims them."""
    workload, account = context.cache.child(kinds.DEPLOYMENT, agent), context.cache.account_of(agent)
    body = context.cache.body(kinds.AGENT_MEMORY, agent)
    if workload is None or account is None or body is None:
        return ()
    if workload.observed.controller_uid != body["metadata"]["uid"]:
        return ()
    found = workload.accounts_beside(account.name)
    return tuple(item for item in found if not context.cache.agents_with_account(ObjectKey(agent.namespace, item)))
