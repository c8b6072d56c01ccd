"""`memplane sessions` and `memplane jobs`."""

from __future__ import annotations

from typing import Any

import click

from memory_service.cli import output
from memory_service.cli.connection import Connection, connected


@click.group(short_help="Look at sessions; end, compact or flush them.")
def sessions() -> None:
    """Look at sessions; end, compact or flush them."""


@sessions.command("list")
@connected
@click.option("--workspace", metavar="NAME", help="Those of this partition; default: those of none.")
@click.option("--limit", type=int)
@click.option("--cursor")
def sessions_list(connection: Connection, workspace: str | None, limit: int | None, cursor: str | None) -> None:
    """List your sessions, newest write first."""
    with connection.client() as client:
        page = client.sessions.list(workspace=workspace, cursor=cursor, limit=limit)
    if connection.wants_json:
        output.as_json(page)
        return
    output.table(
        ("session", "last write", "ended", "turns kept", "window turns", "window tokens", "digest"),
        [
            (
                found.session_id,
                output.moment(found.last_write_at),
                output.moment(found.ended_at),
                found.last_seq,
                found.turns,
                found.tokens,
                found.digest_version,
            )
            for found in page.sessions
        ],
    )
    if page.next_cursor is not None:
        output.note(f"more: --cursor {page.next_cursor}")


@sessions.command("show")
@connected
@click.argument("session_id", metavar="SESSION")
@click.option("--workspace", metavar="NAME")
@click.option("--turns", "wants_turns", is_flag=True, help="Every turn kept, not the window alone.")
def sessions_show(connection: Connection, session_id: str, workspace: str | None, wants_turns: bool) -> None:
    """Show a session's window and digests, or every turn kept."""
    with connection.client() as client:
        if wants_turns:
            turns: list[Any] = []
            after: int | None = 0
            while after is not None:
                page = client.sessions.turns(session_id, after=after, workspace=workspace)
                turns += page.turns
                after = page.next_after
            if connection.wants_json:
                output.as_json({"turns": turns})
            else:
                _show_turns(turns)
            return
        found = client.sessions.get(session_id, workspace=workspace)
    if connection.wants_json:
        output.as_json(found)
        return
    for digest in found.digests[:1]:
        output.line(f"digest, version {digest.version}, up to turn {digest.upto_seq}: {digest.summary}")
    _show_turns(found.window)
    output.degraded(found.degraded)


def _show_turns(turns: Any) -> None:
    output.table(
        ("seq", "role", "said at", "tokens", "content"),
        [(turn.seq, turn.role.value, output.moment(turn.said_at), turn.tokens, turn.content) for turn in turns],
    )


def _action(name: str, does: str) -> None:
    @sessions.command(name, help=does)
    @connected
    @click.argument("session_id", metavar="SESSION")
    @click.option("--workspace", metavar="NAME")
    def act(connection: Connection, session_id: str, workspace: str | None) -> None:
        with connection.client() as client:
            acted = getattr(client.sessions, name)(session_id, workspace=workspace)
        if connection.wants_json:
            output.as_json(acted)
        elif acted.busy:
            output.line("busy: it runs already")
        else:
            output.line(f"scheduled: {', '.join(acted.jobs)}" if acted.jobs else "nothing to do")


_action("end", "Say that a conversation is over, so that it is remembered however short it was.")
_action("compact", "Fold older turns into the digest now.")
_action("flush", "Extract facts from the turns that wait, without ending the session.")


@click.group(short_help="The state of background work.")
def jobs() -> None:
    """The state of background work."""


@jobs.command("list")
@connected
@click.option("--state", type=click.Choice(["queued", "running", "done", "dead"]))
@click.option("--session", "session_id", metavar="SESSION")
@click.option("--workspace", metavar="NAME", help="Those of this partition; default: those of none.")
@click.option("--limit", type=int)
@click.option("--cursor")
def jobs_list(connection: Connection, **given: Any) -> None:
    """List jobs, newest first."""
    with connection.client() as client:
        page = client.jobs.list(**given)
    if connection.wants_json:
        output.as_json(page)
        return
    output.table(
        ("job", "kind", "state", "attempts", "session", "runs at", "error"),
        [
            (
                job.id,
                job.kind.value,
                job.state.value,
                job.attempts,
                job.session_id,
                output.moment(job.run_at),
                job.error,
            )
            for job in page.jobs
        ],
    )
    if page.next_cursor is not None:
        output.note(f"more: --cursor {page.next_cursor}")


@jobs.command("show")
@connected
@click.argument("job_id", metavar="JOB")
def jobs_show(connection: Connection, job_id: str) -> None:
    """Show one job."""
    with connection.client() as client:
        _show_job(connection, client.jobs.get(job_id))


@jobs.command("retry")
@connected
@click.argument("job_id", metavar="JOB")
def jobs_retry(connection: Connection, job_id: str) -> None:
    """Put a dead job back into the queue."""
    with connection.client() as client:
        _show_job(connection, client.jobs.retry(job_id))


def _show_job(connection: Connection, job: Any) -> None:
    if connection.wants_json:
        output.as_json(job)
    else:
        shown = job.model_dump(mode="json", exclude_none=True)
        output.fields({name.replace("_", " "): value for name, value in shown.items()})
