"""`memplane export` and `memplane import`: a store as JSON lines, resumable, with a progress bar.

Both go through the admin routes of a service, or, with storage flags, to a store that is not being served. How far
they are is kept beside the file in `<file>.state`, written after the lines that it speaks of are safe; a run that is
interrupted goes on from there, and the state is removed at the end. It names the store and, for an import, the file:
with another one it is refused. Importing a line twice changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
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

PAGE_LINES = 500
MAX_BATCH_BYTES = 4 * 1024 * 1024
"""Bytes of one import request: half of what the service reads, since JSON may escape some letters."""

_EXPORT: Mapping[str, Any] = {"what": "export", "store": "", "cursor": "", "bytes": 0, "lines": 0}
_IMPORT: Mapping[str, Any] = {
    "what": "import", "store": "", "size": 0, "first_line": "",
    "bytes": 0, "lines": 0, "imported": 0, "skipped": 0, "tombstoned": 0,
}  # fmt: skip
"""What a state holds, by type; an import begins with these."""

Fetch = Callable[[str | None], tuple[Sequence[Mapping[str, Any]], str | None]]
Store = Callable[[Sequence[Mapping[str, Any]]], tuple[int, int, int]]


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
    path, state_path = Path(file), Path(f"{file}.state")
    state = None if restart else _read_state(state_path, _EXPORT)
    if state is None and path.exists() and not restart:
        raise click.UsageError(f"{file!r} exists; name another file, or --restart to write it anew")
    cursor: str | None = None if state is None else state["cursor"]
    size = 0 if state is None else state["bytes"]
    lines = 0 if state is None else state["lines"]
    if state is not None and (not path.exists() or path.stat().st_size < size):
        raise click.UsageError(f"{file!r} is shorter than its state says; begin anew with --restart")
    with _door(connection, storage) as door, _progress(connection) as progress, _usable(file):
        _refuse_another(state, state_path, store=door.place)
        task = progress.add_task("export", total=None, completed=lines)
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        with open(handle, "r+b") as out:
            out.truncate(size)
            out.seek(size)
            while True:
                page, cursor = door.fetch(cursor)
                for line in page:
                    out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
                out.flush()
                os.fsync(out.fileno())
                lines += len(page)
                progress.update(task, completed=lines)
                if cursor is None:
                    break
                done = {"what": "export", "store": door.place, "cursor": cursor, "bytes": out.tell(), "lines": lines}
                _write_state(state_path, done)
    state_path.unlink(missing_ok=True)
    _report(connection, f"exported {lines} line(s) to {file}", {"lines": lines, "file": file})


@click.command("import", short_help="Read an export into a store.")
@connected
@storage_options
@click.argument("file", metavar="FILE")
@click.option("--restart", is_flag=True, help="Begin anew; lines that are there already are skipped.")
def import_(connection: Connection, file: str, restart: bool, **storage: Any) -> None:
    """Read the export FILE into a store. An interrupted run goes on where it stopped."""
    path, state_path = Path(file), Path(f"{file}.state")
    if not path.is_file():
        raise click.UsageError(f"{file!r} is no file that can be read")
    state = None if restart else _read_state(state_path, _IMPORT)
    done: dict[str, Any] = {**_IMPORT, **(state or {})}
    with _door(connection, storage) as door, _progress(connection) as progress, _usable(file):
        marks = {"store": door.place, **_marks(path)}
        _refuse_another(state, state_path, **marks)
        done |= marks
        task = progress.add_task("import", total=path.stat().st_size, completed=done["bytes"])
        with open(path, "rb") as source:
            source.seek(done["bytes"])
            for batch, end in _batches(source, file, done["lines"]):
                imported, skipped, tombstoned = door.store(batch)
                done["imported"] += imported
                done["skipped"] += skipped
                done["tombstoned"] += tombstoned
                done["lines"] += len(batch)
                done["bytes"] = end
                _write_state(state_path, done)
                progress.update(task, completed=end)
    state_path.unlink(missing_ok=True)
    counts = {name: done[name] for name in ("lines", "imported", "skipped", "tombstoned")}
    _report(
        connection,
        f"imported {done['imported']} of {done['lines']} line(s); {done['skipped']} were there already, "
        f"{done['tombstoned']} had been erased",
        {**counts, "file": file},
    )


def _batches(source: Any, file: str, number: int) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Yield lines that fit one request, and the file's position after them."""
    batch: list[dict[str, Any]] = []
    size = 0
    end = source.tell()
    for raw in iter(source.readline, b""):
        number += 1
        if batch and (len(batch) >= PAGE_LINES or size + len(raw) > MAX_BATCH_BYTES):
            yield batch, end
            batch, size = [], 0
        end += len(raw)
        if not raw.strip():
            continue
        try:
            line = json.loads(raw)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise click.UsageError(
                f"{file}, line {number}, is not JSON: {error}; nothing after it was imported"
            ) from error
        if not isinstance(line, dict):
            raise click.UsageError(f"{file}, line {number}, is no line of an export")
        batch.append(line)
        size += len(raw)
    if batch:
        yield batch, end


@contextmanager
def _door(connection: Connection, storage: Mapping[str, Any]) -> Iterator[Door]:
    flags = {name: value for name, value in storage.items() if name != "config_file" and value is not None}
    is_named = bool(flags) or click.get_current_context().get_parameter_source("config_file") in (
        click.core.ParameterSource.COMMANDLINE,
    )
    if is_named:
        if click.get_current_context().get_parameter_source("server") is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("give --server, or storage flags for a store that is not being served; not both")
        from memory_service.cli.direct import opened

        with configured(layered_settings(storage["config_file"], flags)) as config, opened(config) as door:
            yield door
        return
    with connection.client() as client:

        def fetch(cursor: str | None) -> tuple[Sequence[Mapping[str, Any]], str | None]:
            page = client.admin.export_page(cursor=cursor, limit=PAGE_LINES)
            return page.lines, page.next_cursor

        def store(lines: Sequence[Mapping[str, Any]]) -> tuple[int, int, int]:
            answer = client.admin.import_lines(lines)
            return answer.imported, answer.skipped, answer.tombstoned

        yield Door(fetch, store, client.binding.endpoint)


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
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{str(path)!r} cannot be read: {error}; begin anew with --restart") from error
    if (
        not isinstance(state, dict)
        or state.get("what") != expected["what"]
        or any(type(state.get(name)) is not type(value) for name, value in expected.items())
    ):
        raise click.UsageError(f"{str(path)!r} is not the state of an {expected['what']}; begin anew with --restart")
    return state


def _write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Replace the state in one step, so that an interruption leaves the old one or the new one."""
    made = path.with_name(f"{path.name}.part")
    with open(made, "w", encoding="utf-8") as out:
        json.dump(state, out)
        out.flush()
        os.fsync(out.fileno())
    os.replace(made, path)
