"""Every reason that a condition or a health report gives: what it means and what to do.

`memplane why` says it, and the tables of docs/reference/conditions.md and docs/reference/reasons.md are made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_PODS: Final = "get pods --selector {label}={name}"
_LOGS: Final = "logs --selector {label}={name} --tail 50"
_CLAIM: Final = "describe persistentvolumeclaim {name}-memory-data"
_POLICIES: Final = "get networkpolicies"
_EVENTS: Final = "describe {kind} {name}"


@dataclass(frozen=True, slots=True)
class Advice:
    """What a reason means, as half a sentence, and what a person does about it; nothing to do is empty.

    `look` are arguments of kubectl that show more; `{kind}`, `{name}` and `{label}` are of the object that has the
    reason. `points_on`: the cause is in an object that this one names, and advice about that one comes first.
    """

    means: str
    do: str = ""
    look: tuple[str, ...] = ()
    points_on: bool = False


OF_OPERATOR: Final[Mapping[str, Advice]] = {
    "Ok": Advice("it is well"),
    "Available": Advice("at least one pod serves"),
    "Reconciling": Advice("objects are being made", "wait"),
    "InvalidSpec": Advice(
        "a field breaks a rule; the message names it", "correct the field; what runs is left alone meanwhile"
    ),
    "ApplyFailed": Advice(
        "the API server refuses an object; the message has its answer",
        "mend what the message names: a quota, an admission policy, a permission",
        (_EVENTS,),
    ),
    "NameConflict": Advice(
        "an object of this name belongs to somebody else; a store is not Ready for it where that is its Deployment or"
        " its Service, and `Stalled` alone else",
        "rename the store, or remove that object",
        (_EVENTS,),
    ),
    "Paused": Advice("`spec.paused` is true", "set `spec.paused` to false"),
    "Terminating": Advice(
        "it is being deleted, and somebody's finalizer holds that up", "see who has set `metadata.finalizers`"
    ),
    "WaitingForModelAPI": Advice(
        "the first start, or a change of what runs, waits for a ModelAPI", "make it, or mend it", points_on=True
    ),
    "ModelAPINotFound": Advice("a ModelAPI that the store names does not exist", "make it, or correct the name"),
    "ModelAPINotReady": Advice(
        "a ModelAPI that the store names does not answer", "look at that ModelAPI", points_on=True
    ),
    "ScaledToZero": Advice("`spec.replicas` is 0", "set `spec.replicas` to 1 or more"),
    "RolloutInProgress": Advice("pods are being replaced", "wait", (_PODS,)),
    "RolloutComplete": Advice("all pods are of the newest template"),
    "RolloutWaiting": Advice(
        "a newer pod template waits until other stores have been rolled out", "wait, or change the store's spec"
    ),
    "ProgressDeadlineExceeded": Advice(
        "a roll-out has made no progress for too long; the message says why a pod does not run",
        "mend what it names",
        (_PODS, _LOGS),
    ),
    "WorkloadUnavailable": Advice(
        "no pod is ready; the message says why",
        "mend what it names: image, quota, policy, account, node, volume",
        (_PODS, _LOGS),
    ),
    "HealthUnknown": Advice("the pods are ready, and no health report was read yet", "wait"),
    "HealthUnreachable": Advice(
        "ready pods cannot be asked by the operator",
        "look at NetworkPolicies between the operator's namespace and the store's",
        (_POLICIES,),
    ),
    "VolumePending": Advice(
        "the claim has no volume yet", "look at the claim's events and its storage class", (_CLAIM,)
    ),
    "VolumeResizing": Advice(
        "the volume grows; the message says what the provisioner does about it",
        "wait, or restart the pod if it asks for that",
        (_CLAIM,),
    ),
    "VolumeExpansionRefused": Advice(
        "the storage class does not allow volumes to grow",
        "set `allowVolumeExpansion` on the class, or move to a new store",
        (_CLAIM,),
    ),
    "VolumeLargerThanSpec": Advice(
        "an adopted claim is larger than asked for; a claim cannot shrink", "nothing, or set the size to the claim's"
    ),
    "VolumeBeingDeleted": Advice(
        "the store's claim was deleted: the memory goes with the next restart of the pod",
        "export the memory now, while the store serves",
        (_CLAIM,),
    ),
    "VolumeLost": Advice(
        "the volume of the store's claim does not exist any more",
        "restore it, or delete the claim and begin anew",
        (_CLAIM,),
    ),
    "VolumeReplaced": Advice(
        "the claim is another one than the store had: what it remembers is what this volume holds",
        "restore a backup if that was not meant",
    ),
    "NotReported": Advice("no replica has said yet", "wait"),
    "NotConfigured": Advice(
        "the store names no model: turns are searchable, facts are only those that agents save",
        "nothing, if that is meant",
    ),
    "LocalMemory": Advice("`type: local`: the agent keeps its memory itself"),
    "Accepted": Advice("the binding is valid"),
    "Bound": Advice("the store knows this binding"),
    "BindingPending": Advice("the store does not know this binding yet", "wait some seconds"),
    "WaitingForStore": Advice(
        "the first start waits for the store",
        "make the store, mend it, or set `waitForDependencies: false`",
        points_on=True,
    ),
    "StoreNotFound": Advice("the store does not exist", "make it, or correct the name"),
    "StoreNotReady": Advice("the store is not ready; its own reason follows", "look at the store", points_on=True),
    "StoreUnreachable": Advice(
        "the operator cannot reach the store's pods; agents may", "as for `HealthUnreachable`", points_on=True
    ),
    "StoreNotAllowed": Advice(
        "the store does not allow this namespace", "name the namespace in `access.allowedNamespaces` of the store"
    ),
    "ServiceAccountTaken": Advice("an older binding has this ServiceAccount", "give the agent an account of its own"),
    "CANotFound": Advice(
        "the ConfigMap with the store's certificate authority does not exist", "make that ConfigMap, beside the store"
    ),
    "MemoryHealthy": Advice("the store is ready"),
    "Reachable": Advice("the endpoint answers"),
    "Unreachable": Advice("the endpoint does not answer", "look at the endpoint that `spec.baseURL` names"),
    "ProbeDisabled": Advice("`spec.probe` is `none`: the endpoint is taken to be there"),
    "AddressRefused": Advice("a link-local address, which the operator does not ask", "give another address"),
}
"""By the operator's own reasons."""

