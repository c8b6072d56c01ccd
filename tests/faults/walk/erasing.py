"""Steps that erase, and their receipts."""

from __future__ import annotations

from tests.faults.walk.memory import Erasure
from tests.faults.walk.store import AGENT_PREFIX, Json, equal
from tests.faults.walk.visit import Visit


async def forget_session(visit: Visit) -> None:
    """Forget a session."""
    session = visit.session()
    body: Json = {"scope": "session", "session_id": session, "confirm": True}
    await _erase(visit, "/v1/forget", body, Erasure("session", *visit.who.pair, session))


async def forget_own(visit: Visit) -> None:
    """Forget what the binding's own scope holds."""
    who = visit.who
    refused = {"shared": 403, "session": 400, "user": 0 if who.user else 400}.get(who.scope, 0)
    if refused:
        status, _ = await visit.change("POST", "/v1/forget", {"confirm": True})
        equal("status", status, refused)
        return
    erasure = Erasure("principal", user=who.user) if who.scope == "user" else Erasure("pair", *who.pair)
    await _erase(visit, "/v1/forget", {"confirm": True}, erasure)


async def admin_erase(visit: Visit) -> None:
    """Erase a subject as the admin, or try to as an agent."""
    who, session = visit.who, visit.session()
    kind = visit.draw.choice(("session", "agent", "principal") if who.user else ("session", "agent"))
    subject: Json = {"agent": f"{AGENT_PREFIX}{who.agent}"}
    erasure = Erasure("agent", who.agent)
    if kind == "session":
        subject |= {"session": session, **({"principal": f"local#{who.user}"} if who.user else {})}
        erasure = Erasure("session", *who.pair, session)
    elif kind == "principal":
        subject, erasure = {"principal": f"local#{who.user}"}, Erasure("principal", user=who.user)
    if visit.chance(0.2):
        status, _ = await visit.ask("POST", "/v1/admin/erase", {"subject": subject})
        equal("status", status, 403)
        return
    await _erase(visit, "/v1/admin/erase", {"subject": subject}, erasure)


async def _erase(visit: Visit, path: str, body: Json, erasure: Erasure) -> None:
    visit.note(erasure)
    is_admins = path.startswith("/v1/admin")
    if is_admins:
        status, answer = await visit.store.ask(None, "POST", path, body)
    else:
        status, answer = await visit.change("POST", path, body)
    equal("status", status, 200)
    expected = visit.memory.erase(erasure, visit.now)
    equal("erased", {name: answer["erased"][name] for name in expected}, expected)
    visit.store.receipts.append((None if is_admins else visit.who, answer["receipt_id"], answer["erased"]))


async def read_receipt(visit: Visit) -> None:
    """Ask for a receipt, one's own or another's."""
    if not visit.store.receipts:
        return
    asker, receipt, erased = visit.draw.choice(visit.store.receipts[-10:])
    reader = visit.draw.choice((visit.who, asker, None))
    status, answer = await visit.store.ask(reader, "GET", f"/v1/receipts/{receipt}")
    if reader is not None and (asker is None or asker.pair != reader.pair):
        equal("status", status, 404)
        return
    equal("status", status, 200)
    equal("receipt", answer["erased"], erased)


STEPS = {forget_session: 1.8, forget_own: 1.3, admin_erase: 0.7, read_receipt: 1.5}
