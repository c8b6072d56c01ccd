"""One watch of one kind as a stream of events, with nothing between the API server's lines and who takes them.

kopf watches what people write. What the operator makes is some ten times as many events, of which each needs one look
into a cache: for them this stream takes the place of a framework's tasks, queues and views of every single event.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

import orjson

from memory_operator.cluster.client import KubernetesCluster
from memory_operator.cluster.kinds import Kind
from memory_operator.crd.base import JsonObject
from memory_operator.errors import ClusterUnavailable, Conflict, MemoryOperatorError

SERVER_SECONDS = 290
"""After how long the API server ends a watch of its own accord."""


class Expired(MemoryOperatorError):
    """The API server does not remember that far back: list again."""


@dataclass(frozen=True)
class WatchEvent:
    """`ADDED`, `MODIFIED`, `DELETED`, or a `BOOKMARK`, which only says how far the watch is."""

    type: str
    body: JsonObject


class Watcher(Protocol):
    """Opens watches."""

    def watch(self, kind: Kind, namespace: str | None, selector: str, since: int) -> AsyncIterator[WatchEvent]:
        """Return the events after a version until the stream ends.

        It ends with `ClusterUnavailable` when it breaks or is silent for too long, and with `Expired`.
        """


class KubernetesWatcher:
    """Watches of a real API server."""

    def __init__(self, cluster: KubernetesCluster, silence_seconds: float) -> None:
        self._cluster = cluster
        self._silence_seconds = silence_seconds

    async def watch(self, kind: Kind, namespace: str | None, selector: str, since: int) -> AsyncIterator[WatchEvent]:
        """Return the events after a version until the stream ends."""
        query: dict[str, str | int | None] = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "labelSelector": selector or None,
            "resourceVersion": since,
            "timeoutSeconds": SERVER_SECONDS,
        }
        rest = b""
        try:
            async for piece in self._cluster.stream(kind, namespace, query, self._silence_seconds):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line:
                        yield _event(line)
        except Conflict as error:
            raise Expired(str(error)) from error


def _event(line: bytes) -> WatchEvent:
    try:
        content = orjson.loads(line)
        event = WatchEvent(content["type"], content["object"])
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterUnavailable("an event cannot be read") from error
    if event.type == "ERROR":
        if event.body.get("code") == 410:
            raise Expired(str(event.body.get("message")))
        raise ClusterUnavailable(f"the watch ended: {event.body.get('message')}")
    return event
