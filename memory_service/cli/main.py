"""The entry point `memplane`."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from dataclasses import dataclass

import click


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a command is defined, and its line in the help."""

    module: str
    attribute: str
    does: str


_COMMANDS = {
    "serve": _Place("service", "serve", "Serve a store."),
    "work": _Place("service", "work", "Do background work for a store on Postgres."),
    "migrate": _Place("service", "migrate", "Bring a store's schema up to date."),
    "check": _Place("service", "check", "Print each setting with its source."),
    "write": _Place("memory", "write", "Append turns to a session."),
    "recall": _Place("memory", "recall", "Find what is relevant to a question."),
    "remember": _Place("memory", "remember", "Save a fact now."),
    "list": _Place("memory", "list_", "List what is remembered at a scope."),
    "forget": _Place("memory", "forget", "Erase a scope or a session."),
    "receipt": _Place("memory", "receipt", "Show an erasure's receipt."),
    "facts": _Place("facts", "facts", "Inspect, correct and delete single facts."),
    "sessions": _Place("sessions", "sessions", "Look at sessions; end, compact or flush them."),
    "jobs": _Place("sessions", "jobs", "The state of background work."),
    "admin": _Place("admin", "admin", "Store-wide verbs, for listed admins."),
    "why": _Place("why", "why", "Explain why an agent or a store is not well."),
    "export": _Place("transfer", "export", "Write everything in a store to a file."),
    "import": _Place("transfer", "import_", "Read an export into a store."),
}


class _Commands(click.Group):
    """Commands that are loaded when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = _COMMANDS.get(cmd_name)
        if place is None:
            return None
        command = getattr(importlib.import_module(f"memory_service.cli.{place.module}"), place.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.does) for name, place in _COMMANDS.items()])


def _version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from importlib.metadata import version

        print(f"memplane {version('memplane')}")
        context.exit()


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option(
    "--version", is_flag=True, callback=_version, expose_value=False, is_eager=True, help="Print the version."
)
def cli() -> None:
    """The memory plane for AI agents: serve a store, or talk to one.

    Exit codes: 0 done, 1 refused, 2 usage, 3 unavailable.
    """


def main() -> None:
    """Run the command line and end the process with its exit code."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A pipe in an old locale must not turn a remembered umlaut into a crash.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    # Commands print what a person needs to know; a service that is run here sets up its own log.
    logging.getLogger("memory_service").addHandler(logging.NullHandler())
    try:
        cli(prog_name="memplane")
    finally:
        _drop_unprintable()


def _open_closed_streams() -> None:
    """Put /dev/null where a caller closed a stream: a file of ours must not get its number, and prints go nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open to the end


def _drop_unprintable() -> None:
    """Let what could not be printed go: it would fail once more, with a traceback, when the process ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
