"""Steps in which several ask at once: what comes of it has to come of some order of theirs."""

from __future__ import annotations

import asyncio
import itertools
import random

from tests.faults.walk import erasing, reading, sessions, writing
from tests.faults.walk.correcting import history_of
from tests.faults.walk.memory import Erasure, Turn
from tests.faults.walk.statements import Saying, save
from tests.faults.walk.store import IDENTITIES, RULES, Json, equal
from tests.faults.walk.visit import Visit, named

_STEPS = (
    writing.write, writing.write, writing.remember, writing.remember_batch, reading.recall, reading.list_scope,
    sessions.read_session, erasing.forget_session, erasing.forget_own,
)  # fmt: skip
_SHARE_NOTHING = ("private-0", "private-1", "private-2", "private-3", "private-4", "open", "passing")


async def crowd(visit: Visit) -> None:
    """Have agents and users who share nothing write, read and erase at once."""
    size = visit.draw.randint(2, 5)
    agents = visit.draw.sample(_SHARE_NOTHING, size)
    users = visit.draw.sample(("", "ada", "ben", "cleo", "dan"), size)
    members = [who for who in IDENTITIES if (who.agent, who.user) in set(zip(agents, users, strict=True))]
    visit.at_once.add(visit.now)
    visits = []
    for number, who in enumerate(members):
        member = visit.by(who)
        member.draw = random.Random(visit.draw.random())
        member.numbers = itertools.count(100 * (number + 1))
        member.note(f"{who.agent} for {who.user or 'nobody'}:")
        visits.append(member)
    await asyncio.gather(*(visit.draw.choice(_STEPS)(member) for member in visits))


async def talk_at_once(visit: Visit) -> None:
    """Have one session written to several times at once."""
    session, workspace = visit.session(), visit.workspace()
    place, who = visit.place(session, workspace), visit.who
    texts = [[visit.text("said") for _ in range(visit.draw.randint(1, 2))] for _ in range(3)]
    visit.note((session, workspace, texts))
    answers = await asyncio.gather(
        *(visit.ask("POST", "/v1/write", _turns(session, workspace, some)) for some in texts)
    )
    if who.scope == "user" and not who.user:
        equal("statuses", [status for status, _ in answers], [400] * 3)
        return
    equal("statuses", [status for status, _ in answers], [202] * 3)
    row = visit.memory.open(place, who.scope, visit.now)
    for (_, answer), some in sorted(zip(answers, texts, strict=True), key=lambda one: one[0][1]["seqs"][0]):
        equal("seqs", answer["seqs"], visit.memory.append(row, _as_turns(visit, place, some), visit.now))
        RULES.after_append(row)


def _turns(session: str, workspace: str, texts: list[str]) -> Json:
    return {"session_id": session, "turns": [{"role": "user", "content": text} for text in texts]} | named(
        workspace=workspace
    )


def _as_turns(visit: Visit, place: object, texts: list[str], made: float | None = None) -> list[Turn]:
    when = visit.now if made is None else made
    counter = visit.store.counter
    return [Turn(place, 0, text, max(1, counter.count(text)), visit.now, when) for text in texts]  # type: ignore[arg-type]


async def agree_at_once(visit: Visit) -> None:
    """Have agents of several users say the same at once to all: it is one fact."""
    members = visit.draw.sample([who for who in IDENTITIES if who.scope == "shared"], 4)
    workspace = visit.workspace()
    text = visit.text("fact")
    visit.note((text, [(who.agent, who.user) for who in members]))
    body = {"text": text} | named(workspace=workspace)
    answers = await asyncio.gather(*(visit.by(who).ask("POST", "/v1/facts", body) for who in members))
    equal("statuses", [status for status, _ in answers], [201] * 4)
    found = sorted(zip(answers, members, strict=True), key=lambda one: one[0][1]["action"])
    for (_, answer), who in found:
        member = visit.by(who)
        saying = writing.saying_of(visit, body, member.place("", workspace))
        owner = visit.memory.owner(who, "shared", "", workspace)
        action, fact = save(visit.memory, "shared", owner, saying, now=visit.now, fact_id=answer["id"])
        equal("action", (answer["action"], answer["id"]), (action, fact.id))
    # Who said it again said it later or earlier by moments: a change that the lists have no time for.
    _, item = await visit.by(members[0]).ask("GET", f"/v1/facts/{fact.id}")
    _, history = await visit.by(members[0]).ask("GET", f"/v1/facts/{fact.id}/history")
    again = item["revision"] - fact.revision
    equal("history", history_of(history), [("added", text), *[("restated", None)] * again])
    for _ in range(again):
        fact.note("restated", None, None, visit.now)


