"""A service with its lists: how it is configured, started and asked, and how its jobs are carried out in both."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.types import ASGIApp, Message

from memory_service.api.app import create_app
from memory_service.bootstrap import Runtime
from memory_service.contract.config import (
    AuthMode,
    ChatConfig,
    EmbeddingConfig,
    EngineName,
    ExtractionConfig,
    IdentityConfig,
    MediumTermConfig,
    ModelsConfig,
    RetentionConfig,
    ServiceConfig,
    ShortTermConfig,
    StorageConfig,
)
from memory_service.contract.sessions import JobKind
from memory_service.domain import scopes
from memory_service.operations.background.held import HeldJob
from memory_service.operations.background.upkeep import sweep
from memory_service.operations.services import Services
from memory_service.ports.models import TokenCounter, UnparseableAnswer
from memory_service.ports.records import SessionRow
from memory_service.worker.loop import Worker
from memory_service.worker.registry import OPERATIONS
from tests.fakes.stores import MovableClock
from tests.faults.walk.memory import EXTRACT, FOLD, Place, PlainMemory, Session, Who, user_hash
from tests.faults.walk.models import DIMENSIONS, WalkChat
from tests.faults.walk.statements import stated
from tests.faults.walk.upkeep import Upkeep

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
TICK = timedelta(seconds=100)
RULES = Upkeep(
    budget=60, target=30, min_turns=4, digests_kept=3, idle=19.5, turns_kept=2_500.5, facts_kept=3_000.5
)  # fmt: skip
AGENT_PREFIX = "kaos://agent/walk/"

Json = dict[str, Any]


class WrongAnswer(AssertionError):
    """A store did not answer as the lists do."""


def equal(what: str, found: object, expected: object) -> None:
    """Compare what a store gave with what the lists have.

    Raises:
        WrongAnswer: they differ.
    """
    if found == expected:
        return
    if isinstance(found, list) and isinstance(expected, list):
        alike = next((at for at, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), None)
        alike = min(len(found), len(expected)) if alike is None else alike
        what, found, expected = f"{what} from number {alike}", found[alike : alike + 8], expected[alike : alike + 8]
    raise WrongAnswer(f"{what}: {found!r}, and it should be {expected!r}")


class StepClock(MovableClock):
    """Time that stands at a step's number when the step begins, and goes on from there."""

    def __init__(self) -> None:
        super().__init__()
        self._begin = datetime.now(UTC)

    def go_to(self, step: int) -> None:
        """Begin a step, a moment after its time: clocks of a service and its database are moments apart."""
        self._shift = self.time(step) + timedelta(seconds=1) - datetime.now(UTC)

    def time(self, steps: float) -> datetime:
        """Return the time of a number of steps."""
        return self._begin + steps * TICK

    def written(self, steps: float | None) -> str | None:
        """Return the time of a number of steps as a body has it."""
        return None if steps is None else self.time(steps).isoformat()

    def steps(self, written: str | None) -> float | None:
        """Return the number of steps of a time in a body or an answer."""
        return None if written is None else (datetime.fromisoformat(written) - self._begin) / TICK


def place_of(row: SessionRow) -> Place:
    """Return where a stored session is."""
    owner = row.owner
    user = next(user for user in USERS if user_hash(user) == owner.principal)
    return Place(owner.agent.removeprefix(AGENT_PREFIX), user, owner.session, owner.workspace)


