"""The two shapes of a model on the wire: HTTP bodies in snake_case, configuration files in camelCase."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticKnownError


class Wire(BaseModel):
    """A frozen HTTP body; a field it does not know is refused. No parser keeps what was said in a cache of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True, cache_strings="none")


class FileModel(BaseModel):
    """A frozen part of a configuration file: camelCase in the file, snake_case in Python.

    Unknown keys are refused, and numbers that count nothing: YAML has `.inf` and `.nan`.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )


def _storable(text: str) -> str:
    """Refuse what no database can hold as text: NUL and lone surrogates."""
    if "\x00" in text:
        raise ValueError("contains U+0000, which cannot be stored; replace it, for example by U+FFFD")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError("contains a lone surrogate, which is not text; replace it, for example by U+FFFD") from error
    return text


def _written_out(value: Any) -> Any:
    """Refuse numbers, as such or as text: whether they count seconds or milliseconds would be a guess."""
    if isinstance(value, int | float) or (isinstance(value, str) and ":" not in value):
        raise PydanticKnownError("datetime_type")
    return value


def _a_number(value: Any) -> Any:
    """Refuse true, false and text: what reads like a number is not one."""
    if isinstance(value, bool | str):
        raise PydanticKnownError("float_type")
    return value


def _a_truth(value: Any) -> Any:
    """Refuse numbers and text: `1`, `"yes"` and `"off"` are neither true nor false."""
    if not isinstance(value, bool):
        raise PydanticKnownError("bool_type")
    return value


def _aware(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("has no time zone; send RFC 3339 with an offset, for example 2026-01-31T12:00:00Z")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("is outside of the years 1 to 9999 in UTC") from error


Text = Annotated[str, AfterValidator(_storable)]
"""A string that both databases can hold as it is."""

AsNumber = BeforeValidator(_a_number)
"""Makes an `int` or a `float` take numbers of JSON and nothing else."""

AsTruth = BeforeValidator(_a_truth)
"""Makes a `bool` take true and false and nothing else."""

Time = Annotated[datetime, BeforeValidator(_written_out), AfterValidator(_aware)]
"""An aware time, in UTC inside, RFC 3339 with `Z` on the wire."""
