"""The agent's verbs on the command line: write, recall, remember, list, forget, receipt."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memory_service.cli import output
from memory_service.cli.connection import Connection, connected, finite, refuse, unavailable

if TYPE_CHECKING:
    from memory_service.contract.items import Item

SCOPES = click.Choice(["private", "user", "shared", "session"])
KINDS = click.Choice(["semantic", "episodic", "procedural", "preference", "episode"])
FACT_KINDS = click.Choice(["semantic", "episodic", "procedural", "preference"])
ROLES = click.Choice(["user", "assistant", "system", "tool"])


@click.command(short_help="Append turns to a session.")
@connected
@click.argument("session_id", metavar="SESSION")
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@click.option("--role", type=ROLES, default="user", show_default=True, help="Who said the texts.")
@click.option("--turns", "file", metavar="FILE", help="Turns as JSON lines; `-` reads standard input.")
@click.option("--workspace", metavar="NAME", help="The partition to write to.")
@click.option("--no-infer", is_flag=True, help="Extract no facts from these turns.")
@click.option("--idempotency-key", metavar="KEY", help="Repeat with the same key and turns: stored once.")
def write(
    connection: Connection,
    *,
    session_id: str,
    texts: tuple[str, ...],
    role: str,
    file: str | None,
    workspace: str | None,
    no_infer: bool,
    idempotency_key: str | None,
) -> None:
    """Append turns to SESSION: each TEXT is one, or --turns names a file of them."""
    if bool(texts) == (file is not None):
        raise click.UsageError("give TEXT or --turns FILE")
    turns = (
        objects(file, "turn", '{"role": "user", "content": "…"}')
        if file is not None
        else [{"role": role, "content": text} for text in texts]
    )
    with connection.client() as client:
        written = client.write(
            session_id,
            turns,
            workspace=workspace,
            infer=False if no_infer else None,
            idempotency_key=idempotency_key,
        )
    if connection.wants_json:
        output.as_json(written)
        return
    output.line(f"stored {len(written.seqs)} turn(s) in {written.session_id}: {', '.join(map(str, written.seqs))}")
    if written.jobs:
        output.line(f"scheduled: {', '.join(written.jobs)}")
    output.degraded(written.degraded)


def objects(file: str, what: str, example: str) -> list[dict[str, Any]]:
    """Return the JSON lines of a file."""
    found: list[dict[str, Any]] = []
    for number, text in enumerate(_lines(file), 1):
        if not text.strip():
            continue
        try:
            one = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise click.UsageError(f"{file}, line {number}, is not JSON: {error}") from error
        if not isinstance(one, dict):
            raise click.UsageError(f"{file}, line {number}: a {what} such as {example} is expected")
        found.append(one)
    if not found:
        raise click.UsageError(f"{file} holds no {what}s")
    return found


def _lines(file: str) -> Iterable[str]:
    try:
        # JSON is UTF-8 whatever the locale, and may hold U+2028 and its like as they are: no splitlines.
        return (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{file!r} cannot be read: {error}") from error


@click.command(short_help="Find what is relevant to a question.")
@connected
@click.argument("query")
@click.option("--session", "session_id", metavar="SESSION", help="Answer its window and digest too.")
@click.option("--top-k", type=int, help="Items at most; default: the store's.")
@click.option("--token-budget", type=int, help="Tokens of the block at most.")
@click.option("--scope", "scopes", multiple=True, type=SCOPES, help="Scopes to read; default: all of the binding's.")
@click.option("--kind", "kinds", multiple=True, type=KINDS, help="Kinds of item.")
@click.option("--category", "categories", multiple=True, help="Categories.")
@click.option("--tag", "tags", multiple=True, help="Tags.")
@click.option("--since", type=click.DateTime(), help="Said at this time (UTC) or later.")
@click.option("--until", type=click.DateTime(), help="Said at this time (UTC) or earlier.")
@click.option("--as-of", type=click.DateTime(), help="Facts as they were valid at this time (UTC).")
@click.option("--workspace", metavar="NAME", help="The partition to read too.")
@click.option("--score-floor", type=float, callback=finite, help="Least score, 0 to 1.")
@click.option("--explain", is_flag=True, help="Show the parts of the rank.")
@click.option("--block", "wants_block", is_flag=True, help="Print the block for a prompt and nothing else.")
def recall(
    connection: Connection,
    *,
    query: str,
    session_id: str | None,
    top_k: int | None,
    token_budget: int | None,
    scopes: tuple[str, ...],
    wants_block: bool,
    workspace: str | None,
    score_floor: float | None,
    explain: bool,
    **filters: Any,
) -> None:
    """Find what is relevant to QUERY."""
    given = {name: _utc(value) for name, value in filters.items() if value}
    with connection.client() as client:
        recalled = client.recall(
            query,
            session_id=session_id,
            top_k=top_k,
            token_budget=token_budget,
            scopes=scopes or None,
            workspace=workspace,
            filters=given or None,
            score_floor=score_floor,
            explain=explain or None,
        )
        endpoint = client.binding.endpoint
    if connection.wants_json:
        output.as_json(recalled)
    if recalled.problem is not None:
        refuse(recalled.problem)
    if recalled.outcome.value == "unavailable":
        reasons = ", ".join(part.reason for part in recalled.degraded)
        unavailable(f"the service at {endpoint!r} did not answer ({reasons})")
    if connection.wants_json:
        return
    if wants_block:
        output.line(recalled.long_term.block)
        return
    columns = ("score", "tier", "said at", "text", "scope", "id")
    output.table(
        (*columns, "explain") if explain else columns,
        [
            (
                item.score,
                item.kind.value if item.tier == "fact" else item.tier,
                output.moment(item.said_at),
                item.text,
                item.scope.value,
                item.id,
                *([", ".join(f"{k} {v:.3f}" for k, v in (item.explain or {}).items())] if explain else []),
            )
            for item in recalled.long_term.items
        ],
        title=f"{recalled.outcome.value}, {recalled.usage.tokens} tokens",
    )
    if recalled.medium_term.summary:
        output.line(f"digest, version {recalled.medium_term.version}: {recalled.medium_term.summary}")
    if recalled.short_term.window:
        output.table(
            ("seq", "role", "said at", "content"),
            [
                (turn.seq, turn.role.value, output.moment(turn.said_at), turn.content)
                for turn in recalled.short_term.window
            ],
            title="window",
        )
    if recalled.omitted:
        output.table(("left out", "reason"), [(item.id, item.reason) for item in recalled.omitted])
    output.degraded(recalled.degraded)


@click.command(short_help="Save a fact now.")
@connected
@click.argument("text")
@click.option("--key", help="A later fact with the same key replaces this one.")
@click.option("--scope", type=SCOPES, help="The binding's own (default), or session.")
@click.option("--session", "session_id", metavar="SESSION", help="The session it comes from.")
@click.option("--workspace", metavar="NAME", help="The partition to save in.")
@click.option("--kind", type=FACT_KINDS, help="Its kind; default: semantic.")
@click.option("--category", help="Its category.")
@click.option("--evidence", help="Where it is known from.")
@click.option("--importance", type=float, callback=finite, help="0 to 1.")
@click.option("--tag", "tags", multiple=True, help="A tag; may be given often.")
@click.option("--pinned", is_flag=True, help="Keep it in front.")
@click.option("--dedupe-key", help="A second save with it updates the first.")
def remember(connection: Connection, text: str, tags: tuple[str, ...], pinned: bool, **given: Any) -> None:
    """Save TEXT as a fact; it can be found as soon as this returns."""
    with connection.client() as client:
        remembered = client.remember(text, tags=tags or None, pinned=pinned or None, **given)
    if connection.wants_json:
        output.as_json(remembered.fact)
    elif remembered.fact is not None:
        output.line(f"{remembered.fact.action}: {remembered.fact.id}")


@click.command("list", short_help="List what is remembered at a scope.")
@connected
@click.option("--scope", type=SCOPES, help="The binding's own (default), or another readable one.")
@click.option("--session", "session_id", metavar="SESSION", help="Needed for the scope session.")
@click.option("--workspace", metavar="NAME", help="The partition.")
@click.option("--tier", "tiers", multiple=True, type=click.Choice(["fact", "episode"]), help="Default: fact.")
@click.option("--limit", type=int, help="Items of one page.")
@click.option("--cursor", help="The page's beginning, from an earlier answer.")
@click.option("--all", "wants_all", is_flag=True, help="Follow the pages to the end.")
def list_(connection: Connection, wants_all: bool, tiers: tuple[str, ...], cursor: str | None, **given: Any) -> None:
    """List everything visible at a scope."""
    with connection.client() as client:
        page = client.list(tiers=tiers or None, cursor=cursor, **given)  # type: ignore[arg-type]
        items = list(page.items)
        while wants_all and page.next_cursor is not None:
            page = client.list(tiers=tiers or None, cursor=page.next_cursor, **given)  # type: ignore[arg-type]
            items += page.items
    show_items(connection, items, page.next_cursor)


def show_items(connection: Connection, items: list[Item], next_cursor: str | None) -> None:
    """Print a page of items."""
    if connection.wants_json:
        output.as_json({"items": items, "next_cursor": next_cursor})
        return
    output.table(
        ("said at", "kind", "text", "key", "scope", "session", "id"),
        [
            (
                output.moment(item.said_at),
                item.kind.value,
                item.text,
                item.key,
                item.scope.value,
                item.session_id,
                item.id,
            )
            for item in items
        ],
    )
    if next_cursor is not None:
        output.note(f"more: --cursor {next_cursor}")


@click.command(short_help="Erase a scope or a session.")
@connected
@click.option("--scope", type=SCOPES, help="The binding's own (default), or session.")
@click.option("--session", "session_id", metavar="SESSION", help="Erase this session and the facts from it alone.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--idempotency-key", metavar="KEY", help="Repeat with the same key: the same receipt.")
def forget(
    connection: Connection, scope: str | None, session_id: str | None, yes: bool, idempotency_key: str | None
) -> None:
    """Erase what is remembered at a scope that you own. It cannot be brought back."""
    where = "the binding's own scope" if scope is None else f"the scope {scope!r}"
    what = f"the session {session_id!r}" if session_id is not None else f"everything at {where}"
    if not yes:
        click.confirm(f"Erase {what}? It cannot be brought back.", abort=True, err=True)
    with connection.client() as client:
        forgotten = client.forget(scope, session_id=session_id, idempotency_key=idempotency_key)
    if connection.wants_json:
        output.as_json(forgotten)
        return
    counts = ", ".join(f"{count} {tier}" for tier, count in forgotten.erased.items() if count)
    output.line(f"{forgotten.status}: {counts or 'nothing was there'}")
    output.line(f"receipt {forgotten.receipt_id}")


@click.command(short_help="Show an erasure's receipt.")
@connected
@click.argument("receipt_id", metavar="RECEIPT")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(min=0),
    default=0,
    callback=finite,
    help="Wait this long for `purged`.",
)
def receipt(connection: Connection, receipt_id: str, wait_seconds: float) -> None:
    """Show how far an erasure is: erased, then purged."""
    until = time.monotonic() + wait_seconds
    with connection.client() as client:
        found = client.receipts.get(receipt_id)
        while found.status.value != "purged" and time.monotonic() < until:
            time.sleep(min(0.25, max(0.0, until - time.monotonic())))
            found = client.receipts.get(receipt_id)
    if connection.wants_json:
        output.as_json(found)
        return
    output.fields(
        {
            "receipt": found.receipt_id,
            "status": found.status.value,
            "erased at": output.moment(found.erased_at),
            "purged at": output.moment(found.purged_at),
            "waiting for": found.waiting_for,
            **{f"erased {tier}": count for tier, count in found.erased.items() if count},
        }
    )


def _utc(value: Any) -> Any:
    from datetime import UTC, datetime

    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value
