"""Opens a store that is not being served, for export and import, through the same operations as the admin routes."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memory_service.cli.connection import Exit, unavailable
from memory_service.cli.service import fail

if TYPE_CHECKING:
    from memory_service.cli.transfer import Door
    from memory_service.contract.config import ServiceConfig, StorageConfig

OPEN_SECONDS = 30.0
"""How long a database may take to answer; an export of one that does not is not worth waiting for."""


@contextmanager
def opened(config: ServiceConfig, *, creates: bool) -> Iterator[Door]:
    """Open the store, and close it at the end. Ends the command when it cannot be opened.

    Where there is none, one is made if `creates`; otherwise that ends the command too.
    """
    from memory_service.bootstrap import Runtime
    from memory_service.cli.transfer import Door
    from memory_service.client.errors import invalid
    from memory_service.contract.config import IdentityConfig, ServerConfig
    from memory_service.contract.health import Part
    from memory_service.contract.problems import FieldError
    from memory_service.contract.sessions import ImportRequest, ImportResponse
    from memory_service.domain.callers import Caller, CallerKind
    from memory_service.errors import InvalidRequest, MemoryServiceError, Unavailable
    from memory_service.operations import admin

    # Nobody calls: whoever runs this holds the store's folder or its DSN.
    alone = config.model_copy(update={"identity": IdentityConfig(), "server": ServerConfig()})
    caller = Caller(CallerKind.ADMIN, "local")
    with asyncio.Runner() as loop:
        try:
            runtime = loop.run(_entered(Runtime, alone, creates))
        except MemoryServiceError as error:
            fail(f"refused: {error}", Exit.REFUSED, error)
        try:
            try:
                loop.run(asyncio.wait_for(runtime.wait_open(), OPEN_SECONDS + config.storage.lock_wait_seconds))
            except TimeoutError:
                unavailable(loop.run(runtime.parts())[Part.STORAGE].message)

            def fetch(cursor: str | None) -> tuple[Sequence[Mapping[str, Any]], str | None]:
                from memory_service.cli.transfer import PAGE_LINES

                page = loop.run(admin.export_page(runtime.services(), caller, cursor=cursor, limit=PAGE_LINES))
                return page.lines, page.next_cursor

            def store(lines: Sequence[Mapping[str, Any]]) -> ImportResponse:
                request = ImportRequest(lines=tuple(dict(line) for line in lines))
                try:
                    return loop.run(admin.import_lines(runtime.services(), caller, request))
                except InvalidRequest as error:
                    flaws = [FieldError(field=e.field, expected=e.expected, got=e.got) for e in error.errors]
                    raise invalid(error.detail, flaws) from error

            yield Door(fetch, store, _place(config.storage))
        except Unavailable as error:
            unavailable(error.detail)
        except MemoryServiceError as error:
            fail(f"refused: {error}", Exit.REFUSED, error)
        finally:
            loop.run(runtime.__aexit__(None, None, None))


def _place(storage: StorageConfig) -> str:
    """Return where a store lies; of a DSN, which may hold a password, a digest."""
    if storage.type.value == "local":
        return str(Path(storage.data_dir).resolve()) if storage.data_dir else "the platform's data folder"
    named = [storage.dsn, storage.dsn_file, storage.schema_name]
    return f"postgres {hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]}"


async def _entered(runtime: Any, config: ServiceConfig, creates: bool) -> Any:
    return await runtime(config, creates=creates).__aenter__()
