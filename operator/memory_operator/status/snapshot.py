"""What was observed: everything that a status is derived from, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from memory_operator.crd.conditions import Reason
from memory_operator.errors import Problem
from memory_service.contract.health import Counters, HealthReport


@dataclass(frozen=True)
class DeploymentState:
    """How far a Deployment is."""

    generation: int
    observed_generation: int
    wanted: int
    replicas: int
    ready: int
    updated: int
    available: int
    has_missed_deadline: bool = False
    message: str = ""
    stuck_since: datetime | None = None
    """Since when it has no pods enough, or when it last got on."""
    is_rolling: bool = False
    """Whether the Deployment controller says that pods are being replaced; a first start replaces none, and a missed
    deadline ends it."""
    is_paused: bool = False
    """Whether somebody has paused it: no pod is replaced."""
    refused: str = ""
    """What the API server says of pods that it does not let the controller make."""
    trouble: str = ""
    """What keeps a pod from running, once somebody has looked."""

    @property
    def is_troubled(self) -> bool:
        """Whether pods are missing or old."""
        return self.observed_generation > 0 and (self.ready < self.wanted or not self.is_rolled_out)

    def said(self, message: str) -> str:
        """Return a message with what is known of the pods."""
        return f"{message} {self.trouble}" if self.trouble else message

    @property
    def is_rolled_out(self) -> bool:
        """Whether all pods are of the newest template and no old one is left."""
        return (
            self.observed_generation >= self.generation
            and self.updated >= self.wanted
            and self.replicas <= self.updated
        )

    @property
    def is_unfinished(self) -> bool:
        """Whether pods of the newest template are missing or older ones are left, and no deadline is missed."""
        return self.observed_generation > 0 and not self.is_rolled_out and not self.has_missed_deadline

    @property
    def has_ended(self) -> bool:
        """Whether a roll-out is over: all pods are of the newest template and available, or its deadline is missed."""
        if self.has_missed_deadline:
            return self.observed_generation >= self.generation
        return self.is_rolled_out and self.available >= self.wanted


@dataclass(frozen=True)
class ClaimState:
    """How a claim is."""

    phase: str
    requested: str
    capacity: str
    storage_class_name: str | None
    """If we have set it: a class that the cluster has filled in is no business of ours."""
    access_modes: tuple[str, ...]
    resize_message: str = ""
    uid: str = ""
    owner_uids: tuple[str, ...] = ()
    """Of those with which the garbage collector takes it away, whatever a spec says by then."""
    is_being_deleted: bool = False


@dataclass(frozen=True)
class HealthState:
    """What a store's replicas said when last asked."""

    reports: tuple[HealthReport, ...] = ()
    failures: tuple[str, ...] = ()
    """Why an address did not give a report; never the address."""
    unreachable_since: datetime | None = None
    """Since when no address at all has given a report."""
    counters: Counters | None = None
    """Refreshed less often than the rest."""

    @property
    def considered(self) -> tuple[HealthReport, ...]:
        """The replicas that speak for the store: those that are ready, else all."""
        return tuple(report for report in self.reports if report.ready) or self.reports

    def is_in_doubt(self, now: datetime, patience: timedelta) -> bool:
        """Whether a silence is too young to count: it began within this time, on whichever side of now.

        A poll that fails while a store is looked at lies after the look's own time; a silence that is far ahead was
        noted before the clock was set back.
        """
        return self.unreachable_since is not None and abs(now - self.unreachable_since) < patience


@dataclass(frozen=True)
class ModelState:
    """How a ModelAPI is that a store names."""

    name: str
    is_found: bool
    is_ready: bool | None
    """None: it has not been probed yet."""
    message: str = ""


@dataclass(frozen=True)
class ApplyProblem:
    """A child that could not be written, in words that name no value of a spec."""

    kind: str
    name: str
    reason: Reason
    message: str


@dataclass(frozen=True)
class StoreSnapshot:
    """What a MemoryStore's status is derived from."""

    endpoint: str
    deployment: DeploymentState | None = None
    claim: ClaimState | None = None
    wanted_size: str | None = None
    health: HealthState | None = None
    """None: not asked yet by this process."""
    models: tuple[ModelState, ...] = ()
    waits_for_models: bool = False
    """Whether the first Deployment waits for them."""
    held_by: ModelState | None = None
    """The ModelAPI without which a store that has started cannot be changed."""
    waits_for_resume: bool = False
    """Whether a change of its pods waits while `spec.paused` is true."""
    waits_for_turn: bool = False
    """Whether a newer pod template waits until fewer stores are rolled out."""
    is_being_deleted: bool = False
    """Whether somebody's finalizer holds up its deletion: its bindings are kept, and nothing else is made again."""
    problems: tuple[ApplyProblem, ...] = ()
    selector: Mapping[str, str] = field(default_factory=dict)
    schema_name: str | None = None


@dataclass(frozen=True)
class StoreView:
    """What an agent's status reads of its store."""

    ready: bool | None
    reason: str
    message: str
    since: datetime


@dataclass(frozen=True)
class AgentSnapshot:
    """What an AgentMemory's status is derived from."""

    spec_problems: tuple[Problem, ...] = ()
    store: StoreView | None = None
    """None: it does not exist."""
    is_allowed: bool = True
    are_labels_known: bool = True
    """Whether the operator knows the labels of the agent's namespace, which a store may select by."""
    holder: str | None = None
    """The older binding that has this one's ServiceAccount."""
    is_acknowledged: bool | None = None
    """Whether all ready replicas use bindings that hold this row; None: no ready replica has said so yet."""
    deployment: DeploymentState | None = None
    has_pods_of_an_earlier_store: bool = False
    """Whether pods may be left whose token is for another store: they ask nobody."""
    has_started: bool = False
    is_ca_missing: bool = False
    endpoint: str | None = None
    snippet: str | None = None
    problems: tuple[ApplyProblem, ...] = ()


@dataclass(frozen=True)
class ProbeResult:
    """What a ModelAPI answered when last probed."""

    reason: Reason
    message: str

    @property
    def is_reachable(self) -> bool:
        """Whether anything answered HTTP."""
        return self.reason is Reason.REACHABLE
