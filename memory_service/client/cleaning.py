"""Turns what a model or a tool said into what can be stored, so that no turn is lost for a stray character."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from memory_service.contract.limits import MAX_JSON_DEPTH, MAX_NUMBER_DIGITS

REPLACEMENT = "\ufffd"
_TOO_LARGE = 10**MAX_NUMBER_DIGITS


def storable_text(text: str) -> str:
    """Return `text` with NUL and lone surrogates replaced by U+FFFD; surrogates that form a pair are joined."""
    if "\x00" in text:
        text = text.replace("\x00", REPLACEMENT)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def storable_json(value: Any, depth: int = 0) -> Any:
    """Return `value` as JSON that can be stored.

    Texts are cleaned, numbers that JSON does not have or that have too many digits become null, what nests too deeply
    becomes its own JSON text, and what is not JSON becomes its text.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -_TOO_LARGE < value < _TOO_LARGE else None
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        if depth >= MAX_JSON_DEPTH:
            return _flattened(value)
        return {shown(key): storable_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        if depth >= MAX_JSON_DEPTH:
            return _flattened(value)
        return [storable_json(item, depth + 1) for item in value]
    return shown(value)


def shown(value: object) -> str:
    """Return the text of any value, cleaned; a value whose text cannot be had says so in its place."""
    try:
        return storable_text(str(value))
    except Exception:  # noqa: BLE001 - a type of the agent's own may raise anything, and its turn is kept
        return "(cannot be shown as text)"


def _flattened(value: Any) -> str:
    try:
        return storable_text(json.dumps(value, default=str, ensure_ascii=False))
    except Exception:  # noqa: BLE001 - as in `shown`
        return "(nested too deeply to be kept)"
