"""`SyncMemoryClient`: the verbs of `MemoryClient` for code without an event loop.

Each verb is derived from the asynchronous one and runs it on a loop in a thread of its own. That is not a detour:
only there can one deadline cover a whole call, where a blocking socket's timeout starts again with each byte.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from memory_service.client import groups
from memory_service.client.binding import ResolvedBinding
from memory_service.client.client import MemoryClient
from memory_service.client.outbox import Outbox
from memory_service.client.runner import Runner

P = ParamSpec("P")
T = TypeVar("T")


class Direct(Generic[P, T]):
    """A verb that runs the asynchronous verb it was made from, with the same arguments."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method
        functools.update_wrapper(self, method)  # type: ignore[arg-type]

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Blocking, owner: type) -> Callable[P, T]: ...
    def __get__(self, instance: Blocking | None, owner: type) -> Self | Callable[P, T]:
        if instance is None:
            return self

        @functools.wraps(self._method)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return instance._runner.run(self._method(instance._inner, *args, **kwargs))

        return call


class Blocking:
    """An object with asynchronous verbs, and the loop that runs them."""

    def __init__(self, inner: Any, runner: Runner) -> None:
        self._inner = inner
        self._runner = runner


class SyncFacts(Blocking):
    """`Facts` without an event loop."""

    get = Direct(groups.Facts.get)
    patch = Direct(groups.Facts.patch)
    delete = Direct(groups.Facts.delete)
    list = Direct(groups.Facts.list)
    batch = Direct(groups.Facts.batch)
    history = Direct(groups.Facts.history)
    supersede = Direct(groups.Facts.supersede)


class SyncSessions(Blocking):
    """`Sessions` without an event loop."""

    list = Direct(groups.Sessions.list)
    get = Direct(groups.Sessions.get)
    turns = Direct(groups.Sessions.turns)
    end = Direct(groups.Sessions.end)
    compact = Direct(groups.Sessions.compact)
    flush = Direct(groups.Sessions.flush)


class SyncJobs(Blocking):
    """`Jobs` without an event loop."""

    list = Direct(groups.Jobs.list)
    get = Direct(groups.Jobs.get)
    retry = Direct(groups.Jobs.retry)


class SyncReceipts(Blocking):
    """`Receipts` without an event loop."""

    get = Direct(groups.Receipts.get)


class SyncHealth(Blocking):
    """`Health` without an event loop."""

    live = Direct(groups.Health.live)
    ready = Direct(groups.Health.ready)
    report = Direct(groups.Health.report)


class SyncAdmin(Blocking):
    """`Admin` without an event loop."""

    erase = Direct(groups.Admin.erase)
    list = Direct(groups.Admin.list)
    diagnostics = Direct(groups.Admin.diagnostics)
    replay = Direct(groups.Admin.replay)
    export_page = Direct(groups.Admin.export_page)
    import_lines = Direct(groups.Admin.import_lines)


class SyncMemoryClient(Blocking):
    """A store's verbs for code without an event loop; arguments and behaviour are those of `MemoryClient`.

    Safe to use from several threads. Close it, or use it in a `with` statement.
    """

    def __init__(self, endpoint: str | None = None, **options: Any) -> None:
        inner = MemoryClient(endpoint, **options)
        super().__init__(inner, Runner(inner.aclose))
        self._make_groups()

    @classmethod
    def bind(cls, store: str, **options: Any) -> Self:
        """Return a client of the store with this name; `options` are those of `MemoryClient`."""
        return cls(store=store, **options)

    recall = Direct(MemoryClient.recall)
    write = Direct(MemoryClient.write)
    remember = Direct(MemoryClient.remember)
    list = Direct(MemoryClient.list)
    forget = Direct(MemoryClient.forget)
    deliver = Direct(MemoryClient.deliver)
    adopt = Direct(MemoryClient.adopt)

    def as_user(self, user: str | None) -> SyncMemoryClient:
        """Return a view that acts on behalf of `user`; it shares connections, breaker, outbox and counts."""
        view = SyncMemoryClient.__new__(SyncMemoryClient)
        Blocking.__init__(view, self._inner.as_user(user), self._runner)
        view._make_groups()
        return view

    @property
    def binding(self) -> ResolvedBinding:
        """The binding as it is now."""
        found: ResolvedBinding = self._inner.binding
        return found

    @property
    def outbox(self) -> Outbox | None:
        """The outbox; None when the client keeps none."""
        found: Outbox | None = self._inner.outbox
        return found

    @property
    def counts(self) -> dict[str, int]:
        """How often something did not go well."""
        found: dict[str, int] = self._inner.counts
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close connections, end calls and stop background delivery, for all views; what waits stays in the outbox.

        A call that another thread is in ends as in an outage, with the reason `ClientClosed`.
        """
        self._runner.close()

    def _make_groups(self) -> None:
        self.facts = SyncFacts(self._inner.facts, self._runner)
        self.sessions = SyncSessions(self._inner.sessions, self._runner)
        self.jobs = SyncJobs(self._inner.jobs, self._runner)
        self.receipts = SyncReceipts(self._inner.receipts, self._runner)
        self.health = SyncHealth(self._inner.health, self._runner)
        self.admin = SyncAdmin(self._inner.admin, self._runner)
