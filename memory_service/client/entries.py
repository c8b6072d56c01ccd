"""What waits in an outbox: one request each, whose it is, and the order that it belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from memory_service.client.subjects import subject_of
from memory_service.contract.problems import PROBLEM_PREFIX, Problem, ProblemKind

NOBODY = ""
"""Whose an entry is that an older version left: it did not say, so that no agent delivers it unasked."""

COLUMNS = (
    "id, lane, session_id, user, verb, body, generation, idempotency_key, has_own_key, queued_at, attempts, problem,"
    " subject, agent"
)
UNREADABLE = Problem(
    type=f"{PROBLEM_PREFIX}{ProblemKind.INTERNAL}",
    title="Unreadable",
    status=500,
    detail="what the outbox kept is damaged and cannot be sent; discard it",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One request that waits, or that was set aside with the Problem that refused it.

    Entries of one lane are delivered in order. `user` is the token or name that it came with, `subject` whose that is,
    `agent` who sent it. `has_own_key` says that the client made the idempotency key, so that nobody else can have used
    it.
    """

    id: int
    lane: str
    session_id: str | None
    user: str | None
    verb: Literal["write", "remember"]
    body: Mapping[str, Any]
    generation: str | None
    idempotency_key: str
    has_own_key: bool
    queued_at: float
    attempts: int
    problem: Problem | None
    subject: str
    agent: str


def lane_of(user: str | None, session_id: str | None, agent: str = NOBODY) -> str:
    """Return the order that an entry belongs to: one per agent, user and session, whatever tokens they have now."""
    return json.dumps([agent, subject_of(user), session_id])


def entry_of(row: tuple[Any, ...]) -> Entry:
    """Return the entry of a row of `COLUMNS`.

    Raises:
        ValueError: its body is damaged.
    """
    body = json.loads(row[5])
    if not isinstance(body, dict):
        raise ValueError("a body is an object")
    return _entry(row, body)


def remains_of(row: tuple[Any, ...]) -> Entry:
    """Return the entry of a row for a person to look at: without its body where that is damaged."""
    try:
        return entry_of(row)
    except ValueError:
        return _entry(row, {})


def _entry(row: tuple[Any, ...], body: dict[str, Any]) -> Entry:
    return Entry(
        id=row[0],
        lane=row[1],
        session_id=row[2],
        user=row[3],
        verb=row[4],
        body=body,
        generation=row[6],
        idempotency_key=row[7],
        has_own_key=bool(row[8]),
        queued_at=row[9],
        attempts=row[10],
        problem=None if row[11] is None else Problem.model_validate_json(row[11]),
        subject=row[12],
        agent=row[13],
    )
