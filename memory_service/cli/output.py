"""Prints answers: tables to people, JSON with `--json`. Remembered text cannot style or move the terminal."""

from __future__ import annotations

import codecs
import json
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console

_WIDE = 240
"""Columns of a table that goes to a pipe or a file, so that ids are not wrapped."""


def console(*, stderr: bool = False) -> Console:
    """Return a console for standard output, or standard error."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _WIDE, highlight=False, soft_wrap=False)


def plain(value: Any) -> str:
    """Return a value as one cell's text; control characters are shown as what they are called."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        value = ", ".join(plain(item) for item in value)
    if isinstance(value, float):
        value = f"{value:.3f}"
    return "".join(_visible(letter) for letter in str(value))


def moment(at: Any) -> str:
    """Return a time as a table shows it, in UTC."""
    return "" if at is None else at.strftime("%Y-%m-%d %H:%M:%S")


def _visible(letter: str) -> str:
    if letter in "\n\t":
        return letter
    # Cc: escapes and bells; Cf: marks that reorder text; Cs: lone surrogates, which no terminal takes.
    return f"\\u{ord(letter):04x}" if unicodedata.category(letter) in ("Cc", "Cf", "Cs") else letter


def as_json(value: Any) -> None:
    """Print a value as one JSON document."""
    # JSON has escapes of its own for what an old locale's stream cannot hold.
    text = json.dumps(_jsonable(value), indent=2, ensure_ascii=not _takes_every_letter(sys.stdout))
    with _printing():
        # Half a surrogate pair is no character: escaped as JSON.
        print(text.encode("utf-8", "backslashreplace").decode(), flush=True)


@contextmanager
def _printing() -> Iterator[None]:
    """Say in a sentence that an answer could not be printed; a reader that went away ends the command in silence."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise click.ClickException(
            f"what was asked for is done, but its answer cannot be printed: {error.strerror}"
        ) from error


def _takes_every_letter(stream: TextIO) -> bool:
    return codecs.lookup(stream.encoding or "ascii").name.startswith("utf")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Print rows under their columns' names."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, title=title, title_justify="left", expand=False)
    for name in columns:
        drawn.add_column(name, overflow="fold")
    count = 0
    for row in rows:
        drawn.add_row(*(Text(plain(cell)) for cell in row))
        count += 1
    if count:
        with _printing():
            console().print(drawn)
    else:
        line(f"{title}: nothing" if title else "nothing")


def fields(values: Mapping[str, Any]) -> None:
    """Print names and values, one a line; what is empty is left out."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table.grid(padding=(0, 2))
    for name, value in values.items():
        if value not in (None, "", (), [], {}):
            drawn.add_row(Text(name), Text(plain(value)))
    with _printing():
        console().print(drawn)


def line(text: str) -> None:
    """Print one line to standard output."""
    with _printing():
        print(plain(text), flush=True)


def note(text: str) -> None:
    """Print one line to standard error."""
    print(plain(text), file=sys.stderr)


def degraded(parts: Iterable[Any]) -> None:
    """Say what was missing from an answer, on standard error."""
    for part in parts:
        note(f"degraded: {part.part}: {part.reason}")


def _jsonable(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        model: BaseModel = value
        return model.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return value
