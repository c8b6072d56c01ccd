"""A flush: what a run said, checked as a whole before any of it is sent, and cut into writes that fit the wire."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from memory_service.client.requests import bodies
from memory_service.client.requests.turns import TurnLike, checked
from memory_service.contract.turns import NewTurn

MAX_TURNS_PER_WRITE = 200
"""Turns of one write of a flush, below the limit of the wire; more are sent in several writes, in order."""
MAX_CHARS_PER_WRITE = 1_500_000
"""Characters of one write of a flush: four bytes each stay below the largest body. One turn may be as long alone."""
_KEYS = uuid.UUID("0d0c4c0e-3c53-5d57-8f0b-6d656d706c61")


@dataclass(frozen=True, slots=True)
class Flush:
    """Turns in writes, in order. A repeat with the same `key` and turns makes the same ids and the same writes."""

    key: str
    writes: tuple[tuple[NewTurn, ...], ...]

    def key_of(self, number: int) -> str:
        """Return the idempotency key of a write; that of the first one is the flush's own."""
        return uuid.uuid5(_KEYS, f"{self.key}/{number}").hex if number else self.key


def flush(turns: Iterable[TurnLike], idempotency_key: str | None) -> Flush:
    """Return the writes of a flush.

    Raises:
        InvalidRequest: a turn is wrong, by its place in the whole, or the key is.
    """
    key = bodies.checked_key(idempotency_key)
    writes: list[tuple[NewTurn, ...]] = []
    batch: list[NewTurn] = []
    size = 0
    for turn in checked(turns, key):
        length = len(turn.model_dump_json(exclude_unset=True))
        if batch and (len(batch) >= MAX_TURNS_PER_WRITE or size + length > MAX_CHARS_PER_WRITE):
            writes.append(tuple(batch))
            batch, size = [], 0
        batch.append(turn)
        size += length
    if batch:
        writes.append(tuple(batch))
    return Flush(key, tuple(writes))
