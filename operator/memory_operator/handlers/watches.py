"""One `on.event` handler for every kind that people write. No finalizers, no annotations, no index, no timers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

import kopf

from memory_operator import names
from memory_operator.cluster import kinds
from memory_operator.cluster.client import PAGE_SIZE
from memory_operator.cluster.keys import key_of
from memory_operator.cluster.kinds import Kind
from memory_operator.cluster.watching import SERVER_SECONDS
from memory_operator.crd.base import JsonObject
from memory_operator.handlers.sessions import Sessions
from memory_operator.reconcile.context import Context
from memory_operator.settings import OperatorSettings

_BACKOFFS: Final = (1.0, 2.0, 4.0, *(8.0,) * 20)


def take(context: Context, kind: Kind, event_type: str | None, body: JsonObject) -> None:
    """Take one watch event: `DELETED`, or anything else for an object that is there."""
    context.metrics.events.labels(kind.name).inc()
    if event_type == "DELETED":
        changed = context.cache.remove(kind, key_of(body), body["metadata"]["uid"])
    else:
        body.setdefault("apiVersion", kind.api_version)
        body.setdefault("kind", kind.name)
        changed = context.take(kind, body)
    context.enqueue(changed)


def registry(context: Context) -> kopf.OperatorRegistry:
    """Return the handlers of the kinds that people write; `handlers.children` follows the others."""
    handlers = kopf.OperatorRegistry()
    for kind in filter(kinds.MADE_BY_PEOPLE.__contains__, kinds.watched(context.settings)):
        _watch(handlers, context, kind)

    sessions = Sessions(context.cache)

    @kopf.on.login(registry=handlers)
    async def login(**arguments: Any) -> kopf.AiohttpSession | None:
        found = kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)
        return await sessions.open(found) if found is not None else None

    return handlers


def _watch(handlers: kopf.OperatorRegistry, context: Context, kind: Kind) -> None:
    async def seen(event: kopf.RawEvent, **_: Any) -> None:
        take(context, kind, event["type"], dict(event["object"]))

    kopf.on.event(kind.group, kind.version, kind.plural, registry=handlers, id=f"see-{kind.plural}")(seen)


class _NoDiff(kopf.DiffBaseStorage):
    """Keeps nothing: nobody asks kopf what has changed, and it copies every object to find out."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[kopf.FieldSpec] | None = None) -> kopf.BodyEssence:
        """Return that there is nothing to compare."""
        return cast("kopf.BodyEssence", {})

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Return that nothing was kept."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Keep nothing."""


class _NoProgress(kopf.StatusProgressStorage):
    """Keeps nothing: the work queue knows what is to be done."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        """Return what there is, which is nothing."""
        return essence

    def store(self, **_: Any) -> None:
        """Keep nothing."""

    def touch(self, **_: Any) -> None:
        """Keep nothing."""


class _Endless:
    """The same pauses and then a minute each time, for ever.

    Of one served namespace kopf may be refused everything, as when it is deleted with its Role: giving up on that
    would end the watches of all the others.
    """

    def __iter__(self) -> Iterator[float]:
        yield from _BACKOFFS
        yield from itertools.repeat(60.0)


def kopf_settings(settings: OperatorSettings) -> kopf.OperatorSettings:
    """Return kopf's own settings; the numbers are those under which watches neither stall nor flood."""
    own = kopf.OperatorSettings()
    own.posting.enabled = False
    own.peering.standalone = True
    own.scanning.disabled = True
    own.persistence.diffbase_storage = _NoDiff()
    own.persistence.progress_storage = _NoProgress()
    own.queueing.idle_timeout = 1
    own.queueing.exit_timeout = 0.2
    own.persistence.finalizer = f"{names.GROUP}/unused"
    own.networking.request_timeout = settings.request_timeout_seconds
    own.networking.connect_timeout = 10
    own.networking.error_backoffs = _BACKOFFS if settings.is_cluster_wide else _Endless()
    own.watching.server_timeout = SERVER_SECONDS
    own.watching.client_timeout = SERVER_SECONDS + 10
    own.watching.connect_timeout = 10
    own.watching.inactivity_timeout = settings.watch_silence_seconds
    own.watching.chunk_size = PAGE_SIZE
    return own
