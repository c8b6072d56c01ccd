"""Every verb of the library, asynchronous and blocking, meets every fault: in its time, once, and as the page says.

The verbs are what the library has: one that is added needs its arguments here.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from memory_service.client import Deadlines, MemoryClient, ServiceUnavailable, SyncMemoryClient, UnavailableReason
from memory_service.client.breaker import Breaker
from memory_service.client.calls import Verbs
from memory_service.contract.verbs import Outcome
from tests.fakes.memory_server import MemoryServer, hang, problem, trickle
from tests.integration.client.conftest import MakeClient
from tests.integration.client.test_outages import FAULTS, TURN, Clock

ID = "00000000-0000-4000-8000-000000000001"
ARGUMENTS: Mapping[str, tuple[Any, ...]] = {
    "recall": ("q",), "write": ("s1", [TURN]), "remember": ("a fact",), "list": (), "forget": (), "facts.get": (ID,),
    "facts.patch": (ID,), "facts.delete": (ID,), "facts.list": (), "facts.batch": ([{"text": "a fact"}],),
    "facts.history": (ID,), "facts.supersede": (ID, "another"), "sessions.list": (), "sessions.get": ("s1",),
    "sessions.turns": ("s1",), "sessions.end": ("s1",), "sessions.compact": ("s1",), "sessions.flush": ("s1",),
    "jobs.list": (), "jobs.get": (ID,), "jobs.retry": (ID,), "receipts.get": (ID,), "health.live": (),
    "health.ready": (), "health.report": (), "admin.erase": (), "admin.list": (), "admin.diagnostics": (),
    "admin.replay": (), "admin.export_page": (), "admin.import_lines": ([{"type": "principal"}],),
}  # fmt: skip
NAMED: Mapping[str, dict[str, Any]] = {
    "forget": {"session_id": "s1"},
    "facts.patch": {"text": "corrected"},
    "admin.erase": {"principal": "local#ada"},
}
SOFT: Mapping[str, Callable[[Any], bool]] = {
    "recall": lambda found: found.outcome is Outcome.UNAVAILABLE and found.degraded[0].part == "service",
    "write": lambda found: found.status == "queued",
    "remember": lambda found: found.status == "queued",
    "forget": lambda found: found.status == "not_erased",
    "sessions.end": lambda found: not found.scheduled and bool(found.degraded),
    "sessions.compact": lambda found: not found.scheduled and bool(found.degraded),
    "sessions.flush": lambda found: not found.scheduled and bool(found.degraded),
    "health.live": lambda found: found is False,
    "health.ready": lambda found: found is False,
}
"""What never raises under soft, and what it says of an outage. All else raises `ServiceUnavailable`."""
AMPLE = Deadlines(recall=1, write=1, other=1, admin=1)
AT_ONCE = 8
"""So many calls reach the fault in their time, on a busy machine too."""
ENDLESS = (hang, trickle)
OF_THE_OUTBOX = {"deliver", "adopt", "aclose"}


def _verbs(client: MemoryClient | SyncMemoryClient) -> dict[str, Callable[[], Any]]:
    """Return a call of every verb by its name."""
    found = {}
    for name in ARGUMENTS:
        method: Any = client
        for part in name.split("."):
            method = getattr(method, part)
        found[name] = lambda name=name, method=method: method(*ARGUMENTS[name], **NAMED.get(name, {}))
    return found


def test_no_verb_of_the_library_is_left_out() -> None:
    def coroutines(of: object) -> set[str]:
        return {name for name, _ in inspect.getmembers(of, inspect.iscoroutinefunction) if not name.startswith("_")}

    client = MemoryClient(outbox=None, env={})
    groups = {name: group for name, group in vars(client).items() if isinstance(group, Verbs) and name[0] != "_"}
    verbs = coroutines(client) | {f"{name}.{verb}" for name, group in groups.items() for verb in coroutines(group)}
    assert verbs - OF_THE_OUTBOX == set(ARGUMENTS)


@pytest.mark.parametrize("is_blocking", [False, True], ids=["asynchronous", "blocking"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_every_verb_ends_in_its_time_and_says_what_became_of_it(
    fault: Any, is_blocking: bool, server: MemoryServer, make_client: MakeClient, tmp_path: Path
) -> None:
    server.always = fault

    def made(name: str) -> dict[str, Any]:
        clock = Clock()  # it stands still, so that each call is given its whole time, however busy the machine is
        return {"deadlines": AMPLE, "outbox": tmp_path / name, "clock": clock, "breaker": Breaker(clock=clock)}

    def block(name: str) -> Any:
        options = {**made(name), "env": {}, "binding_folder": tmp_path / "none"}
        with SyncMemoryClient(server.url, **options) as client:
            return _verbs(client)[name]()

    turns = asyncio.Semaphore(AT_ONCE)

    async def ask(name: str) -> Any:
        async with turns:
            if is_blocking:
                return await asyncio.to_thread(block, name)
            return await _verbs(make_client(**made(name)))[name]()

    ends = dict(
        zip(ARGUMENTS, await asyncio.gather(*(ask(name) for name in ARGUMENTS), return_exceptions=True), strict=True)
    )
    for name, end in ends.items():
        says_so = SOFT.get(name, lambda end: isinstance(end, ServiceUnavailable))
        assert says_so(end), f"{name}: {end!r}"
        if fault in ENDLESS and not isinstance(end, bool):
            # The fault itself ends after half a minute, and differently.
            assert _reason(end) is UnavailableReason.TIMEOUT, f"{name}: {end!r}"
            assert not isinstance(end, ServiceUnavailable) or "within 1 s" in end.detail, f"{name}: {end!r}"


class Silence(httpx.AsyncBaseTransport):
    """A service that lets every call use up its time, at once."""

    def __init__(self) -> None:
        self.asked = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        raise httpx.ReadTimeout("no answer", request=request)


@pytest.mark.parametrize("name", ARGUMENTS)
async def test_one_timeout_of_any_verb_opens_the_breaker_for_all(name: str, make_client: MakeClient) -> None:
    clock, silence = Clock(), Silence()
    client = make_client(clock=clock, breaker=Breaker(clock=clock), transport=silence, outbox=None)
    assert _reason(await _end(client, name)) in (UnavailableReason.TIMEOUT, None)
    ends = {other: await _end(client, other) for other in ARGUMENTS if other not in SOFT or other == "recall"}
    assert {_reason(end) for end in ends.values()} == {UnavailableReason.BREAKER_OPEN}
    assert silence.asked == 1, "a verb was sent although the breaker was open"


@pytest.mark.parametrize("name", ARGUMENTS)
async def test_retry_after_of_any_verb_holds_back_all_verbs_at_503_and_itself_alone_at_429(
    name: str, server: MemoryServer, make_client: MakeClient
) -> None:
    for status, kind, sent in ((503, "overloaded", 1), (429, "quota-exceeded", 2)):
        clock = Clock()
        client = make_client(clock=clock, breaker=Breaker(clock=clock), outbox=None)
        server.requests.clear()
        server.faults.append(problem(status, kind, Retry_After="200"))
        await _end(client, name)
        clock.now += 199
        await _end(client, name)
        assert len(server.requests) == 1, "it was asked again before its time"
        other = "jobs.get" if name == "recall" else "recall"
        await _end(client, other)
        assert len(server.requests) == sent
        clock.now += 2
        await _end(client, name)
        assert len(server.requests) == sent + 1, "it was not asked again in its time"


async def _end(client: MemoryClient, name: str) -> Any:
    """Return a verb's answer or what it raised."""
    (end,) = await asyncio.gather(_verbs(client)[name](), return_exceptions=True)
    return end


def _reason(end: Any) -> UnavailableReason | None:
    """Return the reason that an outage is given."""
    if isinstance(end, ServiceUnavailable):
        return end.reason
    degraded = getattr(end, "degraded", ())
    return UnavailableReason(degraded[0].reason) if degraded else None
