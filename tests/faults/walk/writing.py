"""Steps that say something: turns, facts, several facts at once, and the same thing again."""

from __future__ import annotations

from datetime import timedelta

from tests.faults.walk.memory import NO_LABELS, Fact, Place, Turn
from tests.faults.walk.statements import ON_THE_WAY, Saying, decide, save
from tests.faults.walk.store import RULES, TICK, Json, equal
from tests.faults.walk.visit import Visit, named

KEYS = ("city", "boat")
DEDUPE_KEYS = ("first", "second")
CATEGORIES = ("home", "taste")
TAGS = ("small", "old", "new")
KINDS = ("semantic", "episodic", "procedural", "preference")
SOON = 0.95
"""The part of a step at which what somebody sets begins or ends: nothing is said at that time."""


async def write(visit: Visit) -> None:
    """Append one to three turns; some state facts, and some are known to their writer by an id."""
    session, workspace = visit.session(), visit.workspace()
    await write_there(
        visit, session, workspace, [_turn_text(visit, workspace) for _ in range(visit.draw.randint(1, 3))]
    )


async def write_there(visit: Visit, session: str, workspace: str, texts: list[str]) -> None:
    """Append turns with these texts."""
    store, who, place = visit.store, visit.who, visit.place(session, workspace)
    known = visit.memory.sessions.get(place)
    names = [turn.name for turn in known.turns if turn.name.startswith("t-")] if known is not None else []
    body: Json = {"session_id": session, "turns": []}
    for text in texts:
        turn: Json = {"role": visit.draw.choice(("user", "assistant")), "content": text}
        if visit.chance(0.1):
            taken = {other.get("id") for other in body["turns"]}
            name = visit.draw.choice(names) if names and visit.chance(0.4) else f"t-{text.rpartition(' ')[2]}"
            turn |= {} if name in taken else {"id": name}
        if visit.chance(0.1):
            turn["said_at"] = store.clock.written(visit.now - visit.draw.randrange(1, 40) - visit.fraction)
        body["turns"].append(turn)
    body |= named(workspace=workspace)
    if visit.chance(0.15):
        body["infer"] = False
    is_stale = visit.build_on(session, body)
    visit.note(body)
    key = f"walk-{visit.now}-{visit.mark()}"
    status, answer = await store.ask(who, "POST", "/v1/write", body, key)
    if who.scope == "user" and not who.user:
        equal("status", status, 400)
        return
    if is_stale:
        equal("status", status, 410)
        return
    equal("status is 2xx", status // 100, 2)
    row = visit.memory.open(place, who.scope, visit.now)
    said = visit.now - visit.waited(body)
    before = row.turns[-1].said if row.turns and row.turns[-1].seq == row.last_seq else said
    if "queued_seconds" in body and said < before <= min(said + ON_THE_WAY, visit.now):
        said = before
    turns = [
        Turn(
            place, 0, turn["content"], max(1, store.counter.count(turn["content"])),
            said if "said_at" not in turn else store.clock.steps(turn["said_at"]) or 0.0,
            visit.now, body.get("infer", True), turn.get("id", ""),
        )
        for turn in body["turns"]
    ]  # fmt: skip
    last = row.last_seq
    equal("seqs", answer["seqs"], visit.memory.append(row, turns, visit.now))
    is_scheduled = RULES.after_append(row) if row.last_seq > last else False
    equal("scheduled", answer["scheduled"], row.last_seq > last)
    equal("jobs", len(answer["jobs"]) > 1, is_scheduled)
    store.jobs |= dict.fromkeys(answer["jobs"], (who, workspace, session))
    visit.know(session, answer)
    store.sent[who] = (visit.now, key, body, answer, len(visit.memory.erasures))


def _turn_text(visit: Visit, workspace: str) -> str:
    choice = visit.draw.random()
    if choice < 0.2:
        return f"I like {visit.draw.choice(('steam', 'toy'))} trains of {visit.mark()}"
    known = visit.memory.facts_under(visit.who.scope, visit.memory.owner(visit.who, visit.who.scope, "s1", workspace))
    if choice < 0.3 and (boat := visit.boat(known)) is not None:
        return f"Noted: {boat}"
    liked = [fact.text.removeprefix("The user likes ") for fact in known if "likes" in fact.text]
    if choice < 0.4 and liked:
        return f"I like {visit.draw.choice(liked)}, still so in {visit.mark()}"
    return visit.text("said")


async def repeat(visit: Visit) -> None:
    """Send the last write again."""
    if visit.who not in visit.store.sent:
        return
    step, key, body, answer, erasures = visit.store.sent[visit.who]
    too_old = (visit.now - step) * TICK > timedelta(hours=23)
    place = visit.place(body["session_id"], "")
    if too_old or any(erasure.names(place) for erasure, _ in visit.memory.erasures[erasures:]):
        return
    equal("repeated", (await visit.store.ask(visit.who, "POST", "/v1/write", body, key))[1], answer)


def labels_body(visit: Visit, *, plain: bool) -> Json:
    """Draw what is given with a fact."""
    if plain or visit.chance(0.5):
        return {}
    drawn: Json = {
        "kind": visit.draw.choice(KINDS),
        "category": visit.draw.choice(CATEGORIES),
        "tags": visit.draw.sample(TAGS, visit.draw.randint(1, 2)),
        "evidence": f"evidence {visit.mark()}",
        "importance": visit.draw.choice((0.25, 0.75)),
        "pinned": True,
        "attributes": {"boat": visit.mark()},
        "expires_at": visit.store.clock.written(visit.now + visit.draw.choice((-2, 3, 30, 300)) + SOON),
    }
    return {name: value for name, value in drawn.items() if visit.chance(0.3)}


def saying_of(visit: Visit, body: Json, place: Place, waited: float = 0.0) -> Saying:
    """Return the statement of a body."""
    clock, now = visit.store.clock, visit.now
    given = clock.steps(body.get("said_at"))
    said = now - waited if given is None else min(given, now)
    rank = min(said + ON_THE_WAY, now) if waited and given is None else said
    labels = {**NO_LABELS, **{name: body[name] for name in NO_LABELS if name in body}}
    labels["expires_at"] = clock.steps(labels["expires_at"])
    return Saying(body["text"], place, said, rank, body.get("key"), body.get("dedupe_key"), labels)


def _new_fact(visit: Visit, session: str, *, may_be_labelled: bool = True) -> tuple[Json, str, Place]:
    """Return a body with its scope and its owner: a new fact, one that is known already, or one under a label."""
    who, workspace = visit.who, visit.workspace()
    scope = visit.draw.choice((who.scope, who.scope, "session"))
    owner = visit.memory.owner(who, scope, session, workspace)
    known = visit.memory.facts_under(scope, owner)
    body: Json = {"text": visit.text("fact"), "scope": scope}
    choice = visit.draw.choices(("new", "known", "boat", "keyed", "deduped"), (40, 20, 10, 20, 10))[0]
    boat = visit.boat(known)
    if choice == "known" and known:
        body["text"] = visit.draw.choice(known).text
    elif choice == "boat" and boat is not None:
        body["text"] = boat
    elif choice in ("keyed", "deduped") and may_be_labelled:
        body |= {"key": visit.draw.choice(KEYS)} if choice == "keyed" or visit.chance(0.2) else {}
        body |= {"dedupe_key": visit.draw.choice(DEDUPE_KEYS)} if choice == "deduped" or visit.chance(0.2) else {}
    body |= labels_body(visit, plain="boat is" in body["text"])
    if visit.chance(0.1):
        body["said_at"] = visit.store.clock.written(visit.now - visit.draw.randrange(1, 40) - visit.fraction)
    return body | named(session_id=session, workspace=workspace), scope, owner


def _is_refused(visit: Visit, scope: str, session: str) -> bool:
    return (scope == "session" and not session) or (scope == "user" and not visit.who.user)


def _has_expired(visit: Visit, body: Json, waited: float = 0.0) -> bool:
    expires = visit.store.clock.steps(body.get("expires_at"))
    return expires is not None and expires <= visit.now - waited


async def remember(visit: Visit) -> None:
    """Save a new fact, one that its owner knows already, or one under a key."""
    session = visit.session(or_none=True)
    body, scope, owner = _new_fact(visit, session)
    is_stale = visit.build_on(session, body)
    await save_there(visit, session, body, scope, owner, is_stale=is_stale)


async def save_there(
    visit: Visit, session: str, body: Json, scope: str, owner: Place, *, is_stale: bool = False
) -> Fact | None:
    """Save a fact and return it, if it is taken."""
    visit.note(body)
    status, answer = await visit.change("POST", "/v1/facts", body)
    if _is_refused(visit, scope, session):
        equal("status", status, 400)
        return None
    if is_stale:
        equal("status", status, 410)
        return None
    waited = visit.waited(body)
    if _has_expired(visit, body, waited):
        equal("status", status, 422)
        return None
    saying = saying_of(visit, body, visit.place(session, body.get("workspace", "")), waited)
    if decide(visit.memory, scope, owner, saying, visit.now)[0] == "refused":
        equal("status", status, 403)
        return None
    equal("status", status, 201)
    visit.know(session, answer)
    return _saved(visit, scope, owner, saying, answer)


def _saved(visit: Visit, scope: str, owner: Place, saying: Saying, answer: Json) -> Fact:
    action, fact = save(visit.memory, scope, owner, saying, now=visit.now, fact_id=answer["id"])
    equal("action", (answer["action"], answer["id"], answer["text"]), (action, fact.id, fact.text))
    return fact


async def remember_batch(visit: Visit) -> None:
    """Save up to four facts, all or none."""
    session = visit.session(or_none=True)
    facts: list[tuple[Json, str, Place]] = []
    for _ in range(visit.draw.randint(1, 4)):
        has_label = any("key" in body or "dedupe_key" in body for body, _, _ in facts)
        fact = _new_fact(visit, session, may_be_labelled=not has_label)
        if not ("boat is" in fact[0]["text"] and any("boat is" in body["text"] for body, _, _ in facts)):
            facts.append(fact)
    body: Json = {"facts": [fact for fact, _, _ in facts]}
    is_stale = visit.build_on(session, body, may_wait=False)
    visit.note(body)
    status, answer = await visit.change("POST", "/v1/facts/batch", body)
    if any(_is_refused(visit, scope, session) for _, scope, _ in facts):
        equal("status", status, 400)
        return
    if is_stale:
        equal("status", status, 410)
        return
    places = [visit.place(session, fact.get("workspace", "")) for fact, _, _ in facts]
    sayings = [saying_of(visit, fact, place) for (fact, _, _), place in zip(facts, places, strict=True)]
    for (fact, scope, owner), saying in zip(facts, sayings, strict=True):
        if _has_expired(visit, fact):
            equal("status", status, 422)
            return
        if decide(visit.memory, scope, owner, saying, visit.now)[0] == "refused":
            equal("status", status, 403)
            return
    equal("status", status, 201)
    visit.know(session, answer)
    for (_, scope, owner), saying, one in zip(facts, sayings, answer["facts"], strict=True):
        _saved(visit, scope, owner, saying, one)


STEPS = {write: 28.0, repeat: 2.0, remember: 14.0, remember_batch: 4.0}
