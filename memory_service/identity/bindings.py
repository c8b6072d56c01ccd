"""Which ServiceAccount is which agent, followed while the service runs.

The operator writes numbered ConfigMaps `<prefix>-0`, `-1`, …; the service watches each by name (the only form that a
Role with resourceNames allows) and one more than there are, so that a new one is noticed. Where the API cannot be
asked, the folder that they are mounted in says the same, up to a kubelet's delay later.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from memory_service.contract.bindings import BINDING_KEY_SUFFIX, Binding, bindings_revision
from memory_service.identity.authenticator import Now
from memory_service.identity.kube_api import ConfigMapState, KubeApi, KubeForbidden, KubeGone, KubeUnavailable

logger = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.2
LAST_RETRY_SECONDS = 2.0
FORBIDDEN_RETRY_SECONDS = 4.0
"""How often a ConfigMap is asked for that the Role does not name (yet): below the 5 s within which a change counts."""
FOLDER_SECONDS = 2.0
MAX_CONFIG_MAPS = 64
MAX_PROBLEMS = 20
MAX_ROW_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Bindings:
    """One state of the bindings: who is who, the revision of the rows, and what was left out."""

    by_account: Mapping[tuple[str, str], Binding]
    revision: str
    problems: tuple[str, ...] = ()

    def of(self, namespace: str, service_account: str) -> Binding | None:
        """Return the binding that this ServiceAccount proves, or None."""
        return self.by_account.get((namespace, service_account))


def parse_bindings(rows: Mapping[str, str]) -> Bindings:
    """Return the bindings of these rows (key → JSON). A broken row is left out and named; the others count.

    Of two bindings of one ServiceAccount the oldest holds; of two that are equally old, the first by agent.
    """
    found: dict[tuple[str, str], Binding] = {}
    problems = []
    parsed = []
    for key in sorted(rows):
        try:
            parsed.append(Binding.model_validate(json.loads(rows[key])))
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            problems.append(f"binding {key!r} is left out: {where}: {first['msg']}")
        except (ValueError, RecursionError):
            problems.append(f"binding {key!r} is left out: it is not JSON")
    for binding in sorted(parsed, key=lambda row: (row.created_at, row.agent)):
        account = (binding.namespace, binding.service_account)
        holder = found.setdefault(account, binding)
        if holder is not binding:
            problems.append(
                f"{binding.agent!r} is left out: ServiceAccount {account[0]}/{account[1]} is bound "
                f"to the older {holder.agent!r}; give each agent a ServiceAccount of its own"
            )
    return Bindings(found, bindings_revision(rows), tuple(problems[:MAX_PROBLEMS]))


@dataclass(frozen=True)
class BindingsState:
    """How current the bindings are. `loaded`: whether any source was ever read. `source`: api, folder or none."""

    loaded: bool
    source: str
    stale_since: datetime | None
    message: str


@dataclass
class _Followed:
    """What is known of one numbered ConfigMap."""

    index: int
    data: Mapping[str, str] | None = None
    is_synced: bool = False
    message: str = "not read yet"
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class BindingsWatch:
    """Holds the newest bindings that it has seen. It owns its tasks from `start` to `aclose`."""

    def __init__(
        self,
        api: KubeApi | None,
        *,
        namespace: str | None,
        prefix: str | None,
        directory: str | None,
        now: Now,
        folder_seconds: float = FOLDER_SECONDS,
        forbidden_seconds: float = FORBIDDEN_RETRY_SECONDS,
    ) -> None:
        self._api = api if namespace and prefix else None
        self._namespace = namespace or ""
        self._prefix = prefix or ""
        self._directory = Path(directory) if directory else None
        self._now = now
        self._folder_seconds = folder_seconds
        self._forbidden_seconds = forbidden_seconds
        self._followed: list[_Followed] = []
        self._group: asyncio.TaskGroup | None = None
        self._runner: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._first = asyncio.Event()
        self._rows: Mapping[str, str] | None = None
        self._bindings = parse_bindings({})
        self._source = "none"
        self._folder_rows: Mapping[str, str] | None = None
        self._folder_message = ""
        self._stale_since: datetime | None = now()

    @property
    def current(self) -> Bindings:
        """The bindings in use."""
        return self._bindings

    def state(self) -> BindingsState:
        """Return how current they are."""
        if self._runner is not None and self._runner.done():
            return BindingsState(self._rows is not None, self._source, self._stale_since or self._now(), "stopped")
        waiting = next((f.message for f in self._followed if not f.is_synced), "")
        message = "" if self._stale_since is None else (waiting or self._folder_message or "not read yet")
        return BindingsState(self._rows is not None, self._source, self._stale_since, message)

    async def start(self, wait_seconds: float) -> Self:
        """Start following, and wait for a first state, but not for long: an outage must not keep the service down."""
        self._runner = asyncio.create_task(self._run(), name="bindings")
        try:
            async with asyncio.timeout(wait_seconds):
                await self._first.wait()
        except TimeoutError:
            logger.warning("bindings not read yet", extra={"reason": self.state().message})
        return self

    async def aclose(self) -> None:
        """Stop following."""
        runner, self._runner = self._runner, None
        if runner is not None:
            self._stopping.set()
            await runner

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            tasks = []
            if self._api is not None:
                self._follow_next()
            if self._directory is not None:
                tasks.append(group.create_task(self._poll_folder(self._directory)))
            await self._stopping.wait()
            for task in [*tasks, *(task for followed in self._followed for task in followed.tasks)]:
                task.cancel()

    # The API

    def _follow_next(self) -> None:
        if self._group is None or self._stopping.is_set() or len(self._followed) >= MAX_CONFIG_MAPS:
            return
        followed = _Followed(len(self._followed))
        self._followed.append(followed)
        followed.tasks.append(self._group.create_task(self._follow(followed)))

    async def _follow(self, followed: _Followed) -> None:
        """List, watch on from there, and begin again when the watch ends, breaks or is too old."""
        assert self._api is not None
        name = f"{self._prefix}-{followed.index}"
        wait = FIRST_RETRY_SECONDS
        while True:
            try:
                state = await self._api.config_map(self._namespace, name)
                self._learn(followed, state)
                wait = FIRST_RETRY_SECONDS
                changes = self._api.watch_config_map(self._namespace, name, state.resource_version)
                async with aclosing(changes):
                    async for change in changes:
                        self._learn(followed, change)
                pause = FIRST_RETRY_SECONDS * random.uniform(0.5, 1)
            except KubeGone:
                pause = 0.0 if wait == FIRST_RETRY_SECONDS else wait
                wait = min(wait * 2, LAST_RETRY_SECONDS)
            except KubeForbidden as error:
                if followed.index and followed.data is None:
                    # The Role names only the ConfigMaps that exist: one more is none yet, not an outage.
                    self._learn(followed, ConfigMapState(None, ""))
                else:
                    self._lose(followed, error.detail)
                pause = self._forbidden_seconds
            except KubeUnavailable as error:
                self._lose(followed, error.detail)
                pause = wait * random.uniform(0.5, 1)
                wait = min(wait * 2, LAST_RETRY_SECONDS)
            await asyncio.sleep(pause)

    def _learn(self, followed: _Followed, state: ConfigMapState) -> None:
        followed.data, followed.is_synced, followed.message = state.data, True, ""
        if state.data is not None and followed.index + 1 == len(self._followed):
            self._follow_next()
        if all(each.is_synced for each in self._followed):
            rows: dict[str, str] = {}
            for each in self._followed:
                rows.update(_only_rows(each.data or {}))
            self._stale_since = None
            self._use(rows, "api")

    def _lose(self, followed: _Followed, message: str) -> None:
        followed.is_synced, followed.message = False, message
        if self._stale_since is None and self._source == "api":
            self._stale_since = self._now()
            logger.warning("bindings can no longer be followed", extra={"config_map": followed.index})
        if self._rows is None and self._folder_rows is not None:
            self._use(self._folder_rows, "folder")

    # The folder

    async def _poll_folder(self, directory: Path) -> None:
        while True:
            try:
                rows = await asyncio.to_thread(read_folder, directory)
            except OSError as error:
                self._folder_message = f"the folder {str(directory)!r} cannot be read: {error.strerror or 'error'}"
            else:
                self._folder_message = ""
                self._see_folder(rows)
            await asyncio.sleep(self._folder_seconds)

    def _see_folder(self, rows: Mapping[str, str]) -> None:
        """Use the folder while the API says nothing: at the start, and when it has changed since the API was lost."""
        changed = self._folder_rows is not None and rows != self._folder_rows
        self._folder_rows = rows
        if self._api is None:
            self._stale_since = None
            self._use(rows, "folder")
            return
        is_lost = any(not followed.is_synced and followed.message != "not read yet" for followed in self._followed)
        if is_lost and (changed or self._rows is None or self._source == "folder"):
            self._use(rows, "folder")

    def _use(self, rows: Mapping[str, str], source: str) -> None:
        if rows != self._rows:
            self._bindings = parse_bindings(rows)
            logger.info(
                "bindings changed",
                extra={"revision": self._bindings.revision, "rows": len(rows), "source": source},
            )
            for problem in self._bindings.problems:
                logger.warning("a binding is left out", extra={"problem": problem})
        self._rows = rows
        self._source = source
        self._first.set()


def read_folder(directory: Path) -> Mapping[str, str]:
    """Return the rows of mounted ConfigMaps: the files of the folder and of its immediate folders.

    Raises:
        OSError: the folder, or a file in it, cannot be read.
    """
    rows = {}
    for entry in sorted(directory.iterdir()):
        if entry.name.startswith(".."):
            continue
        files = sorted(entry.iterdir()) if entry.is_dir() else [entry]
        for file in files:
            if file.name.endswith(BINDING_KEY_SUFFIX) and not file.name.startswith("..") and file.is_file():
                rows[file.name] = _read_row(file)
    return rows


def _read_row(file: Path) -> str:
    with file.open("rb") as stream:
        return stream.read(MAX_ROW_BYTES).decode("utf-8", "replace")


def _only_rows(data: Mapping[str, str]) -> Mapping[str, str]:
    return {key: text for key, text in data.items() if key.endswith(BINDING_KEY_SUFFIX)}
