"""Idempotent requests: the answer is stored under its key in the transaction that does the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel

from memory_service.domain.owners import Owner
from memory_service.errors import FieldProblem, IdempotencyMismatch
from memory_service.ports.records import StoredAnswer
from memory_service.ports.storage import Transaction

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class RequestKey:
    """A request's idempotency key: unique per agent, principal and route; `body_hash` tells bodies apart."""

    route: str
    key: str
    body_hash: str


def once(
    tx: Transaction,
    home: Owner,
    request_key: RequestKey | None,
    model: type[M],
    work: Callable[[], M],
    *,
    carries: Callable[[M], Sequence[str]] = lambda answer: (),
) -> M:
    """Return `work()`, or the answer that the same request was given before.

    `carries` names the facts whose text is in an answer: where one of them goes, the stored answer goes too.

    Raises:
        IdempotencyMismatch: the key was used for another body.
        InFlight: the same request has been running for 5 s.
    """
    if request_key is None:
        return work()
    route, key = request_key.route, request_key.key
    stored = tx.idempotency.begin(home, route=route, key=key, body_hash=request_key.body_hash, now=tx.now())
    if stored is not None:
        if stored.body_hash != request_key.body_hash:
            raise IdempotencyMismatch(
                "this Idempotency-Key was used for another body; send a new key with a new body",
                [FieldProblem("Idempotency-Key", "a key that was not used before on this route")],
            )
        return model.model_validate_json(stored.body)
    answer = work()
    kept = StoredAnswer(request_key.body_hash, 200, answer.model_dump_json(), tuple(carries(answer)))
    tx.idempotency.finish(home, route=route, key=key, answer=kept)
    return answer
