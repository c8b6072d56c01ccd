"""Says what was expected of a field and what to do, in one sentence, for what a model refuses.

One place for client, service and command line, so that the same mistake reads the same everywhere. Values are never
repeated here: a value may be somebody's text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from memory_service.contract.limits import MAX_FIELD_CHARS, MAX_NUMBER_DIGITS

T = TypeVar("T", bound=Mapping[str, Any])

_KINDS = {
    "string_type": "a string",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "tuple_type": "a list",
    "list_type": "a list",
    "none_required": "null",
    "missing": "is required; send it",
    "extra_forbidden": "is not a field here; leave it out",
    "json_invalid": "valid JSON in UTF-8, without NaN, Infinity and whole numbers of more than "
    f"{MAX_NUMBER_DIGITS} digits",
    "json_type": "valid JSON",
    "datetime_type": "a time as in RFC 3339, for example 2026-01-31T12:00:00Z",
    "datetime_parsing": "a time as in RFC 3339, for example 2026-01-31T12:00:00Z",
    "datetime_from_date_parsing": "a time as in RFC 3339, for example 2026-01-31T12:00:00Z",
    "datetime_object_invalid": "a time as in RFC 3339, for example 2026-01-31T12:00:00Z",
    "timezone_aware": "a time with an offset, for example 2026-01-31T12:00:00Z",
}


def field_name(location: Sequence[int | str], given: Any, *, is_missing: bool = False) -> str:
    """Return a flaw's location as it is spelled in what was given, empty for the whole.

    A union puts names of its branches into a location that nobody sent; they are left out.
    """
    names: list[str] = []
    here = given
    last = len(location) - 1
    for number, part in enumerate(location):
        if number < last and isinstance(here, Mapping) and here.get("type") == part:
            continue  # The branch that `type` chooses, though a field may be called the same.
        is_there = isinstance(here, Mapping) and part in here
        if is_there or (isinstance(here, list | tuple) and isinstance(part, int) and part < len(here)):
            here = here[part]
        elif not (is_missing and number == last):
            continue
        names.append(str(part))
    return ".".join(names)[:MAX_FIELD_CHARS]


def counted(flaws: Iterable[T]) -> list[T]:
    """Return the entries of pydantic's `ValidationError.errors()` without those that only follow from others.

    Where an entry of a list is wrong, the list that is left without it is said to be too short as well.
    """
    return [flaw for flaw in flaws if not _is_long_enough(flaw)]


def _is_long_enough(flaw: Mapping[str, Any]) -> bool:
    given = flaw.get("input")
    return (
        flaw.get("type") == "too_short"
        and isinstance(given, list | tuple)
        and len(given) >= flaw.get("ctx", {}).get("min_length", 0)
    )


def expectation(flaw: Mapping[str, Any]) -> str:
    """Return what was expected, for one entry of pydantic's `ValidationError.errors()` (with its context)."""
    kind = str(flaw.get("type", ""))
    context: Mapping[str, Any] = flaw.get("ctx") or {}
    if kind in _KINDS:
        return _KINDS[kind]
    match kind:
        case "string_too_short" | "too_short" if context.get("min_length") == 1:
            return "must not be empty"
        case "string_too_long" | "too_long" if kind.startswith("string") or context.get("field_type") == "Value":
            return f"at most {context.get('max_length')} characters; send less, or in parts"
        case "string_too_short" | "too_short" if kind.startswith("string") or context.get("field_type") == "Value":
            return f"at least {context.get('min_length')} characters"
        case "too_short":
            return f"at least {context.get('min_length')} entries"
        case "too_long":
            return f"at most {context.get('max_length')} entries; send the rest in another request"
        case "string_pattern_mismatch":
            return f"text that matches {context.get('pattern')}"
        case "enum" | "literal_error":
            return f"one of {context.get('expected')}"
        case "union_tag_invalid":
            return f"a `type` among {context.get('expected_tags')}"
        case "union_tag_not_found":
            return "an object with a `type`"
        case "greater_than_equal":
            return f"at least {context.get('ge')}"
        case "greater_than":
            return f"more than {context.get('gt')}"
        case "less_than_equal":
            return f"at most {context.get('le')}"
        case "less_than":
            return f"less than {context.get('lt')}"
        case _:
            return str(flaw.get("msg", "another value")).removeprefix("Value error, ")
