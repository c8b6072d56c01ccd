"""Steps on conversations and their jobs."""

from __future__ import annotations

from tests.faults.walk.memory import EXTRACT, FOLD, MOVED, Place, Session
from tests.faults.walk.store import RULES, Json, equal
from tests.faults.walk.visit import Visit, named


async def read_turns(visit: Visit) -> None:
    """Read every turn of a session."""
    await whole_session(visit, visit.place(visit.session(), visit.workspace()))


async def whole_session(visit: Visit, place: Place) -> None:
    """Compare every turn of a session of the caller."""
    row = visit.memory.sessions.get(place)
    found: list[tuple[int, str, str]] = []
    after: int | None = 0
    while after is not None:
        path = f"/v1/sessions/{place.session}/turns"
        status, answer = await visit.ask("GET", path, workspace=place.workspace, after=after, limit=50)
        if row is None:
            equal("status", status, 404)
            return
        equal("status", status, 200)
        found += [(turn["seq"], turn["content"], _name(turn)) for turn in answer["turns"]]
        after = answer["next_after"]
    assert row is not None
    equal("turns", found, [(turn.seq, turn.text, turn.name) for turn in row.turns])


def _name(turn: Json) -> str:
    """Return a turn's id as its writer gave it; one that an import gave is told as such."""
    name = str(turn["id"] or "")
    return MOVED if name.startswith(MOVED) else name


def summary_of(session: Json) -> Json:
    """Return what is said of a session."""
    names = ("session_id", "last_seq", "turns", "tokens", "digest_version")
    return {name: session[name] for name in names} | {"has_ended": session["ended_at"] is not None}


def summary_expected(row: Session) -> Json:
    """Return what has to be said of a session."""
    return {
        "session_id": row.place.session,
        "last_seq": row.last_seq,
        "turns": len(row.unfolded),
        "tokens": row.tokens,
        "digest_version": row.version,
        "has_ended": row.has_ended,
    }


async def read_session(visit: Visit) -> None:
    """Look at a session with its window and its digests."""
    await session_detail(visit, visit.place(visit.session(), visit.workspace()))


async def session_detail(visit: Visit, place: Place) -> None:
    """Compare a session of the caller with its window and its digests."""
    row = visit.memory.sessions.get(place)
    status, answer = await visit.ask("GET", f"/v1/sessions/{place.session}", workspace=place.workspace)
    if row is None:
        equal("status", status, 404)
        return
    equal("status", status, 200)
    equal("session", summary_of(answer["session"]), summary_expected(row))
    window = [turn.text for turn in row.window(RULES.budget)]
    equal("window", [turn["content"] for turn in answer["window"]], window)
    found = [(digest["version"], digest["summary"], digest["upto_seq"]) for digest in answer["digests"]]
    equal("digests", found, [(digest.version, digest.text, digest.upto) for digest in reversed(row.digests)])


async def list_sessions(visit: Visit) -> None:
    """List one's sessions of a workspace, in pages."""
    workspace, limit = visit.workspace(), visit.draw.choice((1, 2, 1000))
    found: dict[str, Json] = {}
    cursor = ""
    while cursor is not None:
        status, answer = await visit.ask("GET", "/v1/sessions", workspace=workspace, cursor=cursor, limit=limit)
        equal("status", status, 200)
        found |= {one["session_id"]: summary_of(one) for one in answer["sessions"]}
        cursor = answer["next_cursor"]
    rows = [row for row in visit.memory.sessions.values() if row.place == visit.place(row.place.session, workspace)]
    equal("sessions", found, {row.place.session: summary_expected(row) for row in rows})


