"""What requests are made of: bodies, path segments, queries and keys, checked before anything is sent."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter, ValidationError

from memory_service.client import errors
from memory_service.client.cleaning import shown, storable_json
from memory_service.contract.ids import IDEMPOTENCY_KEY_PATTERN, Id
from memory_service.contract.limits import MAX_JSON_DEPTH
from memory_service.contract.problems import FieldError

ModelT = TypeVar("ModelT", bound=BaseModel)


def checked_key(key: str | None) -> str:
    """Return an idempotency key, a new one for None.

    Raises:
        InvalidRequest: it is none.
    """
    return _text("idempotency_key", key, IDEMPOTENCY_KEY_PATTERN) if key is not None else str(uuid.uuid4())


def checked(model: type[ModelT], what: str, **fields: Any) -> ModelT:
    """Return the model of the fields that are given (not None); values are cleaned first, but for bare numbers.

    A number that JSON does not have is null inside of what is kept, and refused where it says what is wanted.
    """
    given = {
        name: value if isinstance(value, BaseModel | datetime | float) else plain(value)
        for name, value in fields.items()
        if value is not None
    }
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise errors.from_validation(error, what, given) from error


def plain(value: Any, depth: int = 0) -> Any:
    """Return `value` cleaned; models and times inside stay what they are."""
    if isinstance(value, datetime | BaseModel):
        return value
    if depth > MAX_JSON_DEPTH:
        return storable_json(value, depth)
    if isinstance(value, Mapping) and any(isinstance(item, datetime | BaseModel) for item in value.values()):
        return {shown(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [plain(item, depth + 1) for item in value]
    return storable_json(value)


def sent(model: BaseModel) -> dict[str, Any]:
    """Return what is sent: only what was given, so that the service's and the binding's defaults apply."""
    return model.model_dump(mode="json", exclude_unset=True)


def segment(name: str, value: str, kind: Any = Id) -> str:
    """Return a path segment; refuses what does not match the id's published pattern."""
    try:
        return quote(TypeAdapter(kind).validate_python(value), safe="")
    except ValidationError as error:
        raise errors.from_validation(error, name, value) from error


def query(**values: Any) -> tuple[tuple[str, str], ...]:
    """Return the parameters of a URL: those that are given (not None), one with several values once for each."""
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        if value is None:
            continue
        for item in value if isinstance(value, tuple | list) else (value,):
            pairs.append((name, shown(item)))
    return tuple(pairs)


def _text(name: str, value: str, pattern: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise errors.invalid(
            f"{name} was not sent", (FieldError(field=name, expected=f"a text that matches {pattern}"),)
        )
    return value
