"""A seeded walk of many identities over two stores, each answer compared with plain lists.

A step is a number: its own random numbers come from the seed and that number, and it acts on what is stored when it is
taken. So any selection of steps is a walk too, and a failing walk is made shorter by leaving steps out.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from starlette.types import ASGIApp, Message

from memory_service.api.app import create_app
from memory_service.bootstrap import Runtime
from memory_service.contract.config import (
    AuthMode,
    EmbeddingConfig,
    IdentityConfig,
    ModelsConfig,
    ServiceConfig,
    ShortTermConfig,
    StorageConfig,
)
from memory_service.contract.sessions import JobKind
from memory_service.ports.models import TokenCounter
from memory_service.ports.records import Vector
from memory_service.providers.health import ProviderState, StateRecorder
from memory_service.worker.loop import Worker
from tests.fakes.stores import MovableClock
from tests.faults.plain_memory import Erasure, Fact, Place, PlainMemory, Who

USERS = ("", "ada", "ben", "cleo", "dan")
AGENTS = (
    *(Who(f"private-{n}") for n in range(5)),
    Who("open", reads=("private",), shares=True),
    Who("personal", scope="user", reads=("user", "session")),
    Who("sharer-0", scope="shared", reads=("shared", "private")),
    Who("sharer-1", scope="shared", reads=("shared", "private")),
    Who("passing", scope="session", reads=("session",)),
)
IDENTITIES = tuple(Who(agent.agent, user, agent.scope, agent.reads, agent.shares) for agent in AGENTS for user in USERS)
SESSIONS = ("s1", "s2", "s3")
WORKSPACES = ("", "", "red", "blue")
KEYS = ("city", "boat")
WINDOW_TOKENS = 120
TICK = timedelta(seconds=100)
TOP_K = 100
DIMENSIONS = 64
WORK_EVERY, PURGE_EVERY, RESTART_EVERY = 25, 1_000, 1_500

Json = dict[str, Any]


class HashEmbedder:
    """Vectors that tell texts apart and know nothing about them."""

    model = "hash-of-text"
    dimension = DIMENSIONS

    def __init__(self, clock: MovableClock) -> None:
        self._recorder = StateRecorder(clock)

    @property
    def state(self) -> ProviderState:
        """It always works."""
        return self._recorder.state

    async def embed(self, texts: Sequence[str], *, urgent: bool = False) -> Sequence[Vector]:
        """Return a vector a text."""
        return [_vector(text) for text in texts]

    async def embed_query(self, text: str) -> Vector:
        """Return the vector of a query."""
        return _vector(text)

    async def warm(self) -> None:
        """There is nothing to load."""

    def forget_queries(self) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        """Nothing is open."""


def _vector(text: str) -> Vector:
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    values = np.random.default_rng(seed).standard_normal(DIMENSIONS).astype(np.float32)
    return values / np.linalg.norm(values)


class WrongAnswer(AssertionError):
    """A store did not answer as the lists do."""


@dataclass
class Store:
    """One service with its lists."""

    config: ServiceConfig
    clock: MovableClock
    memory: PlainMemory = field(default_factory=PlainMemory)
    receipts: list[tuple[Who | None, str, dict[str, int]]] = field(default_factory=list)
    generations: dict[tuple[Who, str], tuple[str, int]] = field(default_factory=dict)
    sent: dict[Who, tuple[int, str, Json, Json, int]] = field(default_factory=dict)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        """Start the service."""
        runtime = await self._stack.enter_async_context(Runtime(self.config, clock=self.clock))
        await runtime.wait_open()
        self.worker = Worker(runtime.services(), name="walk")
        self.counter: TokenCounter = runtime.services().counter
        self.app: ASGIApp = create_app(runtime)

    async def stop(self) -> None:
        """Stop the service."""
        await self._stack.aclose()
        self._stack = AsyncExitStack()

    async def ask(
        self, who: Who | None, method: str, path: str, body: Json | None = None, key: str = "", **query: Any
    ) -> tuple[int, Json]:
        """Return status and body of a request by a caller, or by the admin."""
        headers = [(b"host", b"127.0.0.1")]
        token = "admin-token" if who is None else f"{who.agent}-token"
        headers.append((b"authorization", f"Bearer {token}".encode()))
        if who is not None and who.user:
            headers.append((b"x-memplane-user", f"{who.user}-user-token".encode()))
        if key:
            headers.append((b"idempotency-key", key.encode()))
        content = b"" if body is None else json.dumps(body).encode()
        if body is not None:
            headers += [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        given = {name: value for name, value in query.items() if value not in ("", None)}
        return await _request(self.app, (method, path, urlencode(given)), headers, content)


async def _request(
    app: ASGIApp, target: tuple[str, str, str], headers: list[tuple[bytes, bytes]], content: bytes
) -> tuple[int, Json]:
    method, path, query = target
    waiting = iter(({"type": "http.request", "body": content, "more_body": False},))
    sent: list[Message] = []

    async def receive() -> Message:
        return next(waiting, {"type": "http.disconnect"})

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    status = next(message["status"] for message in sent if message["type"] == "http.response.start")
    text = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
    return status, json.loads(text or b"{}")


def tokens_file(folder: Path) -> Path:
    """Write the tokens of all identities and of the admin."""
    path = folder / "tokens.json"
    agents = [
        {
            "token": f"{who.agent}-token",
            "agent": f"kaos://agent/walk/{who.agent}",
            "scope": who.scope,
            "readScopes": list(who.reads),
            "shareAcrossUsers": who.shares,
        }
        for who in AGENTS
    ]
    users = [{"token": f"{user}-user-token", "principal": user} for user in USERS if user]
    path.write_text(json.dumps({"agents": agents, "users": users, "admins": [{"token": "admin-token"}]}))
    return path


def walk_config(storage: StorageConfig, tokens: Path) -> ServiceConfig:
    """Return the configuration of one store of a walk."""
    return ServiceConfig(
        storage=storage,
        models=ModelsConfig(
            embedding=EmbeddingConfig(url="http://127.0.0.1:9/v1", model="hash", dimensions=DIMENSIONS)
        ),
        identity=IdentityConfig(auth=AuthMode.STATIC, tokens_file=str(tokens)),
        short_term=ShortTermConfig(token_budget=WINDOW_TOKENS),
    )


Opener = Callable[[], AbstractAsyncContextManager[list["Store"]]]
"""Returns an asynchronous context of two empty stores that are started."""


@asynccontextmanager
async def started(configs: Iterable[ServiceConfig], clock: MovableClock) -> AsyncIterator[list[Store]]:
    """Start a store for each configuration."""
    stores = [Store(config, clock) for config in configs]
    try:
        for store in stores:
            await store.start()
        yield stores
    finally:
        for store in stores:
            await store.stop()


class Walk:
    """One walk over two stores."""

    def __init__(self, seed: int, stores: Sequence[Store]) -> None:
        self._seed = seed
        self._stores = stores
        self._clock = stores[0].clock
        self.tick = 0
        self.taken: list[str] = []
        self.kinds: dict[str, int] = {}

    async def take(self, number: int) -> None:
        """Take one step.

        Raises:
            WrongAnswer: a store did not answer as its lists do.
        """
        self.tick += 1
        self._clock.advance(TICK)
        draw = random.Random(f"{self._seed}-{number}")
        place = draw.randrange(len(self._stores))
        store, who = self._stores[place], draw.choice(IDENTITIES)
        if number % RESTART_EVERY == 0:
            await store.stop()
            await store.start()
        step = draw.choices(list(_STEPS), weights=list(_STEPS.values()))[0]
        self.kinds[step.__name__] = self.kinds.get(step.__name__, 0) + 1
        self.taken.append(f"{number}: store {place}, {who.agent} for {who.user or 'nobody'}: {step.__name__}")
        await step(self, store, who, draw)
        if number % WORK_EVERY == 0:
            await self._work(number)

    def _note(self, what: object) -> None:
        self.taken[-1] += f" {what}"

    async def _work(self, number: int) -> None:
        for store in self._stores:
            await store.worker.run_due((JobKind.INDEX_TURNS, JobKind.EMBED))
            for turn in store.memory.turns:
                turn.indexed = True
            if number % PURGE_EVERY == 0:
                await store.worker.run_due()

    # Writing ---------------------------------------------------------------------------------------------------------

    async def write(self, store: Store, who: Who, draw: random.Random) -> None:
        """Append one to three turns."""
        session, workspace = draw.choice(SESSIONS), draw.choice(WORKSPACES)
        place = Place(who.agent, who.user, session, workspace)
        texts = [self._text(draw, "said", n) for n in range(draw.randint(1, 3))]
        body: Json = {
            "session_id": session,
            "turns": [{"role": draw.choice(("user", "assistant")), "content": text} for text in texts],
        }
        if workspace:
            body["workspace"] = workspace
        is_stale = self._build_on(store, who, session, body, draw)
        self._note(body)
        key = f"walk-{self.tick}"
        status, answer = await store.ask(who, "POST", "/v1/write", body, key)
        if who.scope == "user" and not who.user:
            _equal("status", status, 400)
            return
        if is_stale:
            _equal("status", status, 410)
            return
        _equal("status is 2xx", status // 100, 2)
        counted = [(text, max(1, store.counter.count(text))) for text in texts]
        _equal("seqs", answer["seqs"], store.memory.append(place, counted))
        self._know(store, who, session, answer)
        store.sent[who] = (self.tick, key, body, answer, len(store.memory.erasures))

    async def repeat(self, store: Store, who: Who, draw: random.Random) -> None:
        """Send the last write again."""
        if who not in store.sent:
            return
        tick, key, body, answer, erasures = store.sent[who]
        too_old = (self.tick - tick) * TICK > timedelta(hours=23)
        if too_old or any(
            erasure.names(Place(*who.pair, body["session_id"], "")) for erasure, _ in store.memory.erasures[erasures:]
        ):
            return
        _equal("repeated", (await store.ask(who, "POST", "/v1/write", body, key))[1], answer)

    async def remember(self, store: Store, who: Who, draw: random.Random) -> None:
        """Save a new fact, one that its owner knows already, or one under a key."""
        session = draw.choice(("", *SESSIONS))
        workspace = draw.choice(WORKSPACES)
        scope = draw.choice((who.scope, who.scope, "session"))
        owner = store.memory.owner(who, scope, session, workspace)
        known = store.memory.facts_under(scope, owner)
        text, key = self._text(draw, "fact", 0), ""
        kind = draw.choice(("new", "new", "known", "keyed"))
        if kind == "known" and known:
            text = draw.choice(known).text
        elif kind == "keyed":
            key = draw.choice(KEYS)
        body: Json = {"text": text, "scope": scope}
        body |= {
            name: value for name, value in (("session_id", session), ("workspace", workspace), ("key", key)) if value
        }
        is_stale = self._build_on(store, who, session, body, draw)
        self._note(body)
        status, answer = await store.ask(who, "POST", "/v1/facts", body)
        keyed = next((fact for fact in known if key and fact.key == key), None)
        if (scope == "session" and not session) or (scope == "user" and not who.user):
            _equal("status", status, 400)
            return
        if is_stale:
            _equal("status", status, 410)
            return
        if keyed is not None and scope == "shared" and {place.agent for place in keyed.sources} != {who.agent}:
            _equal("status", status, 403)
            return
        _equal("status", status, 201)
        self._know(store, who, session, answer)
        place = Place(who.agent, who.user, session, workspace)
        same = next((fact for fact in known if fact.text == text), None)
        said = self.tick - body.get("queued_seconds", 0.0) / TICK.total_seconds()
        if same is not None:
            _equal("action", (answer["action"], answer["id"]), ("ignored", same.id))
            same.sources.add(place)
            same.said = max(same.said, said)
        elif keyed is not None and said < keyed.said:
            _equal("action", (answer["action"], answer["id"]), ("ignored", keyed.id))
            store.memory.ghosts.append(text)
        elif keyed is not None:
            _equal("action", (answer["action"], answer["id"]), ("replaced", keyed.id))
            store.memory.ghosts.append(keyed.text)
            keyed.text, keyed.sources, keyed.said = text, {place}, said
            keyed.lines.append((text, place))
        else:
            _equal("action", answer["action"], "added")
            store.memory.facts.append(Fact(answer["id"], scope, owner, text, key, {place}, [(text, place)], said))

    def _build_on(self, store: Store, who: Who, session: str, body: Json, draw: random.Random) -> bool:
        """Have a call say on what it builds, sometimes; return whether that was erased."""
        choice = draw.random()
        known = store.generations.get((who, session)) or store.generations.get((who, ""))
        if choice < 0.4 and known is not None:
            body["generation"], erasures = known
            knows_session = (who, session) in store.generations
            return store.memory.is_outdated(who, session if knows_session else "", erasures)
        if choice < 0.5:
            waited = draw.randrange(20)
            body["queued_seconds"] = waited * TICK.total_seconds() + TICK.total_seconds() / 2
            return store.memory.was_erased_within(who, session, self.tick - waited)
        return False

    @staticmethod
    def _know(store: Store, who: Who, session: str, answer: Json) -> None:
        store.generations[who, session] = (answer["generation"], len(store.memory.erasures))

    # Reading ---------------------------------------------------------------------------------------------------------

    async def recall(self, store: Store, who: Who, draw: random.Random) -> None:
        """Ask for everything readable, or for a part of it, among words of others and of what is gone."""
        session, workspace = draw.choice(("", *SESSIONS)), draw.choice(WORKSPACES)
        chosen = draw.sample(who.reads, draw.randint(1, len(who.reads))) if draw.random() < 0.5 else None
        scopes = list(who.reads) if chosen is None else chosen
        missing = [scope for scope in scopes if scope not in who.readable(session)]
        memory = store.memory
        facts = [fact for scope in scopes for fact in memory.readable_facts(who, scope, session, workspace)]
        turns = [turn for scope in scopes for turn in memory.readable_turns(who, scope, session, workspace)]
        place = Place(who.agent, who.user, session, workspace)
        window = memory.window(place, WINDOW_TOKENS) if session else []
        shown = {turn.text for turn in window}
        expected = {fact.text for fact in facts} | {turn.text for turn in turns}
        expected -= shown
        sought = sorted(expected) if len(expected) <= 30 else draw.sample(sorted(expected), 12)
        others = self._stores[0 if store is self._stores[1] else 1].memory
        foreign = [*memory.texts(), *others.texts(), *memory.ghosts]
        words = [text.rpartition(" ")[2] for text in (*sought, *draw.sample(foreign, min(4, len(foreign))))]
        body: Json = {"query": " ".join(words) or "nothing", "top_k": TOP_K, "score_floor": 0}
        body |= _named(session_id=session, workspace=workspace)
        if chosen is not None:
            body["scopes"] = chosen
        self._note(body)
        status, answer = await store.ask(who, "POST", "/v1/recall", body)
        if missing if chosen is not None else len(missing) == len(scopes):
            _equal("status", status, 400)
            return
        _equal("status", status, 200)
        found = [item["text"] for item in answer["long_term"]["items"]]
        _equal("texts found twice", len(found), len(set(found)))
        _equal("foreign or erased texts", set(found) - expected, set())
        if len(expected) <= TOP_K:
            _equal("texts not found", set(sought) - set(found), set())
        _equal("window", [turn["content"] for turn in answer["short_term"]["window"]], [turn.text for turn in window])
        self._know(store, who, session, answer)

    async def list_scope(self, store: Store, who: Who, draw: random.Random) -> None:
        """List a scope, page by page."""
        session, workspace = draw.choice(("", *SESSIONS)), draw.choice(WORKSPACES)
        scope = draw.choice((*who.reads, who.scope))
        body: Json = {"scope": scope, "tiers": ["fact", "episode"], "limit": draw.choice((3, 50, 1000))}
        body |= _named(session_id=session, workspace=workspace)
        self._note(body)
        expected = [fact.text for fact in store.memory.readable_facts(who, scope, session, workspace)]
        expected += [turn.text for turn in store.memory.readable_turns(who, scope, session, workspace)]
        found: list[str] = []
        for page in itertools.count():
            status, answer = await store.ask(who, "POST", "/v1/list", body)
            if scope not in who.readable(session):
                _equal("status", status, 400)
                return
            _equal("status", status, 200)
            found += [item["text"] for item in answer["items"]]
            body["cursor"] = answer["next_cursor"]
            if body["cursor"] is None or page > 1_000:
                break
        _equal("listed", found, expected)

    async def read_turns(self, store: Store, who: Who, draw: random.Random) -> None:
        """Read every turn of a session."""
        session, workspace = draw.choice(SESSIONS), draw.choice(WORKSPACES)
        await self._whole_session(store, who, Place(who.agent, who.user, session, workspace))

    async def _whole_session(self, store: Store, who: Who, place: Place) -> None:
        expected = [(turn.seq, turn.text) for turn in store.memory.turns_of(place)]
        found: list[tuple[int, str]] = []
        after: int | None = 0
        while after is not None:
            path = f"/v1/sessions/{place.session}/turns"
            status, answer = await store.ask(who, "GET", path, workspace=place.workspace, after=after, limit=50)
            if not expected:
                _equal("status", status, 404)
                return
            _equal("status", status, 200)
            found += [(turn["seq"], turn["content"]) for turn in answer["turns"]]
            after = answer["next_after"]
        _equal("turns", found, expected)

    async def list_sessions(self, store: Store, who: Who, draw: random.Random) -> None:
        """List one's sessions of a workspace."""
        workspace = draw.choice(WORKSPACES)
        status, answer = await store.ask(who, "GET", "/v1/sessions", workspace=workspace, limit=1000)
        _equal("status", status, 200)
        expected = {
            (place.session, len(store.memory.turns_of(place)))
            for place in store.memory.sessions()
            if (place.agent, place.user, place.workspace) == (*who.pair, workspace)
        }
        _equal("sessions", {(found["session_id"], found["last_seq"]) for found in answer["sessions"]}, expected)

    async def read_fact(self, store: Store, who: Who, draw: random.Random) -> None:
        """Name any fact of any store by its id."""
        fact, is_here = self._any_fact(store, draw)
        if fact is None:
            return
        self._note(fact.id)
        status, answer = await store.ask(who, "GET", f"/v1/facts/{fact.id}")
        if not is_here or not store.memory.may_read(who, fact):
            _equal("status", status, 404)
            return
        _equal("status", status, 200)
        _equal("text", answer["text"], fact.text)
        _, history = await store.ask(who, "GET", f"/v1/facts/{fact.id}/history")
        kept = {text for text, _ in fact.lines}
        _equal("erased lines", {line["text"] for line in history["entries"]} - kept - {fact.text, None}, set())

    def _any_fact(self, store: Store, draw: random.Random) -> tuple[Fact | None, bool]:
        whose = draw.choice((*self._stores, store))
        fact = draw.choice(whose.memory.facts) if whose.memory.facts else None
        return fact, whose is store

    async def list_all(self, store: Store, who: Who, draw: random.Random) -> None:
        """List everything as the admin, or try to as an agent."""
        if draw.random() < 0.2:
            _equal("status", (await store.ask(who, "GET", "/v1/admin/list"))[0], 403)
            return
        found: list[str] = []
        cursor = ""
        while True:
            _, answer = await store.ask(None, "GET", "/v1/admin/list", cursor=cursor, limit=200)
            found += [item["text"] for item in answer["items"]]
            cursor = answer["next_cursor"]
            if cursor is None:
                break
        _equal("listed", found, [fact.text for fact in store.memory.facts])

    # Erasing ---------------------------------------------------------------------------------------------------------

    async def delete_fact(self, store: Store, who: Who, draw: random.Random) -> None:
        """Delete any fact of any store by its id."""
        fact, is_here = self._any_fact(store, draw)
        if fact is None:
            return
        self._note(fact.id)
        status, answer = await store.ask(who, "DELETE", f"/v1/facts/{fact.id}")
        if not is_here or not store.memory.may_read(who, fact):
            _equal("status", status, 404)
            return
        if not store.memory.may_change(who, fact):
            _equal("status", status, 403)
            return
        _equal("status", status, 200)
        store.memory.delete(fact)
        store.receipts.append((who, answer["receipt_id"], answer["erased"]))

    async def forget_session(self, store: Store, who: Who, draw: random.Random) -> None:
        """Forget a session."""
        session = draw.choice(SESSIONS)
        body: Json = {"scope": "session", "session_id": session, "confirm": True}
        await self._erase(store, who, "/v1/forget", body, Erasure("session", who.agent, who.user, session))

    async def forget_own(self, store: Store, who: Who, draw: random.Random) -> None:
        """Forget what the binding's own scope holds."""
        refused = {"shared": 403, "session": 400, "user": 0 if who.user else 400}.get(who.scope, 0)
        if refused:
            status, _ = await store.ask(who, "POST", "/v1/forget", {"confirm": True})
            _equal("status", status, refused)
            return
        erasure = Erasure("principal", user=who.user) if who.scope == "user" else Erasure("pair", who.agent, who.user)
        await self._erase(store, who, "/v1/forget", {"confirm": True}, erasure)

    async def admin_erase(self, store: Store, who: Who, draw: random.Random) -> None:
        """Erase a subject as the admin, or try to as an agent."""
        agent, user, session = f"kaos://agent/walk/{who.agent}", who.user, draw.choice(SESSIONS)
        kind = draw.choice(("session", "agent", "principal") if user else ("session", "agent"))
        subject: Json = {"agent": agent}
        erasure = Erasure("agent", who.agent)
        if kind == "session":
            subject |= {"session": session, **({"principal": f"local#{user}"} if user else {})}
            erasure = Erasure("session", who.agent, user, session)
        elif kind == "principal":
            subject, erasure = {"principal": f"local#{user}"}, Erasure("principal", user=user)
        if draw.random() < 0.2:
            status, _ = await store.ask(who, "POST", "/v1/admin/erase", {"subject": subject})
            _equal("status", status, 403)
            return
        await self._erase(store, None, "/v1/admin/erase", {"subject": subject}, erasure)

    async def _erase(self, store: Store, who: Who | None, path: str, body: Json, erasure: Erasure) -> None:
        self._note(erasure)
        status, answer = await store.ask(who, "POST", path, body)
        _equal("status", status, 200)
        expected = store.memory.erase(erasure, self.tick)
        _equal("erased", {name: answer["erased"][name] for name in expected}, expected)
        store.receipts.append((who, answer["receipt_id"], answer["erased"]))

    async def read_receipt(self, store: Store, who: Who, draw: random.Random) -> None:
        """Ask for a receipt, one's own or another's."""
        if not store.receipts:
            return
        asker, receipt, erased = draw.choice(store.receipts[-10:])
        reader = draw.choice((who, asker, None))
        status, answer = await store.ask(reader, "GET", f"/v1/receipts/{receipt}")
        if reader is not None and (asker is None or asker.pair != reader.pair):
            _equal("status", status, 404)
            return
        _equal("status", status, 200)
        _equal("receipt", answer["erased"], erased)

    # The end ---------------------------------------------------------------------------------------------------------

    async def compare_everything(self) -> None:
        """Compare all that is stored: every session of everybody, every fact, every count."""
        self.taken.append("the end: everything is compared")
        for store in self._stores:
            for who, session, workspace in itertools.product(IDENTITIES, SESSIONS, sorted(set(WORKSPACES))):
                await self._whole_session(store, who, Place(who.agent, who.user, session, workspace))
            await self.list_all(store, IDENTITIES[0], random.Random(1))
            await store.worker.run_due()
            for asker, receipt, _ in store.receipts[-20:]:
                _, answer = await store.ask(asker, "GET", f"/v1/receipts/{receipt}")
                _equal("receipt's status", answer["status"], "purged")

    def _text(self, draw: random.Random, kind: str, number: int) -> str:
        return f"{kind} {draw.choice(('green', 'small', 'old'))} thing of q{self.tick}n{number}"


