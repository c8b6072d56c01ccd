"""What every command that talks to a service shares: how it finds it, who it is, and what its exit code says."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from memory_service.cli import output

if TYPE_CHECKING:
    from memory_service.client import SyncMemoryClient
    from memory_service.contract.problems import Problem


class Exit(IntEnum):
    """Exit codes."""

    DONE = 0
    REFUSED = 1
    USAGE = 2
    UNAVAILABLE = 3


@dataclass(frozen=True)
class Connection:
    """Where the service is and who calls."""

    server: str | None
    token_file: str | None
    user_token_file: str | None
    agent: str | None
    user: str | None
    timeout_seconds: float | None
    wants_json: bool

    @contextmanager
    def client(self) -> Iterator[SyncMemoryClient]:
        """Open a client that says what happened: strict, and nothing is left behind on this machine's disk."""
        from memory_service.client import Deadlines, SyncMemoryClient

        seconds = self.timeout_seconds
        deadlines = Deadlines(*[seconds] * 4) if seconds is not None else Deadlines(recall=30, write=30, other=30)
        if self.token_file is not None:
            _secret("--token-file", self.token_file)
        with SyncMemoryClient(
            self.server,
            token_file=self.token_file,
            agent=self.agent,
            user=self._user(),
            failure_mode="strict",
            outbox=None,
            deadlines=deadlines,
        ) as client:
            yield client

    def _user(self) -> str | None:
        if self.user_token_file is None:
            return self.user
        if self.user is not None:
            raise click.UsageError("give --user or --user-token-file, not both")
        return _secret("--user-token-file", self.user_token_file)


def _secret(option: str, file: str) -> str:
    """Return what a file holds that was named for it; without one, the call would be somebody else's."""
    try:
        text = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{option} {file!r} cannot be read: {error}") from error
    if not text:
        raise click.UsageError(f"{option} {file!r} is empty; a token is expected in it")
    return text


def finite(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Refuse what Python's `float` takes and no setting means: `nan` and `inf`."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter("a finite number is expected")
    return value


_OPTIONS = (
    click.option(
        "--server", metavar="URL", envvar="MEMPLANE_ENDPOINT", help="The service; default: as bound, else local."
    ),
    click.option("--token-file", metavar="FILE", envvar="MEMPLANE_TOKEN_FILE", help="The agent's or admin's token."),
    click.option("--user-token-file", metavar="FILE", help="The token of the user on whose behalf."),
    click.option("--agent", metavar="ID", help="kaos://agent/<ns>/<name>, where the service has no authentication."),
    click.option("--user", metavar="NAME", help="The user's name, where the service has no authentication."),
    click.option(
        "--timeout",
        "timeout_seconds",
        type=click.FloatRange(min=0.1),
        callback=finite,
        help="Seconds that the call may take.",
    ),
    click.option("--json", "wants_json", is_flag=True, help="Print JSON."),
)


def connected(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the connection's options, as its first argument, and the exit codes."""

    @functools.wraps(command)
    def run(**values: Any) -> Any:
        connection = Connection(**{name: values.pop(name) for name in Connection.__dataclass_fields__})
        with exit_codes():
            return command(connection, **values)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn the client's errors into a sentence on standard error and an exit code."""
    from memory_service.client import ContractError, ServiceUnavailable

    try:
        yield
    except ContractError as error:
        refuse(error.problem)
    except ServiceUnavailable as error:
        unavailable(error.detail)


def refuse(problem: Problem) -> NoReturn:
    """Say why a request was refused and end with exit code 1."""
    output.note(f"refused ({problem.status} {problem.kind}): {problem.detail}")
    for flaw in problem.errors:
        got = f", got {flaw.got!r}" if flaw.got is not None else ""
        output.note(f"  {flaw.field}: {flaw.expected}{got}")
    raise click.exceptions.Exit(Exit.REFUSED)


def unavailable(detail: str) -> NoReturn:
    """Say that the service cannot be used and end with exit code 3."""
    output.note(f"unavailable: {detail}")
    output.note("  start a store with `memplane serve`, or name one with --server or MEMPLANE_ENDPOINT")
    raise click.exceptions.Exit(Exit.UNAVAILABLE)
