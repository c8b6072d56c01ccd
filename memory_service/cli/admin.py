"""`memplane admin`: store-wide verbs, for listed admins."""

from __future__ import annotations

import click

from memory_service.cli import output
from memory_service.cli.connection import Connection, connected
from memory_service.cli.memory import show_items


@click.group(short_help="Store-wide verbs, for listed admins.")
def admin() -> None:
    """Store-wide verbs, for listed admins."""


@admin.command("erase")
@connected
@click.option("--principal", metavar="ISSUER#SUBJECT", help="A person, under every agent of the store.")
@click.option("--agent-id", metavar="ID", help="An agent: kaos://agent/<namespace>/<name>.")
@click.option("--session", metavar="SESSION", help="A session of the agent --agent-id.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def admin_erase(
    connection: Connection, principal: str | None, agent_id: str | None, session: str | None, yes: bool
) -> None:
    """Erase a principal, an agent, or an agent's session. It cannot be brought back."""
    named = [value for value in (principal, agent_id, session) if value is not None]
    if not named:
        raise click.UsageError("give --principal, --agent-id, or --session with its --agent-id")
    if principal is not None and "#" not in principal:
        raise click.UsageError(
            f"--principal {principal!r} names no issuer: ISSUER#SUBJECT is expected, such as 'local#{principal}'"
        )
    if not yes:
        click.confirm(
            f"Erase {' / '.join(named)} over the whole store? It cannot be brought back.", abort=True, err=True
        )
    with connection.client() as client:
        erased = client.admin.erase(principal=principal, agent=agent_id, session=session)
    if connection.wants_json:
        output.as_json(erased)
        return
    counts = ", ".join(f"{count} {tier}" for tier, count in erased.erased.items() if count)
    output.line(f"{erased.status.value}: {counts or 'nothing was there'}")
    output.line(f"receipt {erased.receipt_id}")


@admin.command("list")
@connected
@click.option("--limit", type=int)
@click.option("--cursor")
@click.option("--all", "wants_all", is_flag=True, help="Follow the pages to the end.")
def admin_list(connection: Connection, limit: int | None, cursor: str | None, wants_all: bool) -> None:
    """List facts of the whole store."""
    with connection.client() as client:
        page = client.admin.list(cursor=cursor, limit=limit)
        items = list(page.items)
        while wants_all and page.next_cursor is not None:
            page = client.admin.list(cursor=page.next_cursor, limit=limit)
            items += page.items
    show_items(connection, items, page.next_cursor)


@admin.command("diagnostics")
@connected
def admin_diagnostics(connection: Connection) -> None:
    """Show totals of the store."""
    with connection.client() as client:
        found = client.admin.diagnostics()
    if connection.wants_json:
        output.as_json(found)
        return
    output.fields(
        {
            "version": found.version,
            "backend": found.backend,
            "schema version": found.schema_version,
            "embedding": f"{found.embedding_model} ({found.dimension})",
            "bytes on disk": found.bytes_on_disk,
            **{f"rows: {name}": count for name, count in found.counts.items()},
            **{f"facts: {name}": count for name, count in found.facts_by_scope.items()},
            **{f"jobs: {name}": count for name, count in found.jobs_by_state.items()},
        }
    )


@admin.command("replay")
@connected
@click.option("--state", type=click.Choice(["dead", "queued", "running", "done"]), default="dead", show_default=True)
def admin_replay(connection: Connection, state: str) -> None:
    """Put every job of a state back into the queue."""
    with connection.client() as client:
        replayed = client.admin.replay(state)
    if connection.wants_json:
        output.as_json(replayed)
    else:
        output.line(f"{replayed.replayed} job(s) are queued again")
