"""Steps that read what is remembered."""

from __future__ import annotations

import itertools

from tests.faults.walk.memory import Fact, Turn
from tests.faults.walk.store import RULES, Json, equal
from tests.faults.walk.visit import Visit, compare_order, named, rows_of
from tests.faults.walk.writing import CATEGORIES, KINDS, SOON, TAGS

TOP_K = 100
_FACTS_ONLY = ("categories", "tags", "min_importance")


async def recall(visit: Visit) -> None:
    """Ask for everything readable, or for a part of it, among words of others and of what is gone."""
    who, memory = visit.who, visit.memory
    session, workspace = visit.session(or_none=True), visit.workspace()
    chosen = visit.draw.sample(who.reads, visit.draw.randint(1, len(who.reads))) if visit.chance(0.5) else None
    mode = visit.draw.choices(("inherit", "append", "replace", "disable"), (85, 7, 5, 3))[0]
    include = ["short_term", "medium_term", "long_term"]
    if visit.chance(0.15):
        include = visit.draw.sample(include, visit.draw.randint(1, 2))
    body: Json = {"top_k": TOP_K, "score_floor": 0, "mode": mode, "include": include, "explain": visit.chance(0.1)}
    body |= named(session_id=session, workspace=workspace) | ({} if chosen is None else {"scopes": chosen})
    body["filters"] = _filters(visit) if visit.chance(0.3) else {}
    wanted = _scopes(visit, chosen, mode, session)
    row = memory.sessions.get(visit.place(session, workspace))
    window = row.window(RULES.budget) if row is not None and "short_term" in include else []
    expected = _expected(visit, wanted or [], session, workspace, body["filters"]) if "long_term" in include else set()
    expected -= {turn.text for turn in window}
    body["query"] = " ".join(_words(visit, expected)) or "nothing"
    visit.note(body)
    status, answer = await visit.ask("POST", "/v1/recall", body)
    if wanted is None:
        equal("status", status, 400)
        return
    equal("status", status, 200)
    if mode == "disable":
        equal("outcome", (answer["outcome"], answer["long_term"]["items"]), ("disabled", []))
        return
    _compare_found(visit, answer, expected, body["query"])
    equal("window", [turn["content"] for turn in answer["short_term"]["window"]], [turn.text for turn in window])
    digest = row.digests[-1] if row is not None and row.digests and "medium_term" in include else None
    equal("digest", answer["medium_term"]["summary"], "" if digest is None else digest.text)
    visit.know(session, answer)


def _scopes(visit: Visit, chosen: list[str] | None, mode: str, session: str) -> list[str] | None:
    """Return the scopes that are read, or None where the call is refused."""
    who = visit.who
    if mode == "disable":
        return []
    readable = who.readable(session)
    if chosen is None:
        return readable or None
    if any(scope not in readable for scope in chosen):
        return None
    return [*chosen, *(who.scope for _ in "1" if mode == "append" and who.scope in readable)]


def _filters(visit: Visit) -> Json:
    clock, draw = visit.store.clock, visit.draw
    drawn: Json = {
        "kinds": draw.sample((*KINDS, "episode"), draw.randint(1, 3)),
        "categories": draw.sample(CATEGORIES, 1),
        "tags": draw.sample(TAGS, draw.randint(1, 2)),
        "since": clock.written(visit.now - draw.randrange(2_000) + SOON),
        "until": clock.written(visit.now - draw.randrange(500) + SOON),
        "min_importance": draw.choice((0.2, 0.6)),
        "as_of": clock.written(visit.now - 1 - draw.randrange(1_000) + SOON),
    }
    return {name: value for name, value in drawn.items() if visit.chance(0.25)}


