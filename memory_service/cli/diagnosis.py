"""Why an object of ours is as it is, in sentences: decided from what `kubectl get -o json` says, and nothing else.

An agent leads to its store, a store to the ModelAPIs that it names; the last one with something wrong is the cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from memory_service.cli.reasons import ADVICE, Advice

JsonObject = Mapping[str, Any]
"""An object whose shape has been checked: what is not there is absent, never null."""

NOT_LOOKED_AT: Final = "NotLookedAt"
"""What we say of an object that no operator has written a status for, or none since its last change."""
_NOT_LOOKED_AT: Final = Advice(
    "no operator has told of this object since it was made or changed",
    "see that the operator runs, and that it serves this namespace (`watchNamespaces`)",
    ("get pods --all-namespaces --selector app.kubernetes.io/name=memplane,app.kubernetes.io/component=operator",),
)
_UNKNOWN_REASON: Final = Advice("this version of the command does not know the reason", "read the message")
_RUNBOOKS: Final = "docs/how-to/runbooks/"
_CONDITIONS_PAGE: Final = "docs/reference/conditions.md"
_PAGES: Final[Mapping[str, str]] = {
    "JobsDead": f"{_RUNBOOKS}memplane-jobs-dead.md",
    "JobsLate": f"{_RUNBOOKS}memplane-jobs-late.md",
    "RevocationUnavailable": f"{_RUNBOOKS}memplane-revocation-unavailable.md",
    NOT_LOOKED_AT: f"{_RUNBOOKS}memplane-operator-no-leader.md",
}


class Kind(StrEnum):
    """The kinds that can be asked about."""

    AGENT_MEMORY = "AgentMemory"
    MEMORY_STORE = "MemoryStore"
    MODEL_API = "ModelAPI"


NAMES: Final[Mapping[Kind, tuple[str, ...]]] = {
    Kind.AGENT_MEMORY: ("agentmemory", "agentmemories", "agentmem"),
    Kind.MEMORY_STORE: ("memorystore", "memorystores", "memstore"),
    Kind.MODEL_API: ("modelapi", "modelapis", "mapi"),
}
"""What kubectl calls them: singular, plural, short."""
_POD_LABELS: Final[Mapping[Kind, str]] = {
    Kind.AGENT_MEMORY: "memplane.dev/agent",
    Kind.MEMORY_STORE: "memplane.dev/store",
}
_PAGE_OF: Final[Mapping[Kind, str]] = {
    Kind.AGENT_MEMORY: f"{_RUNBOOKS}memplane-agents-degraded.md",
    Kind.MEMORY_STORE: f"{_RUNBOOKS}memplane-store-not-ready.md",
    Kind.MODEL_API: _CONDITIONS_PAGE,
}
_ORDER: Final = (
    "Accepted",
    "Ready",
    "MemoryDegraded",
    "StoreResolved",
    "StorageReady",
    "ModelsReady",
    "ExtractionHealthy",
    "EmbeddingCurrent",
    "RevocationAvailable",
    "Progressing",
    "Stalled",
    "Reconciling",
    "Paused",
)
"""Causes before what follows from them: of two conditions with one reason the first is told."""
_WELL_WHEN_FALSE: Final = frozenset({"MemoryDegraded", "Stalled", "Reconciling", "Paused"})
_PASSING: Final = frozenset({"Reconciling", "Paused"})
_WORTH_A_WORD: Final = frozenset(
    {"NotConfigured", "VolumeResizing", "VolumeLargerThanSpec", "ProbeDisabled", "RolloutWaiting"}
)

_FORGETFUL: Final = (
    "The agent runs on and answers from its own window: it is forgetful, not unavailable. It recalls nothing from its "
    "store, and what it hears waits in its outbox and is sent when the store is back. Nobody has to restart it; a "
    "restart would lose the window."
)
_STRICT: Final = " Its failure mode is strict: save_memory and forget fail until then."
_UNSEEN: Final = frozenset({"HealthUnreachable", "HealthUnknown", "StoreUnreachable"})
"""What the operator says of a store that it cannot ask: its agents take another way there."""
_MAY_BE_SERVED: Final = (
    "The operator does not know how the store is; that alone stops no agent. One that reaches the store is served as "
    "ever; one that does not answers from its own window, forgetful, not unavailable, and what it hears waits in its "
    "outbox until it does. Nobody has to restart an agent; a restart would lose the window."
)
_STRICT_IF_CUT_OFF: Final = (
    " Its failure mode is strict: while it does not reach the store, save_memory and forget fail."
)
_FIRST_START: Final = (
    "The agent has not been started: its first start waits for the store. After that no store that comes or goes ever "
    "stops it."
)
_UNBOUND: Final = (
    "The store does not know this agent: if its pods run, they answer from their own window and remember nothing else."
)
_NO_PODS: Final = "No pod of the agent is ready, so it does not answer; that is not for want of its memory."
_STORE_AWAY: Final = (
    "Agents that are bound to it run on and answer from their own window: forgetful, not unavailable. They recall "
    "nothing, and what they hear waits in their outboxes until the store is back."
)
_EFFECTS: Final[Mapping[tuple[Kind, str], str]] = {
    (Kind.MEMORY_STORE, "Ready"): _STORE_AWAY,
    (Kind.MEMORY_STORE, "StorageReady"): "Agents are served as long as the store is Ready.",
    (Kind.MEMORY_STORE, "ModelsReady"): (
        "Agents are served. What they say is kept and can be found; facts are made of it once the models answer."
    ),
    (Kind.MEMORY_STORE, "ExtractionHealthy"): (
        "Agents are served. What they say is kept and can be found by its words; facts, digests and vectors come late."
    ),
    (Kind.MEMORY_STORE, "EmbeddingCurrent"): "Agents are served. Recalls go by words alone where vectors are missing.",
    (Kind.MEMORY_STORE, "RevocationAvailable"): (
        "Agents are served. The token of a pod that is gone is taken until it expires, an hour at most."
    ),
    (Kind.MODEL_API, "Ready"): (
        "Stores that have started serve on: turns are kept and wait to be extracted, recalls go by words. A store that "
        "has not started waits for it."
    ),
}


@dataclass(frozen=True, slots=True)
class Ref:
    """One object."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Known:
    """What was read; an object that is not there, or could not be read, is in `unread`, with why."""

    objects: Mapping[Ref, JsonObject]
    unread: Mapping[Ref, str]
    pods: Mapping[Ref, Sequence[JsonObject]]


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition that is worth a word; `is_wrong` when a person may want to act."""

    object: Ref
    condition: str
    status: str
    reason: str
    message: str
    means: str
    since: str
    is_wrong: bool


@dataclass(frozen=True, slots=True)
class Step:
    """What to do about one reason, commands that show more, and the page that tells the rest."""

    object: Ref
    reason: str
    do: str
    commands: tuple[str, ...]
    page: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole answer, the object that was asked about first."""

    object: Ref
    is_well: bool
    headline: str
    effect: str
    findings: tuple[Finding, ...]
    steps: tuple[Step, ...]
    remarks: tuple[str, ...]


