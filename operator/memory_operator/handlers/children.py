"""Follows what the operator makes, from where the last list ended; see `cluster.watching` for why kopf does not."""

from __future__ import annotations

import asyncio
import logging
import random

from memory_operator.cluster import kinds
from memory_operator.cluster.keys import version
from memory_operator.cluster.kinds import Kind
from memory_operator.cluster.watching import Expired, Watcher
from memory_operator.errors import MemoryOperatorError, NotFound
from memory_operator.handlers.watches import take
from memory_operator.pacing import Backoff
from memory_operator.reconcile.context import Context
from memory_operator.reconcile.controller import resync_kind

logger = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS = 0.2
_LONGEST_RETRY_SECONDS = 10.0
_UNSERVED_SECONDS = 10.0
"""After how long to see whether a resync has found a kind that was not served."""


async def _follow_once(context: Context, watcher: Watcher, kind: Kind, namespace: str | None, since: int) -> int:
    """Take events until the stream ends; return up to which version."""
    selector = kinds.watched(context.settings)[kind]
    async for event in watcher.watch(kind, namespace, selector, since):
        since = version(event.body)
        if event.type != "BOOKMARK":
            take(context, kind, event.type, event.body)
        context.followed[(kind, namespace)] = since
    return since


async def follow(context: Context, watcher: Watcher, kind: Kind, namespace: str | None) -> None:
    """Take the events of one kind for ever. What an expired watch has missed, a list makes up for."""
    place = (kind, namespace)
    backoff: Backoff[str] = Backoff(_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS, random.random)
    # What could not be listed is followed from whatever is there once that is permitted.
    context.followed[place] = context.listed.get(place, 0)
    while True:
        if kind in context.unserved:
            await asyncio.sleep(_UNSERVED_SECONDS)
            context.followed[place] = context.listed.get(place, 0)
            continue
        since = context.followed[place]
        try:
            await _follow_once(context, watcher, kind, namespace, since)
        except MemoryOperatorError as error:
            why = type(error).__name__
            context.metrics.watch_failures.labels(kind.name, why).inc()
            logger.info("watch broke off", extra={"kind": kind.name, "error": f"{why}: {error}"})
            if kind in kinds.OPTIONAL and isinstance(error, NotFound):
                context.mark_served(kind, is_served=False)
                continue
            if context.followed[place] > since:
                backoff.reset("watch")
            await asyncio.sleep(backoff.next("watch"))
            if isinstance(error, Expired):
                await _list_again(context, kind, namespace)
        except Exception:
            # Whatever it is: this watch is opened anew, and those of the other kinds go on.
            context.metrics.watch_failures.labels(kind.name, "Unexpected").inc()
            logger.exception("watch broke off", extra={"kind": kind.name})
            await asyncio.sleep(backoff.next("watch"))
        else:
            backoff.reset("watch")


async def _list_again(context: Context, kind: Kind, namespace: str | None) -> None:
    try:
        _, changed = await resync_kind(context, kind, kinds.watched(context.settings)[kind])
    except MemoryOperatorError as error:
        logger.warning("list failed", extra={"kind": kind.name, "error": type(error).__name__})
    else:
        context.enqueue(changed, in_background=True)
        context.followed[(kind, namespace)] = context.listed.get((kind, namespace), 0)


async def run(context: Context, watcher: Watcher) -> None:
    """Follow every kind that the operator makes, in each of its namespaces, until cancelled."""
    async with asyncio.TaskGroup() as group:
        for kind in kinds.watched(context.settings):
            if kind not in kinds.MADE_BY_PEOPLE:
                for namespace in kinds.places(kind, context.settings):
                    group.create_task(follow(context, watcher, kind, namespace))
