"""The turns of a write, each with an id by which a repeat finds it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from memory_service.client.requests import bodies
from memory_service.contract.base import Wire
from memory_service.contract.turns import NewTurn

_IDS = uuid.UUID("5b0a3a52-8d0f-5c0e-9a3e-6d656d706c61")

TurnLike = NewTurn | Mapping[str, Any]
"""A turn to write: a NewTurn, or its fields as a mapping."""


class _Turns(Wire):
    """Turns of one flush, however many."""

    turns: tuple[NewTurn, ...]


def checked(turns: Iterable[TurnLike], key: str) -> tuple[NewTurn, ...]:
    """Return turns with their ids; those without one get theirs from the key.

    Raises:
        InvalidRequest: one is wrong.
    """
    return bodies.checked(_Turns, "the flush", turns=identified(turns, key)).turns


def identified(turns: Iterable[TurnLike], key: str) -> list[Any]:
    """Return turns with an id each, made of the key where they have none; what is no turn stays for the check."""
    given: list[Any] = []
    for index, turn in enumerate(turns):
        fields = bodies.sent(turn) if isinstance(turn, NewTurn) else dict(turn) if isinstance(turn, Mapping) else turn
        if isinstance(fields, dict) and fields.get("id") is None:
            fields["id"] = turn_id(key, index)
        given.append(fields)
    return given


def turn_id(idempotency_key: str, index: int) -> str:
    """Return the id of a turn that has none: the same for a repeat with the same key, so that it is stored once."""
    return uuid.uuid5(_IDS, f"{idempotency_key}/{index}").hex
