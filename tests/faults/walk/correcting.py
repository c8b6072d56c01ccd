"""Steps on one fact that is named by its id: read, correct, supersede and delete it."""

from __future__ import annotations

from tests.faults.walk.memory import Fact
from tests.faults.walk.statements import add, correct, subject, supersede
from tests.faults.walk.store import Json, equal
from tests.faults.walk.visit import Visit
from tests.faults.walk.writing import CATEGORIES, SOON, TAGS, labels_body, saying_of

A_STEP_TAKES = 0.3
"""How long a step may take, in steps: what is said in it may be said so much later."""
NOBODYS = "00000000-0000-4000-8000-000000000000"


def compare_item(visit: Visit, item: Json, fact: Fact) -> None:
    """Compare what a read says of a fact."""
    status = "active" if fact.is_active else "superseded"
    fields = {"id": fact.id, "text": fact.text, "scope": fact.scope, "key": fact.key, "superseded_by": fact.successor}
    expected = {**fields, **fact.labels, "status": status, "revision": fact.revision}
    del expected["expires_at"]
    equal("fact", {name: item[name] for name in expected}, expected)
    times = {
        "said_at": fact.said, "valid_from": fact.valid_from, "valid_to": fact.valid_to,
        "expires_at": fact.labels["expires_at"],
    }  # fmt: skip
    for name, at in times.items():
        found = visit.store.clock.steps(item[name])
        is_near = found is at if found is None or at is None else 0 <= found - at + 1e-6 <= A_STEP_TAKES
        equal(f"{name} is right", is_near or (found, at), True)


def _any_fact(visit: Visit) -> tuple[str, Fact | None]:
    """Draw the id of any fact of any store, and what this store has under it."""
    memory = visit.draw.choice((visit.memory, visit.memory, visit.other.memory))
    fact_id = visit.draw.choice(memory.facts).id if memory.facts else NOBODYS
    own = [fact for fact in visit.memory.facts[-200:] if fact.owner.agent == visit.who.agent]
    if own and visit.chance(0.5):
        fact_id = visit.draw.choice(own).id
    visit.note(fact_id)
    return fact_id, visit.memory.fact(fact_id)


async def read_fact(visit: Visit) -> None:
    """Read any fact and its history."""
    fact_id, _ = _any_fact(visit)
    await fact_by_id(visit, fact_id)


async def fact_by_id(visit: Visit, fact_id: str) -> None:
    """Compare a fact and its history."""
    fact = visit.memory.fact(fact_id)
    status, answer = await visit.ask("GET", f"/v1/facts/{fact_id}")
    history_status, history = await visit.ask("GET", f"/v1/facts/{fact_id}/history")
    if fact is None or not visit.memory.may_read(visit.who, fact):
        equal("status", (status, history_status), (404, 404))
        return
    equal("status", (status, history_status), (200, 200))
    compare_item(visit, answer, fact)
    equal("history", history_of(history), [line[:2] for line in fact.lines])


def history_of(answer: Json) -> list[tuple[str, str | None]]:
    """Return the events of a history and what the fact says since then."""
    return [(entry["event"], entry["text"]) for entry in answer["entries"]]


def _refusal(visit: Visit, fact: Fact | None) -> int:
    if fact is None or not visit.memory.may_read(visit.who, fact):
        return 404
    return 0 if visit.memory.may_change(visit.who, fact) else 403


async def patch_fact(visit: Visit) -> None:
    """Correct a fact, sometimes one that has changed meanwhile."""
    fact_id, fact = _any_fact(visit)
    drawn: Json = {"text": visit.text("corrected")}
    if fact is not None and not subject(fact.text):
        drawn |= {
            "category": visit.draw.choice((*CATEGORIES, None)),
            "tags": visit.draw.sample(TAGS, visit.draw.randint(0, 2)),
            "evidence": visit.draw.choice((f"evidence {visit.mark()}", None)),
            "importance": visit.draw.choice((0.5, None)),
            "pinned": visit.chance(0.3),
            "expires_at": visit.draw.choice(
                (visit.store.clock.written(visit.now + visit.draw.choice((5, 50)) + SOON), None)
            ),
        }
    fields = {name: value for name, value in drawn.items() if visit.chance(0.4)} or {"text": drawn["text"]}
    body = dict(fields)
    is_behind = False
    if fact is not None and visit.chance(0.4):
        is_behind = visit.chance(0.3)
        body["revision"] = fact.revision - is_behind
    visit.note(body)
    status, answer = await visit.change("PATCH", f"/v1/facts/{fact_id}", body)
    if refused := _refusal(visit, fact):
        equal("status", status, refused)
        return
    if is_behind:
        equal("status", status, 409)
        return
    assert fact is not None
    equal("status", status, 200)
    if "expires_at" in fields:
        fields["expires_at"] = visit.store.clock.steps(fields["expires_at"])
    correct(visit.memory, fact, fields, visit.now)
    compare_item(visit, answer, fact)


async def supersede_fact(visit: Visit) -> None:
    """Put another statement in a fact's place."""
    fact_id, fact = _any_fact(visit)
    body: Json = {"text": visit.text("instead"), **labels_body(visit, plain=visit.chance(0.3))}
    visit.note(body)
    status, answer = await visit.change("POST", f"/v1/facts/{fact_id}/supersede", body)
    if refused := _refusal(visit, fact):
        equal("status", status, refused)
        return
    assert fact is not None
    if not fact.is_active:
        equal("status", status, 409)
        return
    saying = saying_of(visit, body, visit.place(fact.owner.session, fact.owner.workspace))
    expires = saying.labels["expires_at"]
    if expires is not None and expires <= visit.now:
        equal("status", status, 422)
        return
    equal("status", (status, answer.get("action")), (201, "superseded"))
    visit.know("", answer)
    saying.key, saying.dedupe_key = fact.key, fact.dedupe_key
    supersede(fact, answer["id"], saying.said, visit.now)
    new = add(visit.memory, fact.scope, fact.owner, saying, now=visit.now, fact_id=answer["id"])
    compare_item(visit, answer, new)


async def delete_fact(visit: Visit) -> None:
    """Delete a fact."""
    fact_id, fact = _any_fact(visit)
    status, answer = await visit.change("DELETE", f"/v1/facts/{fact_id}")
    if refused := _refusal(visit, fact):
        equal("status", status, refused)
        return
    assert fact is not None
    equal("status", status, 200)
    expected = {"facts": 1, "vectors": 1, "history": len(fact.lines)}
    equal("erased", {name: answer["erased"][name] for name in expected}, expected)
    visit.memory.delete(fact)
    visit.store.receipts.append((visit.who, answer["receipt_id"], answer["erased"]))


STEPS = {read_fact: 5.0, patch_fact: 4.0, supersede_fact: 2.5, delete_fact: 2.5}