@dataclass
class Store:
    """One service with its lists."""

    config: ServiceConfig
    clock: StepClock
    number: int = 0
    memory: PlainMemory = field(default_factory=PlainMemory)
    now: int = 0
    receipts: list[tuple[Who | None, str, dict[str, int]]] = field(default_factory=list)
    generations: dict[tuple[Who, str], tuple[str, int]] = field(default_factory=dict)
    sent: dict[Who, tuple[int, str, Json, Json, int]] = field(default_factory=dict)
    jobs: dict[str, tuple[Who, str, str]] = field(default_factory=dict)
    """The jobs that somebody was told of: whose, and of which workspace and session."""
    asked: set[tuple[str, str]] = field(default_factory=set)
    """Methods and paths that were asked for."""
    happened: Counter[str] = field(default_factory=Counter)
    """What came of jobs and imports, by name."""
    _wrong: list[WrongAnswer] = field(default_factory=list)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        """Start the service."""
        self.runtime = await self._stack.enter_async_context(Runtime(self.config, clock=self.clock))
        await self.runtime.wait_open()
        self.services: Services = self.runtime.services()
        self.services.purges.monotonic = lambda: self.clock.now().timestamp()
        watched = {kind: self._watched(kind, operation) for kind, operation in OPERATIONS.items()}
        self.worker = Worker(self.services, name="walk", operations=watched)
        self.counter: TokenCounter = self.services.counter
        self.app: ASGIApp = create_app(self.runtime)

    async def stop(self) -> None:
        """Stop the service."""
        await self._stack.aclose()
        self._stack = AsyncExitStack()

    @property
    def chat(self) -> WalkChat:
        """The store's chat model."""
        found = self.runtime._chat
        assert isinstance(found, WalkChat)
        return found

    async def work(self, *, mute: bool = False) -> None:
        """Carry out the jobs of sessions that are due, in the store and in the lists; the model may answer nothing."""
        self.chat.is_mute = mute
        await self.worker.run_due((JobKind.INDEX_TURNS, JobKind.EMBED, JobKind.FOLD, JobKind.EXTRACT))
        self.chat.is_mute = False
        if self._wrong:
            raise self._wrong[0]
        for session in self.memory.sessions.values():
            for turn in session.turns if session.is_to_index else ():
                turn.indexed = True
            session.is_to_index = False
            equal(f"jobs of {session.place} that were not carried out", session.queued, {})

    async def look_after(self, *, purge: bool) -> None:
        """Sweep, let go what is past its time, and purge what was erased if that is wanted."""
        await sweep(self.services)
        self.memory_sweep()
        await self.work()
        await self.worker.run_due([kind for kind in JobKind if purge or kind is not JobKind.PURGE])

    def memory_sweep(self) -> None:
        """Sweep the lists."""
        RULES.sweep(self.memory, self.now)

    def _watched(
        self, kind: JobKind, operation: Callable[[HeldJob], Awaitable[None]]
    ) -> Callable[[HeldJob], Awaitable[None]]:
        """Return an operation that the lists follow."""
        if kind is JobKind.EXPIRE:

            async def expire(held: HeldJob) -> None:
                await operation(held)
                self.happened["expired"] += RULES.expire(self.memory, self.now)

            return expire
        if kind.value not in (FOLD, EXTRACT):
            return operation

        async def run(held: HeldJob) -> None:
            try:
                await self._carry_out(kind.value, held, operation)
            except WrongAnswer as error:
                self._wrong.append(error)  # a worker goes on whatever a job raises
                raise

        return run

    async def _carry_out(self, kind: str, held: HeldJob, operation: Callable[[HeldJob], Awaitable[None]]) -> None:
        number = held.job.session_id
        assert number is not None
        row = await self.services.storage.read(lambda tx: tx.sessions.get(number))
        if row is None:
            raise WrongAnswer(f"a {kind} of a session that is not there")
        session = self.memory.sessions.get(place_of(row))
        if session is None or kind not in session.queued:
            raise WrongAnswer(f"a {kind} of {place_of(row)} that nobody asked for")
        try:
            await operation(held)
        except UnparseableAnswer:
            if not self.chat.is_mute:
                raise WrongAnswer(f"a {kind} of {session.place} without a usable answer") from None
            session.dead[kind] = session.queued.pop(kind)
            self.happened[f"{kind} failed"] += 1
            raise
        except Exception as error:
            raise WrongAnswer(f"a {kind} of {session.place} failed: {error!r}") from error
        await self._follow(kind, session, row)

    async def _follow(self, kind: str, session: Session, row: SessionRow) -> None:
        if kind == FOLD:
            self.happened["folded"] += RULES.fold(session, self.now)
            del session.queued[FOLD]
        else:
            del session.queued[EXTRACT]
            ids = await self._ids_under(row)
            done = RULES.extract(self.memory, session, self.now, ids.get)
            self.happened.update(f"extracted: {action}" for action in done)
        session.dead.pop(kind, None)

    async def _ids_under(self, row: SessionRow) -> dict[str, str]:
        """Return the ids of the facts under the owner of a session's facts by text, the newest of each text."""
        owner = scopes.fact_owner(row.owner, row.fact_scope)
        place, scope = place_of(row), row.fact_scope.value
        who = Who(place.agent, place.user)
        plain = self.memory.owner(who, scope, place.session, place.workspace)
        texts = {text for turn in self._waiting(row) for text in turn}
        known = {fact.text for fact in self.memory.facts_under(scope, plain) if fact.is_shown(self.now)}
        ids: dict[str, str] = {}
        for text in sorted(texts - known):
            found = await self.services.storage.read(lambda tx, text=text: tx.facts.by_text(owner, text))  # type: ignore[misc]
            if found:
                ids[text] = found[0].id
        return ids

    def _waiting(self, row: SessionRow) -> Sequence[Sequence[str]]:
        session = self.memory.sessions[place_of(row)]
        return [[text for text, _, _ in stated(turn.text)] for turn in session.turns if turn.seq > session.extracted]

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
        self.asked.add((method, path))
        status, text = await _request(self.app, (method, path, urlencode(given)), headers, content)
        if status >= 500:
            raise WrongAnswer(f"{method} {path}: {status} {text!r}")
        return status, {"text": text.decode()} if path == "/metrics" else json.loads(text or b"{}")