OF_SERVICE: Final[Mapping[str, Advice]] = {
    "Ok": Advice("it works"),
    "Starting": Advice("it starts, or has not been looked at yet", "wait", (_PODS,)),
    "NotConfigured": Advice(
        "it is not configured, or not so that it can work",
        "nothing, if that is meant: without a chat model turns are kept as episodes",
    ),
    "SecretMissing": Advice(
        "a file that should hold a secret is missing or empty", "put it there; it is found without a restart"
    ),
    "StorageUnreachable": Advice("the database or the data folder does not answer", "look at the database", (_LOGS,)),
    "StorageFull": Advice("no space is left", "make space", (_LOGS,)),
    "WaitingForLock": Advice("another process serves the data folder", "stop that one", (_PODS,)),
    "Migrating": Advice("the schema is being brought up to date", "wait", (_LOGS,)),
    "SchemaTooNew": Advice("a newer version made the schema", "run that version"),
    "SchemaMismatch": Advice(
        "the schema is another store's, or was changed", "check `storage.schema` and `storage.storeUid`"
    ),
    "EmbeddingMismatch": Advice(
        "the data were made with another embedding model or size",
        "go back to that model, or export, then import into a new store",
    ),
    "EmbeddingUnavailable": Advice(
        "the embedding model does not answer", "look at its endpoint; recall goes by words meanwhile", (_LOGS,)
    ),
    "ModelUnavailable": Advice(
        "the chat model does not answer", "look at its endpoint; turns wait to be extracted", (_LOGS,)
    ),
    "ModelUnauthorized": Advice("a model endpoint refuses the key", "put a good key into its file"),
    "JobsDead": Advice(
        "jobs failed too often",
        "mend what the store's log says under `job failed`, then `memplane admin replay`",
    ),
    "JobsLate": Advice("the oldest due job waits for more than 5 minutes", "add workers, or look at the model"),
    "BindingsStale": Advice(
        "the bindings or the tokens file cannot be read; the last good ones are used", "mend them", (_LOGS,)
    ),
    "RevocationUnavailable": Advice(
        "TokenReview cannot be asked, so a deleted pod's token holds until it expires", "permit TokenReview"
    ),
}
"""By the reasons of a service's health report, which conditions of its store repeat."""

ADVICE: Final[Mapping[str, Advice]] = {**OF_SERVICE, **OF_OPERATOR}
"""By the reason of a condition."""
