"""Cursors: opaque to callers, plain JSON inside, refused when they are not ours."""

from __future__ import annotations

import base64
import binascii
import json
from datetime import UTC, datetime, timedelta

from memory_service.errors import FieldProblem, InvalidRequest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def encode_cursor(*parts: str | int) -> str:
    """Return a cursor that carries these parts."""
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, *types: type[str] | type[int], field: str = "cursor") -> tuple[str | int, ...]:
    """Return the parts of a cursor.

    Raises:
        InvalidRequest: it was not made by this route.
    """
    try:
        parts = json.loads(base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError, binascii.Error) as error:
        raise _foreign(field) from error
    if not isinstance(parts, list) or len(parts) != len(types):
        raise _foreign(field)
    for part, kind in zip(parts, types, strict=True):
        if type(part) is not kind or not _is_storable(part):
            raise _foreign(field)
    return tuple(parts)


def _is_storable(part: str | int) -> bool:
    """Whether a database takes it: a number of 64 bits, text without NUL or half a character."""
    if isinstance(part, int):
        return -(2**62) < part < 2**62
    return "\x00" not in part and not any("\ud800" <= letter <= "\udfff" for letter in part)


def time_part(moment: datetime) -> int:
    """Return a time as a part of a cursor: microseconds since 1970, UTC."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def time_of(part: str | int) -> datetime:
    """Return the time of a part.

    Raises:
        InvalidRequest: no calendar has it, so this route did not make the cursor.
    """
    try:
        return _EPOCH + timedelta(microseconds=int(part))
    except OverflowError as error:
        raise _foreign("cursor") from error


def _foreign(field: str) -> InvalidRequest:
    return InvalidRequest(
        f"`{field}` is not from this route; send it as `next_cursor` gave it, or leave it out to start anew",
        [FieldProblem(field, "the `next_cursor` of an earlier answer", None)],
    )
