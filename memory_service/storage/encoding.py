"""How values look in columns: microseconds, JSON text, space-joined stems, little-endian float32."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from memory_service.ports.records import Vector

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def micros(moment: datetime) -> int:
    """Return microseconds since 1970 in UTC, exactly."""
    return (moment - _EPOCH) // _MICROSECOND


def micros_or_none(moment: datetime | None) -> int | None:
    """Like `micros`; None stays None."""
    return None if moment is None else micros(moment)


def moment(value: int) -> datetime:
    """Return the time that `micros` was made from."""
    return _EPOCH + timedelta(microseconds=value)


def moment_or_none(value: int | None) -> datetime | None:
    """Like `moment`; None stays None."""
    return None if value is None else moment(value)


def dump(value: Any) -> str:
    """Return compact JSON with its characters as they are."""
    return _compact(value)


def dump_parts(parts: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Return parts as JSON; None stays None."""
    return None if parts is None else dump([dict(part) for part in parts])


def load_parts(text: str | None) -> tuple[Mapping[str, Any], ...] | None:
    """Return what `dump_parts` was given."""
    return None if text is None else tuple(json.loads(text))


def load_strings(text: str) -> tuple[str, ...]:
    """Return a stored JSON list of strings."""
    return () if text == "[]" else tuple(json.loads(text))


def join_terms(terms: Iterable[str]) -> str:
    """Return stems as they are stored: joined by single spaces, in order."""
    return " ".join(terms)


def vector_bytes(vector: Vector) -> bytes:
    """Return a vector as little-endian float32."""
    return np.ascontiguousarray(vector, dtype="<f4").tobytes()


def vector_from_bytes(data: bytes) -> Vector:
    """Return what `vector_bytes` was given."""
    return np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)