def named_by(ref: Ref, body: JsonObject) -> tuple[Ref, ...]:
    """Return the objects that this one leans on: an agent's store, a store's ModelAPIs."""
    spec = body.get("spec", {})
    if ref.kind is Kind.AGENT_MEMORY:
        name = spec.get("memoryStore")
        return (Ref(Kind.MEMORY_STORE, spec.get("memoryStoreNamespace", ref.namespace), name),) if name else ()
    if ref.kind is Kind.MEMORY_STORE:
        models = spec.get("models", {})
        found = {models.get(use, {}).get("modelAPI") for use in ("summarization", "embedding")}
        return tuple(Ref(Kind.MODEL_API, ref.namespace, name) for name in sorted(filter(None, found)))
    return ()


def pod_selector(ref: Ref) -> str | None:
    """Return the label selector of the pods that the operator runs for an object; None for one without pods."""
    label = _POD_LABELS.get(ref.kind)
    return f"{label}={ref.name}" if label else None


def findings(ref: Ref, body: JsonObject) -> tuple[Finding, ...]:
    """Return what is worth a word in an object's own status, what is wrong first, each reason once."""
    told: dict[str, Finding] = {}
    for one in sorted(_all_findings(ref, body), key=lambda one: not one.is_wrong):
        told.setdefault(one.reason, one)
    return tuple(told.values())


