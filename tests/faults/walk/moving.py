"""Steps of the admin: what there is in all, exports, imports, and how the service is."""

from __future__ import annotations

from collections import Counter

from tests.faults.walk.arrivals import Arrivals
from tests.faults.walk.store import AGENT_PREFIX, Json, Store, equal
from tests.faults.walk.visit import Visit, compare_order, rows_of

MOST_LINES = 1_000
TYPES = ("session", "turn", "digest", "fact", "deleted")


async def list_all(visit: Visit) -> None:
    """List everything as the admin, or try to as an agent."""
    if visit.chance(0.2):
        equal("status", (await visit.ask("GET", "/v1/admin/list"))[0], 403)
        return
    await whole_list(visit)


async def whole_list(visit: Visit) -> None:
    """List everything as the admin."""
    found: list[str] = []
    cursor = ""
    while cursor is not None:
        _, answer = await visit.store.ask(None, "GET", "/v1/admin/list", cursor=cursor, limit=200)
        found += [item["text"] for item in answer["items"]]
        cursor = answer["next_cursor"]
    compare_order(visit, "listed", found, rows_of([fact for fact in visit.memory.facts if fact.is_shown(visit.now)]))


async def count(visit: Visit) -> None:
    """Ask how much there is, as the admin."""
    _, answer = await visit.store.ask(None, "GET", "/v1/admin/diagnostics")
    memory = visit.memory
    expected = {
        "sessions": len(memory.sessions),
        "turns": len(memory.turns),
        "digests": sum(len(session.digests) for session in memory.sessions.values()),
        "facts": len(memory.facts),
    }
    equal("counts", {name: answer["counts"][name] for name in expected}, expected)


async def replay(visit: Visit) -> None:
    """Put every dead job back, as the admin."""
    dead = [(row, kind) for row in visit.memory.sessions.values() for kind in row.dead]
    _, answer = await visit.store.ask(None, "POST", "/v1/admin/jobs/replay", {"state": "dead"})
    equal("replayed", answer["replayed"], len(dead))
    for row, kind in dead:
        row.queued.setdefault(kind, row.dead.pop(kind))
        row.dead.pop(kind, None)


async def export(store: Store, *, limit: int = 1_000) -> list[Json]:
    """Return every line of an export."""
    lines: list[Json] = []
    cursor = ""
    while cursor is not None:
        _, answer = await store.ask(None, "GET", "/v1/admin/export", cursor=cursor, limit=limit)
        lines += answer["lines"]
        cursor = answer["next_cursor"]
    return lines


async def read_export(visit: Visit) -> None:
    """Export everything."""
    lines = await export(visit.store, limit=visit.draw.choice((100, 1_000)))
    memory = visit.memory
    facts = [line["text"] for line in lines if line["type"] == "fact"]
    compare_order(visit, "exported facts", facts, rows_of(memory.facts))
    turns = [line["text"] for line in lines if line["type"] == "turn"]
    compare_order(visit, "exported turns", turns, rows_of(memory.turns))
    deleted = {line["id"] for line in lines if line["type"] == "deleted"}
    equal("deleted", deleted, memory.tombstones)


async def bring(store: Store, lines: list[Json]) -> tuple[Counter[str], list[Json]]:
    """Import lines; return what became of them, and the answers."""
    outcomes: Counter[str] = Counter()
    answers = []
    for begin in range(0, len(lines), MOST_LINES):
        body = {"lines": lines[begin : begin + MOST_LINES]}
        status, answer = await store.ask(None, "POST", "/v1/admin/import", body)
        equal("status", status, 200)
        answers.append(answer)
        outcomes.update({name: answer[name] for name in ("imported", "skipped", "tombstoned", "left_out", "erased")})
    return outcomes, answers


async def bring_agent(visit: Visit) -> None:
    """Import all of an agent from the first store into the second one, where both have gone on since the last time.

    Its erasures are not among it: each store has its own.
    """
    if visit.chance(0.1):
        equal("status", (await visit.ask("POST", "/v1/admin/import", {"lines": [{}]}))[0], 403)
        return
    source, target = sorted((visit.store, visit.other), key=lambda store: store.number)
    agent = visit.who.agent
    visit.note(f"from store {source.number}")
    lines = [line for line in await export(source) if _is_of(line, agent)]
    found: Counter[str] = Counter()
    for kind in TYPES:
        outcomes, answers = await bring(target, [line for line in lines if line["type"] == kind])
        found += outcomes
        for answer in answers:
            if answer["receipt_id"] is not None:
                _, receipt = await target.ask(None, "GET", f"/v1/receipts/{answer['receipt_id']}")
                equal("facts on the receipt of an import", receipt["erased"]["facts"], answer["erased"])
                target.receipts.append((None, answer["receipt_id"], receipt["erased"]))
    arrivals = Arrivals(target.memory, visit.now)
    sessions = [session for session in source.memory.sessions.values() if session.place.agent == agent]
    for session in sessions:
        arrivals.session(session)
    for turn in source.memory.turns:
        if turn.place.agent == agent:
            arrivals.turn(turn)
    for session in sessions:
        for digest in session.digests:
            if digest.version < session.version:
                arrivals.digest(digest, session)
    for fact in source.memory.facts:
        if fact.owner.agent == agent:
            arrivals.fact(fact)
    arrivals.deleted(source.memory.tombstones)
    equal("import", +found, +arrivals.outcomes)
    target.happened.update({f"import: {name}": count for name, count in found.items()})


def _is_of(line: Json, agent: str) -> bool:
    return line["type"] == "deleted" or (line["type"] in TYPES and line["agent"] == f"{AGENT_PREFIX}{agent}")


async def look_after_health(visit: Visit) -> None:
    """Ask how the service is, as its surroundings do."""
    equal("alive", (await visit.store.ask(None, "GET", "/healthz"))[0], 200)
    status, ready = await visit.store.ask(None, "GET", "/readyz")
    equal("ready", (status, ready["ready"]), (200, True))
    status, metrics = await visit.store.ask(None, "GET", "/metrics")
    equal("metrics", (status, "memplane_" in metrics["text"]), (200, True))
    equal("report", (await visit.store.ask(None, "GET", "/v1/health/report"))[0], 200)
    equal("report to an agent", (await visit.ask("GET", "/v1/health/report"))[0], 403)


STEPS = {list_all: 0.5, count: 0.5, replay: 0.4, read_export: 0.2, bring_agent: 0.6, look_after_health: 0.2}
