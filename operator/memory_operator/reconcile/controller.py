"""The worker loop: keys from the queue to the reconcile of their kind, and what becomes of a failure."""

from __future__ import annotations

import asyncio
import logging
import sys
import time

from memory_operator import names
from memory_operator.cluster import kinds
from memory_operator.cluster.keys import TOKEN_REVIEW, ReconcileKey, key_of
from memory_operator.cluster.kinds import Kind
from memory_operator.crd.base import ObjectKey
from memory_operator.errors import Forbidden, MemoryOperatorError, NotFound, Refused, TryLater
from memory_operator.reconcile.agent import reconcile_agent
from memory_operator.reconcile.context import Context
from memory_operator.reconcile.model_api import reconcile_model_api
from memory_operator.reconcile.store import reconcile_store
from memory_operator.reconcile.tls import forget_unnamed
from memory_operator.reconcile.token_review import reconcile_token_review

logger = logging.getLogger(__name__)

LISTS_AT_ONCE = 4
"""A new leader lists some kinds beside each other; all of them at once would hold all pages in memory."""


async def reconcile(context: Context, key: ReconcileKey) -> float | None:
    """Make one object as it should be; return after how many seconds to look again, if at all."""
    if key == TOKEN_REVIEW:
        return await reconcile_token_review(context)
    match key.kind:
        case names.MEMORY_STORE:
            return await reconcile_store(context, key.object)
        case names.AGENT_MEMORY:
            return await reconcile_agent(context, key.object)
        case _:
            return await reconcile_model_api(context, key.object)


async def work_once(context: Context, key: ReconcileKey) -> None:
    """Reconcile one key that was taken from the queue and give it back."""
    queue, metrics = context.queue, context.metrics
    started = time.perf_counter()
    fields = {"kind": key.kind, "object": str(key.object)}
    context.refused.discard(key)
    try:
        again_after = await reconcile(context, key)
    except TryLater as error:
        delay = queue.retry(key, error.after_seconds or 0.0)
        metrics.retries.labels(key.kind).inc()
        metrics.reconciles.labels(key.kind, "later").inc()
        logger.info("reconcile put off", extra={**fields, "error": type(error).__name__, "seconds": round(delay, 2)})
    except Refused as error:
        delay = queue.retry(key)
        metrics.reconciles.labels(key.kind, "refused").inc()
        logger.warning("reconcile refused", extra={**fields, "error": type(error).__name__, "seconds": round(delay, 2)})
    except MemoryOperatorError:
        queue.retry(key)
        metrics.reconciles.labels(key.kind, "failed").inc()
        logger.exception("reconcile failed", extra=fields)
    except Exception:
        queue.retry(key)
        metrics.reconciles.labels(key.kind, "failed").inc()
        logger.exception("reconcile failed", extra=fields)
    else:
        queue.succeed(key)
        # The rest of the object is as it should be; what was refused is tried again by itself.
        metrics.reconciles.labels(key.kind, "refused" if key in context.refused else "ok").inc()
        if again_after is not None:
            queue.add_after(key, again_after)
    finally:
        context.refused.discard(key)
        queue.done(key)
        metrics.reconcile_seconds.labels(key.kind).observe(time.perf_counter() - started)
        metrics.queue_depth.set(len(queue))
        metrics.queue_seconds.set(queue.oldest_seconds)


async def work(context: Context) -> None:
    """Reconcile keys for ever."""
    while True:
        await work_once(context, await context.queue.get())


async def run_workers(context: Context) -> None:
    """Run as many workers as the settings say, until cancelled."""
    async with asyncio.TaskGroup() as group:
        for _ in range(context.settings.workers):
            group.create_task(work(context))


async def resync_kind(context: Context, kind: Kind, selector: str) -> tuple[int, set[ReconcileKey]]:
    """List one kind, take what is new, forget what has vanished; return how many ghosts there were, and whom it means.

    Those whom a ghost means are enqueued, for they may be gone themselves.
    """
    ghosts, changed, places = 0, set[ReconcileKey](), kinds.places(kind, context.settings)
    there: dict[ObjectKey, str] = {}
    oldest: int | None = None
    for namespace in places:
        try:
            async for page in context.cluster.pages(kind, namespace, selector):
                # Nobody holds a page for longer than this: all objects at once are several times the caches.
                for body in page.items:
                    there[key_of(body)] = body["metadata"]["uid"]
                    changed |= context.take(kind, body)
                context.listed[(kind, namespace)] = page.resource_version
                oldest = page.resource_version if oldest is None else min(oldest, page.resource_version)
        except (Forbidden, NotFound) as error:
            if kind in kinds.OPTIONAL and isinstance(error, NotFound):
                # Its objects have gone with it, and the rest of the cluster waits for nothing of it.
                context.mark_served(kind, is_served=False)
                there, oldest = {}, sys.maxsize
                break
            context.unlisted.add((kind, namespace))
            if all((kind, place) in context.unlisted for place in places):
                raise
            # The Role of a namespace goes with it: that is no reason to leave the others.
            context.metrics.lists_refused.labels(kind.name).inc()
            fields = {"kind": kind.name, "namespace": namespace, "error": f"{type(error).__name__}: {error}"}
            logger.warning("namespace not listed", extra=fields)
        else:
            context.unlisted.discard((kind, namespace))
            context.mark_served(kind, is_served=True)
    for key, uid in context.cache.missing(kind, there, oldest or 0):
        if (kind, key.namespace) in context.unlisted:
            continue
        ghosts += 1
        context.metrics.ghosts.labels(kind.name).inc()
        context.enqueue(context.cache.remove(kind, key, uid))
    return ghosts, changed


async def resync(context: Context, lists_at_once: int = 1) -> int:
    """List every watched kind, take what is new, forget what has vanished; return how many ghosts there were.

    kopf tells nothing of objects that were deleted while a watch was down. Only a new leader waits for it; else one
    list after the other is read, so that a single page is in memory.
    """
    at_once = asyncio.Semaphore(lists_at_once)

    async def one(kind: Kind, selector: str) -> int:
        async with at_once:
            return (await resync_kind(context, kind, selector))[0]

    jobs = [one(kind, selector) for kind, selector in kinds.watched(context.settings).items()]
    done = await asyncio.gather(*jobs, return_exceptions=True)
    # All of ours, whatever was new: each after what it needs, so that it finds that done and has one status to write.
    for kind in kinds.OWN:
        keys = (ReconcileKey(kind.name, key) for key in context.cache.keys(kind))
        context.enqueue(keys, in_background=True)
    for result in done:
        if isinstance(result, BaseException):
            raise result
    ghosts = sum(result for result in done if isinstance(result, int))
    context.enqueue({TOKEN_REVIEW})
    forget_unnamed(context)
    context.strangers.forget(context.now().timestamp())
    context.metrics.resync_timestamp.set(context.now().timestamp())
    return ghosts