def _all_findings(ref: Ref, body: JsonObject) -> Iterator[Finding]:
    meta, status = body["metadata"], body.get("status", {})
    found = status.get("conditions", [])
    if not found or status.get("observedGeneration", 0) < meta.get("generation", 0):
        seen = f"generation {status.get('observedGeneration', 0)}, the spec of {meta.get('generation')}"
        message = f"The status is of {seen}." if found else "It has no status."
        yield Finding(ref, "", "", NOT_LOOKED_AT, message, _NOT_LOOKED_AT.means, "", True)
    rank = {name: number for number, name in enumerate(_ORDER)}
    for item in sorted(found, key=lambda one: rank.get(one["type"], len(rank))):
        one = _finding(ref, item)
        if one is not None:
            yield one


def _finding(ref: Ref, item: JsonObject) -> Finding | None:
    kind, status, reason = item["type"], item["status"], item["reason"]
    if kind == "Progressing":
        is_wrong = status == "False" and reason == "ProgressDeadlineExceeded"
        is_told = is_wrong or status == "True" or reason in _WORTH_A_WORD
    elif kind in _WELL_WHEN_FALSE:
        is_wrong = status == "True" and kind not in _PASSING
        is_told = status != "False"
    else:
        is_wrong = status == "False" or (status != "True" and kind == "Ready")
        is_told = status != "True" or reason in _WORTH_A_WORD
    if not is_told:
        return None
    means = ADVICE.get(reason, _UNKNOWN_REASON).means
    message, since = item.get("message", ""), item.get("lastTransitionTime", "")
    return Finding(ref, kind, status, reason, message, means, since, is_wrong)


def explain(target: Ref, known: Known, kubectl: str = "kubectl") -> Explanation:
    """Return why the object is as it is; `kubectl` is how commands that are shown begin."""
    body = known.objects[target]
    own = [one for one in _all_findings(target, body) if one.is_wrong]
    chain = tuple(dict.fromkeys(_chain(target, known)))
    told = [one for ref in (target, *chain) for one in findings(ref, known.objects[ref])]
    remarks = [f"{ref} was not read: {why}." for ref, why in known.unread.items()]
    wrong = {one.object for one in told if one.is_wrong}
    steps = [step for one in told if one.is_wrong and (step := _step(one, known, wrong, kubectl)) is not None]
    remarks += [sentence for ref in (target, *chain) if ref in wrong for sentence in _pods(known.pods.get(ref, ()))]
    is_deleted = "deletionTimestamp" in body["metadata"]
    return Explanation(
        object=target,
        is_well=not wrong and not is_deleted,
        headline=_headline(target, own, wrong, is_deleted=is_deleted),
        effect=_effect(target, body, own, told),
        findings=tuple(told),
        steps=tuple({(one.object, one.do): one for one in steps}.values()),
        remarks=tuple(remarks),
    )


def _chain(target: Ref, known: Known) -> Iterator[Ref]:
    """Yield what an object leans on, directly or not, as far as it was read and exists."""
    for ref in named_by(target, known.objects[target]):
        if ref in known.objects:
            yield ref
            yield from _chain(ref, known)


def _step(one: Finding, known: Known, wrong: set[Ref], kubectl: str) -> Step | None:
    advice = _NOT_LOOKED_AT if one.reason == NOT_LOOKED_AT else ADVICE.get(one.reason, _UNKNOWN_REASON)
    is_explained = advice.points_on and wrong & set(named_by(one.object, known.objects[one.object]))
    if is_explained or not advice.do:
        return None
    ref = one.object
    values = {"kind": ref.kind.lower(), "name": ref.name, "label": _POD_LABELS.get(ref.kind, "")}
    commands = tuple(
        f"{kubectl} {line.format_map(values)}"
        if "--all-namespaces" in line
        else f"{kubectl} --namespace {ref.namespace} {line.format_map(values)}"
        for line in advice.look
    )
    return Step(ref, one.reason, advice.do, commands, _PAGES.get(one.reason, _PAGE_OF[ref.kind]))