async def _request(
    app: ASGIApp, target: tuple[str, str, str], headers: list[tuple[bytes, bytes]], content: bytes
) -> tuple[int, bytes]:
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
    return status, b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")


def tokens_file(folder: Path) -> Path:
    """Write the tokens of all identities and of the admin."""
    path = folder / "tokens.json"
    agents = [
        {
            "token": f"{who.agent}-token",
            "agent": f"{AGENT_PREFIX}{who.agent}",
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
    endpoint = "http://127.0.0.1:9/v1"
    return ServiceConfig(
        storage=storage,
        engine=EngineName.NATIVE,
        models=ModelsConfig(
            chat=ChatConfig(url=endpoint, model="walk"),
            embedding=EmbeddingConfig(url=endpoint, model="hash", dimensions=DIMENSIONS),
        ),
        identity=IdentityConfig(auth=AuthMode.STATIC, tokens_file=str(tokens)),
        short_term=ShortTermConfig(token_budget=RULES.budget),
        medium_term=MediumTermConfig(compaction_target=RULES.target, digest_retention=RULES.digests_kept),
        extraction=ExtractionConfig(
            max_retries=0, min_turns=RULES.min_turns, idle_seconds=RULES.idle * TICK.total_seconds()
        ),
        retention=RetentionConfig(
            turns_seconds=RULES.turns_kept * TICK.total_seconds(),
            facts_seconds=RULES.facts_kept * TICK.total_seconds(),
        ),
    )


Opener = Callable[[], AbstractAsyncContextManager[list[Store]]]
"""Returns an asynchronous context of three empty stores that are started."""


@asynccontextmanager
async def started(configs: Iterable[ServiceConfig], clock: StepClock) -> AsyncIterator[list[Store]]:
    """Start a store for each configuration."""
    stores = [Store(config, clock, number) for number, config in enumerate(configs)]
    try:
        for store in stores:
            await store.start()
        yield stores
    finally:
        for store in stores:
            await store.stop()