async def insist_at_once(visit: Visit) -> None:
    """Have one key saved several times at once: one of the values holds, and the history has those before it."""
    session, workspace, who = visit.session(), visit.workspace(), visit.who
    owner = visit.memory.owner(who, who.scope, session, workspace)
    known = [fact for fact in visit.memory.facts_under(who.scope, owner) if fact.is_active and fact.key == "city"]
    texts = [visit.text("fact") for _ in range(3)]
    bodies = [{"text": text, "key": "city"} | named(session_id=session, workspace=workspace) for text in texts]
    visit.note(bodies)
    answers = await asyncio.gather(*(visit.ask("POST", "/v1/facts", body) for body in bodies))
    refused = 400 if who.scope == "user" and not who.user else 0
    if known and who.scope == "shared" and known[0].writer != who.agent:
        refused = 403
    if refused:
        equal("statuses", [status for status, _ in answers], [refused] * 3)
        return
    equal("statuses", [status for status, _ in answers], [201] * 3)
    _, history = await visit.ask("GET", f"/v1/facts/{answers[0][1]['id']}/history")
    told = [text for _, text in history_of(history) if text in texts]
    for text in told:
        saying = Saying(text, visit.place(session, workspace), visit.now, visit.now, "city")
        save(visit.memory, who.scope, owner, saying, now=visit.now, fact_id=answers[0][1]["id"])
    visit.memory.ghosts += [text for text in texts if text not in told]
    fact = visit.memory.fact(answers[0][1]["id"])
    assert fact is not None
    equal("history", history_of(history), [line[:2] for line in fact.lines])
    for text, (_, answer) in zip(texts, answers, strict=True):
        is_told = answer["action"] in ("added", "replaced")
        equal("action", (answer["id"], is_told), (fact.id, text in told))


async def forget_while_written(visit: Visit) -> None:
    """Have a session forgotten and written to at once: either of them was first."""
    session, who = visit.session(), visit.who
    place = visit.place(session, "")
    text = visit.text("said")
    visit.note((session, text))
    forget = {"scope": "session", "session_id": session, "confirm": True}
    (written, _), (forgotten, receipt) = await asyncio.gather(
        visit.ask("POST", "/v1/write", _turns(session, "", [text])), visit.ask("POST", "/v1/forget", forget)
    )
    equal("statuses", (written, forgotten), (400 if who.scope == "user" and not who.user else 202, 200))
    erasure = Erasure("session", *who.pair, session)
    status, _ = await visit.ask("GET", f"/v1/sessions/{session}/turns")

    def append(made: float) -> None:
        row = visit.memory.open(place, who.scope, made)
        visit.memory.append(row, _as_turns(visit, place, [text], made), made)
        RULES.after_append(row)

    is_last = written == 202 and status == 200
    if written == 202 and not is_last:
        append(visit.now)
    expected = visit.memory.erase(erasure, visit.now)
    equal("erased", {name: receipt["erased"][name] for name in expected}, expected)
    if is_last:
        append(visit.now + 0.01)


STEPS = {
    crowd: 3.0, talk_at_once: 1.0, agree_at_once: 0.7, insist_at_once: 0.7, forget_while_written: 0.7
}  # fmt: skip