async def _act(visit: Visit, action: str, *kinds: str) -> Session | None:
    """Ask for a session's work; return the session with the jobs it has then, if it is there."""
    session, workspace = visit.session(), visit.workspace()
    row = visit.memory.sessions.get(visit.place(session, workspace))
    visit.note((session, workspace))
    body = named(workspace=workspace) or (None if visit.chance(0.5) else {})
    status, answer = await visit.change("POST", f"/v1/sessions/{session}/{action}", body)
    if row is None:
        equal("status", status, 404)
        return None
    wanted = [kind for kind in kinds if _is_wanted(row, kind)]
    for kind in wanted:
        if kind in (FOLD, EXTRACT):
            row.enqueue(kind, forced=True)
        else:
            row.is_to_index = True
    found = (status, answer["scheduled"], len(answer["jobs"]), answer["busy"])
    equal("action", found, (202 if wanted else 200, bool(wanted), len(wanted), False))
    visit.store.jobs |= dict.fromkeys(answer["jobs"], (visit.who, workspace, session))
    return row


def _is_wanted(row: Session, kind: str) -> bool:
    match kind:
        case "fold":
            return row.tokens > RULES.target
        case "extract":
            return row.last_seq > row.extracted
    return True


async def end_session(visit: Visit) -> None:
    """End a session."""
    row = await _act(visit, "end", EXTRACT)
    if row is not None:
        row.has_ended = True


async def flush_session(visit: Visit) -> None:
    """Index and extract what waits."""
    await _act(visit, "flush", "index_turns", EXTRACT)


async def compact_session(visit: Visit) -> None:
    """Fold a window down to its target."""
    await _act(visit, "compact", FOLD)


async def list_jobs(visit: Visit) -> None:
    """List one's jobs that wait or that failed, in pages."""
    workspace, session = visit.workspace(), visit.session(or_none=True)
    state = visit.draw.choice(("queued", "dead"))
    limit = visit.draw.choice((2, 1000))
    found: list[tuple[str, str]] = []
    cursor = ""
    while cursor is not None:
        status, answer = await visit.ask(
            "GET", "/v1/jobs", workspace=workspace, session_id=session, state=state, cursor=cursor, limit=limit
        )
        equal("status", status, 200)
        found += [(job["kind"], job["session_id"]) for job in answer["jobs"]]
        visit.store.jobs |= {job["id"]: (visit.who, workspace, job["session_id"]) for job in answer["jobs"]}
        cursor = answer["next_cursor"]
    expected = [
        (kind, row.place.session)
        for row in visit.memory.sessions.values()
        if row.place == visit.place(session or row.place.session, workspace)
        for kind in (row.queued if state == "queued" else row.dead)
    ]
    equal("jobs", sorted(job for job in found if job[0] in (FOLD, EXTRACT)), sorted(expected))


async def retry_job(visit: Visit) -> None:
    """Look at a job and put it back, one's own or another's."""
    if not visit.store.jobs:
        return
    job_id = visit.draw.choice(list(visit.store.jobs)[-40:])
    whose, workspace, session = visit.store.jobs[job_id]
    if visit.chance(0.2) and visit.who.pair != whose.pair:
        statuses = [(await visit.ask(*asked))[0] for asked in (("GET", f"/v1/jobs/{job_id}"), _retry(job_id))]
        equal("status", statuses, [404, 404])
        return
    visit.note((whose.agent, whose.user, workspace, session, job_id))
    status, job = await visit.by(whose).ask("GET", f"/v1/jobs/{job_id}")
    again, _ = await visit.by(whose).change(*_retry(job_id))
    if status == 404:
        equal("status", again, 404)
        return
    equal("job", (status, job["session_id"]), (200, session))
    if job["state"] != "dead":
        equal("status", again, 409)
        return
    equal("status", again, 202)
    row = visit.memory.sessions[Place(*whose.pair, session, workspace)]
    row.enqueue(job["kind"], forced=row.dead.pop(job["kind"]))


def _retry(job_id: str) -> tuple[str, str]:
    return "POST", f"/v1/jobs/{job_id}/retry"


STEPS = {
    read_turns: 4.0, read_session: 4.0, list_sessions: 2.0, end_session: 1.0, flush_session: 1.0, compact_session: 1.5,
    list_jobs: 2.0, retry_job: 1.5,
}  # fmt: skip
