"""What the client's verbs return when the wire's answer alone cannot say how it went."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from memory_service.contract.base import Wire
from memory_service.contract.problems import Problem
from memory_service.contract.sessions import SessionActionResponse
from memory_service.contract.verbs import Degraded, RecallResponse, RememberResponse


class Recalled(RecallResponse):
    """A recall's answer. `problem` is set with the outcome `refused`, and says which field and what to do."""

    problem: Problem | None = None


class Written(Wire):
    """What became of a write.

    `stored`: the service acknowledged it. `queued`: it lies in this machine's outbox and is delivered later.
    `dropped`: it could be neither stored nor queued; `degraded` says why, and it was logged and counted.
    """

    status: Literal["stored", "queued", "dropped"]
    session_id: str
    seqs: tuple[int, ...] = ()
    jobs: tuple[str, ...] = ()
    scheduled: bool = False
    generation: str | None = None
    degraded: tuple[Degraded, ...] = ()
    idempotency_key: str


class Remembered(Wire):
    """What became of a fact to save; `fact` is set when it is `stored`. The states are those of `Written`."""

    status: Literal["stored", "queued", "dropped"]
    fact: RememberResponse | None = None
    degraded: tuple[Degraded, ...] = ()
    idempotency_key: str


class Forgotten(Wire):
    """What became of an erasure. `not_erased` means that nothing is known to be erased: ask again."""

    status: Literal["erased", "purged", "not_erased"]
    receipt_id: str | None = None
    erased: dict[str, int] = Field(default_factory=dict)
    degraded: tuple[Degraded, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether the service said that it is erased."""
        return self.status != "not_erased"


class SessionActed(SessionActionResponse):
    """What became of an end, a flush or a compaction; with `degraded` it was not asked for."""

    degraded: tuple[Degraded, ...] = ()


class Delivery(Wire):
    """One round of deliveries from the outbox, in entries. `waiting` is what is left for a later round.

    `waiting_for_others` were put by other agents, and are theirs to deliver: see `MemoryClient.adopt`.
    """

    delivered: int = 0
    refused: int = 0
    erased: int = 0
    waiting: int = 0
    waiting_for_others: int = 0
