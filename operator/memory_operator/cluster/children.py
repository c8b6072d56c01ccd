"""What is kept of the objects that we make: the little that a reconcile reads."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from memory_operator import names
from memory_operator.cluster import kinds
from memory_operator.cluster.client import without_values
from memory_operator.cluster.keys import ReconcileKey, key_of, object_key, version
from memory_operator.cluster.kinds import Kind
from memory_operator.crd import conditions
from memory_operator.crd.base import ObjectKey
from memory_operator.desired.ownership import is_ours, live_digest, own_annotations
from memory_operator.desired.plan import Observed
from memory_operator.desired.volume import ExistingClaim
from memory_operator.status.pods import refusal
from memory_operator.status.snapshot import ClaimState, DeploymentState
from memory_service.contract.pods import bound_audience


@dataclass(frozen=True, slots=True)
class Child:
    """What is kept of a child."""

    kind: str
    key: ObjectKey
    uid: str
    version: int
    observed: Observed
    owner: ReconcileKey | None
    deployment: DeploymentState | None = None
    claim: ClaimState | None = None
    data_keys: tuple[str, ...] = ()
    """Of a ConfigMap, whoever has put them there."""
    is_immutable: bool = False
    """Whether this ConfigMap can only be deleted and made again: no desired digest equals its own."""
    models: str | None = None
    """On a store's configuration: the ModelAPIs that it was made of."""
    audience: str | None = None
    """On an agent's ConfigMap: of the store that it names. On its Deployment: of the store that its template is for."""
    started_endpoint: str | None = None
    """On an agent's Deployment."""
    template: str | None = None
    """On a store's Deployment: the digest of its pod template."""
    store_generation: str | None = None
    """On a store's Deployment: the generation of the store that it was applied for."""
    account: str | None = None
    """On a Deployment: the ServiceAccount of its pod template."""
    earlier_accounts: tuple[str, ...] = ()
    """On a Deployment: those that pods of earlier templates may still have."""
    earlier_audiences: tuple[str, ...] = ()
    """On an agent's Deployment: those that pods of earlier templates may still have."""

    def audiences_beside(self, audience: str | None) -> tuple[str, ...]:
        """Return what the tokens of a Deployment's pods may be for, but for this store."""
        if self.audience == audience and self.deployment is not None and self.deployment.is_rolled_out:
            return ()
        return tuple(sorted({*self.earlier_audiences, *((self.audience,) if self.audience else ())} - {audience}))

    def accounts_beside(self, account: str) -> tuple[str, ...]:
        """Return the ServiceAccounts that pods of a Deployment may have, but for this one."""
        return tuple(sorted({*self.earlier_accounts, *((self.account,) if self.account else ())} - {account}))


def _owner(body: Mapping[str, Any]) -> tuple[ReconcileKey | None, str | None]:
    """Return the object of ours to which a child belongs, and the UID of its controller."""
    meta = body["metadata"]
    namespace = meta.get("namespace", "")
    controller_uid = None
    for reference in meta.get("ownerReferences") or ():
        if reference.get("controller"):
            controller_uid = sys.intern(reference["uid"])
            if reference["apiVersion"] == names.API_VERSION:
                return ReconcileKey(
                    sys.intern(reference["kind"]), object_key(namespace, reference["name"])
                ), controller_uid
    labels = meta.get("labels") or {}
    for label, kind in ((names.STORE_LABEL, names.MEMORY_STORE), (names.AGENT_LABEL, names.AGENT_MEMORY)):
        if label in labels:
            return ReconcileKey(kind, object_key(namespace, labels[label])), controller_uid
    return None, controller_uid


_ROLLING = frozenset({"NewReplicaSetCreated", "FoundNewReplicaSet", "ReplicaSetUpdated"})
"""What the Deployment controller says of a roll-out that has neither ended nor missed its deadline. Where the old pod
ends first it says so late, and of a way back to an earlier template perhaps never: see `is_unfinished`."""
_REVISION: Final = "deployment.kubernetes.io/revision"
"""The Deployment controller's number of a template: "1" until there was a second one."""


