"""Pure: what to write so that the cluster holds what is desired, given what was observed of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from memory_operator.desired.metadata import Manifest
from memory_operator.desired.ownership import desired_digest

ChildKey = tuple[str, str]
"""Kind and name."""

REMOVED_KINDS: Final = frozenset({"ConfigMap", "Deployment", "PodDisruptionBudget", "Service", "ServiceAccount"})
"""What a change of a spec can make unwanted. The operator may delete nothing else, least of all a claim."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What a plan needs to know about an object that is there."""

    digest: str
    """Of our fields in it, see `ownership`."""
    controller_uid: str | None
    accepted_digest: str | None = None
    """A desired digest that the server is known to have turned into `digest`."""
    applied_digest: str | None = None
    """What this process applied last, whatever has become of it."""
    is_paused: bool = False
    """Whether it is a Deployment that somebody has paused; nobody's spec asks for that."""


@dataclass(frozen=True)
class Plan:
    """What to write, in order."""

    apply: tuple[ChildKey, ...]
    delete: tuple[ChildKey, ...]
    conflicts: tuple[ChildKey, ...]
    """Names that we need and that another controller's object has: they are left alone."""


def desired_digests(objects: Iterable[Manifest]) -> dict[ChildKey, str]:
    """Return the digest of each object that is desired, in their order."""
    return {(item["kind"], item["metadata"]["name"]): desired_digest(item) for item in objects}


def plan(
    owner_uid: str,
    desired: Mapping[ChildKey, str],
    held: Collection[ChildKey],
    observed: Mapping[ChildKey, Observed],
) -> Plan:
    """Return what to write of what is desired (by digest). Nothing, when all of it is there as desired."""
    apply, conflicts, wanted = [], [], {*held, *desired}
    for key, digest in desired.items():
        there = observed.get(key)
        if there is not None and there.controller_uid not in (None, owner_uid):
            conflicts.append(key)
            continue
        if there is None or there.is_paused or digest not in (there.digest, there.accepted_digest):
            apply.append(key)
    delete = [
        key
        for key, there in sorted(observed.items())
        if key not in wanted and there.controller_uid == owner_uid and key[0] in REMOVED_KINDS
    ]
    return Plan(tuple(apply), tuple(delete), tuple(conflicts))
