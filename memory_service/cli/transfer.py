"""`memplane export` and `memplane import`: a store as JSON lines, resumable, with a progress bar.

Both go through the admin routes of a service, or, with storage flags, to a store that is not being served. An export
grows in `<file>.part`, which takes the file's place when it is whole: what was there before stays until then. How far
they are is kept beside the file in `<file>.state`, written after the lines that it speaks of are safe; a run that is
interrupted goes on from there, and the state is removed at the end. It names the store and, for an import, the file:
with another one it is refused. Importing a line twice changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memory_service.cli import output
from memory_service.cli.connection import Connection, connected
from memory_service.cli.service import configured, layered_settings, storage_options

if TYPE_CHECKING:
    from rich.progress import Progress

    from memory_service.client import ContractError
    from memory_service.contract.sessions import ImportResponse

PAGE_LINES = 500
MAX_BATCH_BYTES = 4 * 1024 * 1024
"""Bytes of one import request: half of what the service reads, since JSON may escape some letters."""

_EXPORT: Mapping[str, Any] = {"what": "export", "store": "", "cursor": "", "bytes": 0, "lines": 0}
_OUTCOMES = ("imported", "skipped", "tombstoned", "left_out", "erased")
_IMPORT: Mapping[str, Any] = {
    "what": "import", "store": "", "size": 0, "first_line": "", "bytes": 0, "number": 0, "lines": 0,
    **dict.fromkeys(_OUTCOMES, 0), "receipts": list[str](),
}  # fmt: skip
"""What a state holds, by type, and what a run begins with. `number` counts the file's lines, `lines` those that are not
blank."""

Fetch = Callable[[str | None], tuple[Sequence[Mapping[str, Any]], str | None]]
Store = Callable[[Sequence[Mapping[str, Any]]], "ImportResponse"]


@dataclass(frozen=True, slots=True)
class Door:
    """A store, as exports and imports use it. `place` is where it was found, without secrets."""

    fetch: Fetch
    store: Store
    place: str


@click.command(short_help="Write everything in a store to a file.")
@connected
@storage_options
@click.argument("file", metavar="FILE")
@click.option("--restart", is_flag=True, help="Begin anew, whatever an interrupted run has left.")
def export(connection: Connection, file: str, restart: bool, **storage: Any) -> None:
    """Write everything in a store to FILE, as JSON lines. An interrupted run goes on where it stopped."""
    # Where a link leads: the whole file is to replace what it names, not the link.
    path = Path(os.path.realpath(file))
    state_path, part = _beside(path, ".state"), _beside(path, ".part")
    if path.exists() and not path.is_file():
        raise click.UsageError(f"{file!r} is not a file; name one")
    state = None if restart else _read_state(state_path, _EXPORT)
    if state is None and path.exists() and not restart:
        raise click.UsageError(f"{file!r} exists; name another file, or --restart to write it anew")
    if state is not None and (not part.exists() or part.stat().st_size < state["bytes"]):
        raise click.UsageError(f"{str(part)!r} is shorter than its state says; begin anew with --restart")
    done = {**_EXPORT, **(state or {})}
    with _door(connection, storage, creates=False) as door, _progress(connection) as progress, _usable(file):
        _refuse_another(state, state_path, store=door.place)
        task = progress.add_task("export", total=None, completed=done["lines"])
        # Before anything is written: a store that does not answer leaves nothing behind.
        page, cursor = door.fetch(done["cursor"] or None)
        if state is None:
            state_path.unlink(missing_ok=True)
        with open(os.open(part, os.O_CREAT | os.O_RDWR, 0o600), "r+b") as out:
            os.fchmod(out.fileno(), 0o600)
            out.truncate(done["bytes"])
            out.seek(done["bytes"])
            while True:
                for line in page:
                    out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
                out.flush()
                os.fsync(out.fileno())
                done["lines"] += len(page)
                progress.update(task, completed=done["lines"])
                if cursor is None:
                    break
                done |= {"store": door.place, "cursor": cursor, "bytes": out.tell()}
                _write_state(state_path, done)
                page, cursor = door.fetch(cursor)
        # In this order: a state without its part would be taken for an interrupted run that lost its lines.
        state_path.unlink(missing_ok=True)
        os.replace(part, path)
    _report(connection, f"exported {done['lines']} line(s) to {file}", {"lines": done["lines"], "file": file})


@click.command("import", short_help="Read an export into a store.")
@connected
@storage_options
@click.argument("file", metavar="FILE")
@click.option("--restart", is_flag=True, help="Begin anew; lines that are there already are skipped.")
def import_(connection: Connection, file: str, restart: bool, **storage: Any) -> None:
    """Read the export FILE into a store. An interrupted run goes on where it stopped."""
    from memory_service.client import ContractError

    path = Path(os.path.realpath(file))
    state_path = _beside(path, ".state")
    if not path.is_file():
        raise click.UsageError(f"{file!r} is no file that can be read")
    state = None if restart else _read_state(state_path, _IMPORT)
    done: dict[str, Any] = {**_IMPORT, **(state or {})}
    with _door(connection, storage, creates=True) as door, _progress(connection) as progress, _usable(file):
        marks = {"store": door.place, **_marks(path)}
        _refuse_another(state, state_path, **marks)
        done |= marks
        task = progress.add_task("import", total=path.stat().st_size, completed=done["bytes"])
        with open(path, "rb") as source:
            source.seek(done["bytes"])
            for batch in _batches(source, file, done):
                try:
                    outcomes = door.store(batch.lines)
                except ContractError as error:
                    raise _of_the_file(error, batch, file, done) from error
                for name in _OUTCOMES:
                    done[name] += getattr(outcomes, name)
                if outcomes.receipt_id is not None:
                    done["receipts"] = [*done["receipts"], outcomes.receipt_id]
                done["lines"] += len(batch.lines)
                done["number"] = batch.numbers[-1]
                done["bytes"] = batch.end
                _write_state(state_path, done)
                progress.update(task, completed=batch.end)
    state_path.unlink(missing_ok=True)
    counts = {name: done[name] for name in ("lines", *_OUTCOMES, "receipts")}
    more = f", {done['left_out']} left out: the store has gone on from there" if done["left_out"] else ""
    if done["erased"]:
        more += f", {done['erased']} brought erasures that are carried out now"
    _report(
        connection,
        "\n".join(
            [
                f"imported {done['imported']} of {done['lines']} line(s); {done['skipped']} were there already, "
                f"{done['tombstoned']} had been erased{more}",
                *(f"receipt {receipt_id}" for receipt_id in done["receipts"]),
            ]
        ),
        {**counts, "file": file},
    )


@dataclass(frozen=True, slots=True)
class _Batch:
    """Lines of one request, each one's number in the file, from 1, and the file's position after them."""

    lines: Sequence[Mapping[str, Any]]
    numbers: Sequence[int]
    end: int


def _batches(source: Any, file: str, done: Mapping[str, Any]) -> Iterator[_Batch]:
    """Yield lines that fit one request. `done` tells where `source` stands, and in an error what is stored by then."""
    lines: list[dict[str, Any]] = []
    numbers: list[int] = []
    size = 0
    end = source.tell()
    for number, raw in enumerate(iter(source.readline, b""), done["number"] + 1):
        if lines and (len(lines) >= PAGE_LINES or size + len(raw) > MAX_BATCH_BYTES):
            yield _Batch(lines, numbers, end)
            lines, numbers, size = [], [], 0
        end += len(raw)
        if not raw.strip():
            continue
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise click.UsageError(f"{file}, line {number}, is not JSON: {error}; {_so_far(done)}") from error
        if not isinstance(line, dict):
            raise click.UsageError(f"{file}, line {number}, is no line of an export; {_so_far(done)}")
        lines.append(line)
        numbers.append(number)
        size += len(raw)
    if lines:
        yield _Batch(lines, numbers, end)


def _so_far(done: Mapping[str, Any]) -> str:
    """Say how much of a file that has a wrong line is stored, and how to go on."""
    if not done["lines"]:
        return "nothing of the file is stored; mend it, then import it again"
    return (
        f"its first {done['lines']} line(s) are stored, none after them; "
        "mend it, then import it with --restart: lines that are there already are skipped"
    )


def _of_the_file(error: ContractError, batch: _Batch, file: str, done: Mapping[str, Any]) -> ContractError:
    """Return a refusal of a batch's lines as one of lines of the file; what is about no line stays as it is."""
    flaws = [flaw for flaw in error.problem.errors if _LINE.match(flaw.field)]
    if not flaws:
        return error
    named = tuple(flaw.model_copy(update={"field": _LINE.sub(_renumbered(batch), flaw.field)}) for flaw in flaws)
    detail = f"{file}, {named[0].field}, is not as an export writes it; {_so_far(done)}"
    return type(error)(error.problem.model_copy(update={"detail": detail, "errors": named}), refuser=error.refuser)