Step = Callable[[Walk, Store, Who, random.Random], Awaitable[None]]

_STEPS: dict[Step, float] = {
    Walk.write: 30,
    Walk.remember: 17,
    Walk.recall: 22,
    Walk.list_scope: 6,
    Walk.read_turns: 6,
    Walk.list_sessions: 3,
    Walk.read_fact: 4,
    Walk.repeat: 3,
    Walk.delete_fact: 3,
    Walk.forget_session: 2,
    Walk.forget_own: 1.5,
    Walk.admin_erase: 0.8,
    Walk.read_receipt: 2,
    Walk.list_all: 0.5,
}


def _named(**values: str) -> Json:
    """Return the fields that have a value."""
    return {name: value for name, value in values.items() if value}


def _equal(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise WrongAnswer(f"{what}: {found!r}, and it should be {expected!r}")


STEP_NAMES = frozenset(step.__name__ for step in _STEPS)


async def walked(seed: int, numbers: Sequence[int], opener: Opener) -> tuple[Walk, Exception | None]:
    """Walk over two new stores; return the walk and what went wrong."""
    async with opener() as stores:
        walk = Walk(seed, stores)
        try:
            for number in numbers:
                await walk.take(number)
            await walk.compare_everything()
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is what the caller looks for
            return walk, error
        return walk, None


async def shrunk(seed: int, numbers: Sequence[int], opener: Opener, *, attempts: int = 150) -> tuple[list[str], str]:
    """Return the shortest walk found that still goes wrong, in words, and how it goes wrong."""
    best, words, message = list(numbers), ["(the whole walk)"], ""
    part = max(1, len(best) // 2)
    while attempts > 0 and part >= 1:
        start = 0
        while start < len(best) and attempts > 0:
            attempts -= 1
            fewer = best[:start] + best[start + part :]
            walk, error = await walked(seed, fewer, opener)
            if error is None:
                start += part
                continue
            best, words, message = fewer[: len(walk.taken)], walk.taken, f"{type(error).__name__}: {error}"
        part //= 2
    return words, message