def _expected(visit: Visit, scopes: list[str], session: str, workspace: str, filters: Json) -> set[str]:
    """Return the texts that a recall may find."""
    memory, who, clock = visit.memory, visit.who, visit.store.clock
    facts = [fact for scope in set(scopes) for fact in memory.readable_facts(who, scope, session, workspace)]
    turns = [turn for scope in set(scopes) for turn in memory.readable_turns(who, scope, session, workspace)]
    as_of = clock.steps(filters.get("as_of"))
    since, until = clock.steps(filters.get("since")), clock.steps(filters.get("until"))

    def is_timely(said: float) -> bool:
        return (since is None or said >= since) and (until is None or said <= until)

    def passes(fact: Fact) -> bool:
        labels = fact.labels
        return (
            fact.is_shown(visit.now, as_of)
            and is_timely(fact.said)
            and ("kinds" not in filters or labels["kind"] in filters["kinds"])
            and ("categories" not in filters or labels["category"] in filters["categories"])
            and ("tags" not in filters or not set(filters["tags"]).isdisjoint(labels["tags"]))
            and ("min_importance" not in filters or (labels["importance"] or 0) >= filters["min_importance"])
        )

    has_turns = "episode" in filters.get("kinds", ["episode"]) and not any(name in filters for name in _FACTS_ONLY)
    found = {turn.text for turn in turns if has_turns and is_timely(turn.said)}
    return found | {fact.text for fact in facts if passes(fact)}


def _words(visit: Visit, expected: set[str]) -> list[str]:
    """Return words of what is sought, of others, and of what is gone."""
    sought = sorted(expected) if len(expected) <= 30 else visit.draw.sample(sorted(expected), 12)
    some = [
        visit.draw.choice(rows).text
        for memory in (visit.memory, visit.other.memory)
        for rows in (memory.facts, memory.turns)
        if rows
    ]
    gone = visit.memory.ghosts[-200:]
    some += visit.draw.sample(gone, min(2, len(gone)))
    return [text.rpartition(" ")[2] for text in (*sought, *some)]


def _compare_found(visit: Visit, answer: Json, expected: set[str], query: str) -> None:
    found = [item["text"] for item in answer["long_term"]["items"]]
    equal("texts found twice", len(found), len(set(found)))
    equal("foreign or erased texts", set(found) - expected, set())
    words = set(query.split())
    sought = {text for text in expected if text.rpartition(" ")[2] in words}
    if len(expected) <= TOP_K:
        equal("texts not found", sought - set(found), set())


async def list_scope(visit: Visit) -> None:
    """List a scope, page by page."""
    session, workspace = visit.session(or_none=True), visit.workspace()
    scope = visit.draw.choice((*visit.who.reads, visit.who.scope))
    tiers = visit.draw.choice((["fact", "episode"], ["fact"], ["episode"]))
    body: Json = {"scope": scope, "tiers": tiers, "limit": visit.draw.choice((3, 50, 1000))}
    body |= named(session_id=session, workspace=workspace)
    visit.note(body)
    facts, turns = _listed(visit, scope, session, workspace)
    found: list[str] = []
    for page in itertools.count():
        status, answer = await visit.ask("POST", "/v1/list", body)
        if scope not in visit.who.readable(session):
            equal("status", status, 403 if scope not in visit.who.reads else 400)
            return
        equal("status", status, 200)
        found += [item["text"] for item in answer["items"]]
        body["cursor"] = answer["next_cursor"]
        if body["cursor"] is None or page > 1_000:
            break
    rows = [*(rows_of(facts) if "fact" in tiers else ()), *(rows_of(turns) if "episode" in tiers else ())]
    compare_order(visit, "listed", found, rows)


async def list_facts(visit: Visit) -> None:
    """List the facts of a scope, page by page."""
    session, workspace = visit.session(or_none=True), visit.workspace()
    scope = visit.draw.choice(visit.who.reads)
    limit = visit.draw.choice((5, 1000))
    facts, _ = _listed(visit, scope, session, workspace)
    found: list[str] = []
    cursor = ""
    while True:
        status, answer = await visit.ask(
            "GET", "/v1/facts", scope=scope, session_id=session, workspace=workspace, cursor=cursor, limit=limit
        )
        if scope not in visit.who.readable(session):
            equal("status", status, 400)
            return
        equal("status", status, 200)
        found += [item["text"] for item in answer["items"]]
        cursor = answer["next_cursor"]
        if cursor is None:
            break
    compare_order(visit, "facts", found, rows_of(facts))


def _listed(visit: Visit, scope: str, session: str, workspace: str) -> tuple[list[Fact], list[Turn]]:
    facts = visit.memory.readable_facts(visit.who, scope, session, workspace)
    turns = visit.memory.readable_turns(visit.who, scope, session, workspace)
    return [fact for fact in facts if fact.is_shown(visit.now)], turns


STEPS = {recall: 20.0, list_scope: 4.0, list_facts: 2.0}