_LINE = re.compile(r"^lines\.(\d+)(?:\.|$)")


def _renumbered(batch: _Batch) -> Callable[[re.Match[str]], str]:
    def renumber(found: re.Match[str]) -> str:
        return f"line {batch.numbers[int(found[1])]}" + (", " if found[0].endswith(".") else "")

    return renumber


@contextmanager
def _door(connection: Connection, storage: Mapping[str, Any], *, creates: bool) -> Iterator[Door]:
    flags = {name: value for name, value in storage.items() if name != "config_file" and value is not None}
    is_named = bool(flags) or click.get_current_context().get_parameter_source("config_file") in (
        click.core.ParameterSource.COMMANDLINE,
    )
    if is_named:
        if click.get_current_context().get_parameter_source("server") is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("give --server, or storage flags for a store that is not being served; not both")
        from memory_service.cli.direct import opened

        with (
            configured(layered_settings(storage["config_file"], flags)) as config,
            opened(config, creates=creates) as door,
        ):
            yield door
        return
    with connection.client() as client:

        def fetch(cursor: str | None) -> tuple[Sequence[Mapping[str, Any]], str | None]:
            page = client.admin.export_page(cursor=cursor, limit=PAGE_LINES)
            return page.lines, page.next_cursor

        yield Door(fetch, client.admin.import_lines, client.binding.endpoint)


