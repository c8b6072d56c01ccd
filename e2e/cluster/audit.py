"""Who wrote what, from the API server's audit log: every request that may change something, once it was answered."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

POLICY: dict[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "None", "verbs": ["get", "list", "watch"]}, {"level": "Metadata"}],
}


@dataclass(frozen=True)
class Write:
    """One answered request that was not a read."""

    user: str
    agent: str  # the client's User-Agent
    field_manager: str
    verb: str  # create, update, patch, delete, deletecollection
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    at: datetime

    @property
    def changed_something(self) -> bool:
        """Whether the server accepted it; a server-side apply that changes nothing counts too."""
        return 200 <= self.code < 300

    def __str__(self) -> str:
        kind = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.at:%T.%f} {self.user} {self.verb} {kind} {self.namespace}/{self.name} {self.code}"


def _write(entry: dict[str, Any]) -> Write:
    about = entry.get("objectRef") or {}
    query = parse_qs(urlsplit(entry["requestURI"]).query)
    return Write(
        user=entry["user"]["username"],
        agent=entry.get("userAgent", ""),
        field_manager=query.get("fieldManager", [""])[0],
        verb=entry["verb"],
        group=about.get("apiGroup", ""),
        resource=about.get("resource", ""),
        subresource=about.get("subresource", ""),
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        code=(entry.get("responseStatus") or {}).get("code", 0),
        at=datetime.fromisoformat(entry["stageTimestamp"]),
    )


@dataclass(frozen=True)
class AuditLog:
    """The audit log's file. The server writes an entry before it answers, so a read after an answer sees it."""

    path: Path

    def mark(self) -> int:
        """The position now, to pass to `writes` later."""
        return self.path.stat().st_size if self.path.exists() else 0

    def writes(
        self,
        since: int = 0,
        *,
        user: str | None = None,
        namespace: str | None = None,
        where: Callable[[Write], bool] | None = None,
    ) -> list[Write]:
        """Writes after a mark, in order; `user` may be a prefix (`system:serviceaccount:memplane-system:`)."""
        with self.path.open("rb") as log:
            log.seek(since)
            complete = log.read().rpartition(b"\n")[0]
        found = [_write(json.loads(line)) for line in complete.splitlines() if line]
        return [
            write
            for write in found
            if (user is None or write.user.startswith(user))
            and (namespace is None or write.namespace == namespace)
            and (where is None or where(write))
        ]
