"""Keep the one ClusterRoleBinding that lets the stores' ServiceAccounts review tokens."""

from __future__ import annotations

from memory_operator import names
from memory_operator.cluster import kinds
from memory_operator.cluster.keys import TOKEN_REVIEW
from memory_operator.crd.base import ObjectKey
from memory_operator.desired.access import token_review_binding
from memory_operator.desired.ownership import desired_digest
from memory_operator.errors import Refused
from memory_operator.reconcile.context import Context
from memory_operator.reconcile.writing import apply, note_refused


async def reconcile_token_review(context: Context) -> float | None:
    """Make the binding list the accounts of all stores; those of stores and of pods that are gone leave it."""
    accounts = []
    for body in context.cache.bodies(kinds.MEMORY_STORE):
        meta = body["metadata"]
        account = body["spec"].get("serviceAccountName") or names.memory(meta["name"])
        accounts.append(ObjectKey(meta["namespace"], account))
        workload = context.cache.child(kinds.DEPLOYMENT, ObjectKey(meta["namespace"], names.memory(meta["name"])))
        if workload is not None and workload.observed.controller_uid == meta["uid"]:
            accounts += [ObjectKey(meta["namespace"], name) for name in workload.accounts_beside(account)]
    manifest = token_review_binding(accounts, context.settings)
    name = context.settings.token_review_binding
    there = context.cache.child(kinds.CLUSTER_ROLE_BINDING, ObjectKey("", name))
    digest = desired_digest(manifest)
    if there is not None and digest in (there.observed.digest, there.observed.accepted_digest):
        return None
    try:
        await apply(context, manifest, digest)
    except Refused as error:
        note_refused(context, TOKEN_REVIEW, (kinds.CLUSTER_ROLE_BINDING.name, name), error)
        return context.settings.refused_seconds
    return None