def _headline(target: Ref, own: Sequence[Finding], wrong: set[Ref], *, is_deleted: bool) -> str:
    conditions = {one.condition: one for one in own}
    if is_deleted:
        return f"{target} is being deleted."
    if any(one.reason == NOT_LOOKED_AT for one in own):
        return f"{target} has not been looked at by an operator."
    if "Ready" in conditions:
        return f"{target} is not Ready" + (" yet." if conditions["Ready"].status == "Unknown" else ".")
    if "MemoryDegraded" in conditions:
        return f"{target} is degraded."
    if conditions:
        return f"{target} is Ready, and not all of it is well."
    if wrong:
        return f"{target} is well itself; what it leans on is not."
    return f"{target} is well."


def _effect(target: Ref, body: JsonObject, own: Sequence[Finding], told: Sequence[Finding]) -> str:
    conditions = {one.condition: one for one in own}
    if target.kind is Kind.AGENT_MEMORY:
        spec = body.get("spec", {})
        is_run_by_us = bool(spec.get("agent", {}).get("template"))
        if ready := conditions.get("Ready"):
            if ready.reason == "WaitingForStore" and is_run_by_us and not body["status"].get("started"):
                return _FIRST_START
            # A binding is pending once the store is ready, so the start no longer waits for anything.
            if ready.reason in (
                "WaitingForStore",
                "BindingPending",
                "InvalidSpec",
                "StoreNotAllowed",
                "ServiceAccountTaken",
            ):
                return _UNBOUND
            return _NO_PODS if is_run_by_us else _UNBOUND
        if {"Accepted", "MemoryDegraded", "StoreResolved"} & conditions.keys():
            is_strict = spec.get("failureMode") == "strict"
            if _is_unseen(target, body, conditions, told):
                return _MAY_BE_SERVED + (_STRICT_IF_CUT_OFF if is_strict else "")
            return _FORGETFUL + (_STRICT if is_strict else "")
    effects = (_effect_of(one) for one in (*own, *told) if one.is_wrong)
    return next((effect for effect in effects if effect is not None), "")


def _effect_of(one: Finding) -> str | None:
    if (one.object.kind, one.condition) == (Kind.MEMORY_STORE, "Ready") and one.reason in _UNSEEN:
        return _MAY_BE_SERVED
    return _EFFECTS.get((one.object.kind, one.condition))


def _is_unseen(target: Ref, body: JsonObject, conditions: Mapping[str, Finding], told: Sequence[Finding]) -> bool:
    """Whether an agent's memory is degraded only in that the operator cannot ask its store."""
    degraded = conditions.get("MemoryDegraded")
    if degraded is None or degraded.reason not in ("StoreNotReady", "StoreUnreachable"):
        return False
    stores = named_by(target, body)
    # What the store says of itself is newer, and says which kind of not ready it is.
    said = [one.reason for one in told if one.object in stores and one.condition == "Ready" and one.is_wrong]
    return (said[0] if said else degraded.reason) in _UNSEEN


def _pods(pods: Sequence[JsonObject]) -> Iterator[str]:
    """Yield one sentence for each pod that is not ready."""
    for pod in pods:
        status = pod.get("status", {})
        conditions = {item["type"]: item for item in status.get("conditions", [])}
        if conditions.get("Ready", {}).get("status") == "True":
            continue
        said = [status.get("phase", "Unknown")]
        unscheduled = conditions.get("PodScheduled", {})
        if unscheduled.get("status") == "False":
            said.append(f"{unscheduled.get('reason')}: {unscheduled.get('message')}")
        for container in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
            waiting = container.get("state", {}).get("waiting")
            if waiting:
                restarts = container.get("restartCount", 0)
                again = f", started {restarts + 1} times" if restarts else ""
                said.append(f"container {container['name']!r} waits: {waiting.get('reason')}{again}")
        yield f"Pod {pod['metadata']['namespace']}/{pod['metadata']['name']} is not ready: {'; '.join(said)}."