def deployment_state(body: Mapping[str, Any]) -> DeploymentState:
    """Return how far a Deployment is."""
    status = body.get("status") or {}
    by_type = conditions.by_type(status)
    progressing, available = by_type.get("Progressing", {}), by_type.get("Available", {})
    since = (
        available.get("lastTransitionTime") if available.get("status") == "False" else progressing.get("lastUpdateTime")
    )
    generation, observed_generation = body["metadata"].get("generation", 0), status.get("observedGeneration", 0)
    has_missed = progressing.get("reason") == "ProgressDeadlineExceeded" and observed_generation >= generation
    failure = by_type.get("ReplicaFailure", {})
    refused = without_values(failure.get("message") or "") if failure.get("status") == "True" else ""
    is_first = (body["metadata"].get("annotations") or {}).get(_REVISION) == "1"
    is_told = progressing.get("reason") in _ROLLING and not is_first
    return DeploymentState(
        generation=generation,
        observed_generation=observed_generation,
        wanted=(body.get("spec") or {}).get("replicas", 1),
        replicas=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        available=status.get("availableReplicas", 0),
        has_missed_deadline=has_missed,
        message=progressing.get("message", "") if has_missed else "",
        stuck_since=conditions.parse_timestamp(since) if since else None,
        is_paused=bool((body.get("spec") or {}).get("paused")),
        refused=refusal(refused) if refused else "",
        is_rolling=0 < observed_generation < generation or (observed_generation > 0 and is_told),
    )


def claim_state(body: Mapping[str, Any]) -> ClaimState:
    """Return how a claim is."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    resize = next(
        (
            item.get("message") or item["type"]
            for item in status.get("conditions") or ()
            if item["type"] in ("Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError")
            and item.get("status") == "True"
        ),
        "",
    )
    return ClaimState(
        phase=status.get("phase", "Pending"),
        requested=((spec.get("resources") or {}).get("requests") or {}).get("storage", "0"),
        capacity=(status.get("capacity") or {}).get("storage", ""),
        storage_class_name=spec.get("storageClassName") if is_ours(body, "spec", "storageClassName") else None,
        access_modes=tuple(spec.get("accessModes") or ()),
        resize_message=resize,
        uid=body["metadata"]["uid"],
        owner_uids=tuple(sys.intern(item["uid"]) for item in body["metadata"].get("ownerReferences") or ()),
        is_being_deleted="deletionTimestamp" in body["metadata"],
    )


def _account(body: Mapping[str, Any]) -> str | None:
    if not is_ours(body, "spec", "template", "spec", "serviceAccountName"):
        return None
    template = (body.get("spec") or {}).get("template") or {}
    return (template.get("spec") or {}).get("serviceAccountName")


def _audience(body: Mapping[str, Any], kind: Kind, annotations: Mapping[str, str]) -> str | None:
    if kind != kinds.DEPLOYMENT:
        return annotations.get(names.AUDIENCE_ANNOTATION) if kind == kinds.CONFIG_MAP else None
    template = (body.get("spec") or {}).get("template") or {}
    found = bound_audience(template.get("spec") or {})
    return sys.intern(found) if found is not None else None


def _earlier(annotations: Mapping[str, str], kind: Kind, name: str) -> tuple[str, ...]:
    text = annotations.get(name) if kind == kinds.DEPLOYMENT else None
    return tuple(text.split(",")) if text else ()


def _data_keys(body: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sys.intern(key) for name in ("data", "binaryData") for key in body.get(name) or ())


def existing_claim(state: ClaimState) -> ExistingClaim:
    """Return what is fixed in a claim."""
    return ExistingClaim(state.requested, state.storage_class_name, state.access_modes)


def child_of(body: Mapping[str, Any], kind: Kind) -> Child:
    """Return what is kept of a child."""
    owner, controller_uid = _owner(body)
    annotations = own_annotations(body)
    is_immutable = kind == kinds.CONFIG_MAP and body.get("immutable") is True
    state = deployment_state(body) if kind == kinds.DEPLOYMENT else None
    return Child(
        kind=kind.name,
        key=key_of(body),
        uid=body["metadata"]["uid"],
        version=version(body),
        observed=Observed(
            digest="" if is_immutable else live_digest(body),
            controller_uid=controller_uid,
            is_paused=state is not None and state.is_paused,
        ),
        owner=owner,
        deployment=state,
        claim=claim_state(body) if kind == kinds.CLAIM else None,
        data_keys=_data_keys(body) if kind == kinds.CONFIG_MAP else (),
        is_immutable=is_immutable,
        models=annotations.get(names.MODELS_ANNOTATION) if kind == kinds.CONFIG_MAP else None,
        audience=_audience(body, kind, annotations),
        started_endpoint=annotations.get(names.ENDPOINT_ANNOTATION) if kind == kinds.DEPLOYMENT else None,
        template=annotations.get(names.TEMPLATE_ANNOTATION) if kind == kinds.DEPLOYMENT else None,
        store_generation=annotations.get(names.GENERATION_ANNOTATION) if kind == kinds.DEPLOYMENT else None,
        account=_account(body) if kind == kinds.DEPLOYMENT else None,
        earlier_accounts=_earlier(annotations, kind, names.EARLIER_ACCOUNTS_ANNOTATION),
        earlier_audiences=_earlier(annotations, kind, names.EARLIER_AUDIENCES_ANNOTATION),
    )
