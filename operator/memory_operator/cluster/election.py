"""Leader election by a Lease: one operator works, the others wait.

Expiry is judged by the own clock since the record was last seen to change, so that skewed clocks do no harm. The
leader gives up before others may take over: its renewal deadline is shorter than the Lease.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from memory_operator.cluster import kinds
from memory_operator.cluster.client import Cluster
from memory_operator.crd.base import JsonObject
from memory_operator.errors import Conflict, MemoryOperatorError, TryLater
from memory_operator.settings import OperatorSettings


class LeadershipLost(MemoryOperatorError):
    """The Lease could not be renewed in time; the process must end without another write."""


def _micro_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Election:
    """One candidate."""

    def __init__(
        self,
        cluster: Cluster,
        settings: OperatorSettings,
        *,
        monotonic: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._monotonic = monotonic
        self._now = now
        self._seen: tuple[object, ...] | None = None
        self._seen_at = 0.0
        self._renewed_at: float | None = None

    @property
    def is_leader(self) -> bool:
        """Whether the Lease is ours and young enough to rely on."""
        if self._renewed_at is None:
            return False
        return self._monotonic() - self._renewed_at < self._settings.renew_deadline_seconds

    @property
    def has_lost(self) -> bool:
        """Whether the Lease was ours and is not any more."""
        return self._renewed_at is not None and not self.is_leader

    def _record(self, old: JsonObject | None) -> JsonObject:
        me, before = self._settings.pod_name, (old or {}).get("spec") or {}
        is_mine = before.get("holderIdentity") == me
        moment = _micro_time(self._now())
        transitions = before.get("leaseTransitions", 0)
        meta: JsonObject = {"name": self._settings.lease_name, "namespace": self._settings.namespace}
        if old is not None:
            meta["resourceVersion"] = old["metadata"]["resourceVersion"]
            meta["uid"] = old["metadata"]["uid"]
        return {
            "apiVersion": kinds.LEASE.api_version,
            "kind": kinds.LEASE.name,
            "metadata": meta,
            "spec": {
                "holderIdentity": me,
                "leaseDurationSeconds": max(1, int(self._settings.lease_seconds)),
                "acquireTime": before.get("acquireTime", moment) if is_mine else moment,
                "renewTime": moment,
                "leaseTransitions": transitions if is_mine or old is None else transitions + 1,
            },
        }

    def _is_taken(self, lease: JsonObject) -> bool:
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity")
        seen = (lease["metadata"]["uid"], holder, spec.get("renewTime"), spec.get("leaseTransitions"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._monotonic()
        if not holder or holder == self._settings.pod_name:
            return False
        lasts = float(spec.get("leaseDurationSeconds") or self._settings.lease_seconds)
        return self._monotonic() - self._seen_at < lasts

    async def try_to_lead(self) -> bool:
        """Take or renew the Lease if that is possible now; return whether this process leads.

        An API server that does not answer changes nothing: the leader leads on until its deadline.
        """
        started = self._monotonic()
        try:
            lease = await self._cluster.get(kinds.LEASE, self._settings.namespace, self._settings.lease_name)
            if lease is None:
                await self._cluster.create(kinds.LEASE, self._record(None))
            elif self._is_taken(lease):
                if self._renewed_at is not None:
                    self._renewed_at = float("-inf")
                return False
            else:
                await self._cluster.replace(kinds.LEASE, self._record(lease))
        except Conflict:
            return self.is_leader
        except TryLater:
            return self.is_leader
        self._renewed_at = started
        return True

    async def release(self) -> None:
        """Let go of the Lease, so that the next one need not wait for its end."""
        if not self.is_leader:
            return
        self._renewed_at = None
        lease = await self._cluster.get(kinds.LEASE, self._settings.namespace, self._settings.lease_name)
        if lease is None or (lease.get("spec") or {}).get("holderIdentity") != self._settings.pod_name:
            return
        record = self._record(lease)
        record["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
        await self._cluster.replace(kinds.LEASE, record)