def _marks(path: Path) -> dict[str, Any]:
    """Return what tells an export from another one of the same name."""
    with open(path, "rb") as source:
        return {"size": path.stat().st_size, "first_line": hashlib.sha256(source.readline()).hexdigest()}


def _refuse_another(state: Mapping[str, Any] | None, path: Path, **marks: Any) -> None:
    """End the command where the state speaks of another store or another file."""
    for name, mark in marks.items():
        if state is not None and state[name] != mark:
            what = f"the store at {state[name]}, not at {mark}" if name == "store" else "another file of this name"
            raise click.UsageError(f"{str(path)!r} is of {what}; begin anew with --restart")


@contextmanager
def _usable(file: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise click.UsageError(f"{file!r} cannot be used: {error}") from error


def _progress(connection: Connection) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    shown = output.console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=shown,
        transient=True,
        disable=connection.wants_json or not shown.is_terminal,
    )


def _report(connection: Connection, sentence: str, counts: Mapping[str, Any]) -> None:
    if connection.wants_json:
        output.as_json(counts)
    else:
        output.line(sentence)


def _read_state(path: Path, expected: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise click.UsageError(f"{str(path)!r} cannot be read: {error}; begin anew with --restart") from error
    if (
        not isinstance(state, dict)
        or state.get("what") != expected["what"]
        or any(type(state.get(name)) is not type(value) for name, value in expected.items())
    ):
        raise click.UsageError(f"{str(path)!r} is not the state of an {expected['what']}; begin anew with --restart")
    return state


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Replace the state in one step, so that an interruption leaves the old one or the new one."""
    made = _beside(path, ".part")
    with open(made, "w", encoding="utf-8") as out:
        json.dump(state, out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(made, path)
