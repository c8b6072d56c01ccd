"""Single facts on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from memory_service.cli import output
from memory_service.cli.connection import Connection, connected, finite
from memory_service.cli.memory import SCOPES, objects, show_items

if TYPE_CHECKING:
    from memory_service.contract.items import Item


@click.group(short_help="Inspect, correct and delete single facts.")
def facts() -> None:
    """Inspect, correct and delete single facts."""


@facts.command("list")
@connected
@click.option("--scope", type=SCOPES)
@click.option("--session", "session_id", metavar="SESSION")
@click.option("--workspace", metavar="NAME")
@click.option("--limit", type=int)
@click.option("--cursor")
def facts_list(connection: Connection, **given: Any) -> None:
    """List facts."""
    with connection.client() as client:
        page = client.facts.list(**given)
    show_items(connection, list(page.items), page.next_cursor)


@facts.command("get")
@connected
@click.argument("fact_id", metavar="FACT")
def facts_get(connection: Connection, fact_id: str) -> None:
    """Show one fact."""
    with connection.client() as client:
        _show_fact(connection, client.facts.get(fact_id))


@facts.command("patch")
@connected
@click.argument("fact_id", metavar="FACT")
@click.option("--text", help="The corrected text.")
@click.option("--category")
@click.option("--evidence")
@click.option("--importance", type=float, callback=finite)
@click.option("--tag", "tags", multiple=True)
@click.option("--pinned/--not-pinned", default=None)
@click.option("--revision", type=int, help="Refuse when the fact changed since.")
def facts_patch(connection: Connection, fact_id: str, tags: tuple[str, ...], **given: Any) -> None:
    """Correct one fact; what is left out stays."""
    changes = {name: value for name, value in given.items() if value is not None}
    if tags:
        changes["tags"] = tags
    with connection.client() as client:
        _show_fact(connection, client.facts.patch(fact_id, **changes))


@facts.command("supersede")
@connected
@click.argument("fact_id", metavar="FACT")
@click.argument("text")
def facts_supersede(connection: Connection, fact_id: str, text: str) -> None:
    """Put TEXT in a fact's place; the old one can still be asked for with --as-of."""
    with connection.client() as client:
        _show_fact(connection, client.facts.supersede(fact_id, text))


@facts.command("delete")
@connected
@click.argument("fact_id", metavar="FACT")
@click.option("--yes", is_flag=True, help="Do not ask.")
def facts_delete(connection: Connection, fact_id: str, yes: bool) -> None:
    """Delete one fact."""
    if not yes:
        click.confirm(f"Delete fact {fact_id}? It cannot be brought back.", abort=True, err=True)
    with connection.client() as client:
        deleted = client.facts.delete(fact_id)
    if connection.wants_json:
        output.as_json(deleted)
    else:
        output.line(f"{deleted.status.value}: {fact_id}")
        output.line(f"receipt {deleted.receipt_id}")


@facts.command("history")
@connected
@click.argument("fact_id", metavar="FACT")
def facts_history(connection: Connection, fact_id: str) -> None:
    """Show a fact's changes, oldest first."""
    with connection.client() as client:
        history = client.facts.history(fact_id)
    if connection.wants_json:
        output.as_json(history)
        return
    output.table(
        ("at", "event", "text", "actor"),
        [(output.moment(entry.at), entry.event, entry.text or "", entry.actor) for entry in history.entries],
    )


@facts.command("batch")
@connected
@click.argument("file", metavar="FILE")
def facts_batch(connection: Connection, file: str) -> None:
    """Save the facts of FILE (JSON lines; `-` reads standard input) together: all or none."""
    facts = objects(file, "fact", '{"text": "…"}')
    with connection.client() as client:
        saved = client.facts.batch(facts)
    if connection.wants_json:
        output.as_json(saved)
        return
    output.table(("action", "text", "id"), [(fact.action, fact.text, fact.id) for fact in saved.facts])


def _show_fact(connection: Connection, fact: Item) -> None:
    if connection.wants_json:
        output.as_json(fact)
        return
    shown = fact.model_dump(mode="json", exclude_none=True)
    output.fields({name.replace("_", " "): value for name, value in shown.items()})
