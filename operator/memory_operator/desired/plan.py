"""Pure: what to write so that the cluster holds what is desired, given what was observed of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from memory_operator.desired.metadata import Manifest
from memory_operator.desired.ownership import desired_digest

ChildKey = tuple[str, str]
"""Kind and name."""

KEPT_KINDS: Final = frozenset({"PersistentVolumeClaim"})
"""Never removed by us: data outlives a change of mind, and a retained claim outlives its store."""


@dataclass(frozen=True)
class Observed:
    """What a plan needs to know about an object that is there."""

    digest: str
    """Of our fields in it, see `ownership`."""
    controller_uid: str | None
    accepted_digest: str | None = None
    """A desired digest that the server is known to have turned into `digest`."""
    applied_digest: str | None = None
    """What this process applied last, whatever has become of it."""


@dataclass(frozen=True)
class Plan:
    """What to write, in order."""

    apply: tuple[Manifest, ...]
    delete: tuple[ChildKey, ...]
    conflicts: tuple[ChildKey, ...]
    """Names that we need and that another controller's object has: they are left alone."""
    digests: Mapping[ChildKey, str]
    """Of what is to be applied."""


def plan(
    owner_uid: str,
    desired: Iterable[Manifest],
    held: Collection[ChildKey],
    observed: Mapping[ChildKey, Observed],
) -> Plan:
    """Return what to write. Nothing, when all that is desired is there as desired."""
    apply, conflicts, wanted = [], [], set(held)
    digests: dict[ChildKey, str] = {}
    for manifest in desired:
        key = (manifest["kind"], manifest["metadata"]["name"])
        wanted.add(key)
        there = observed.get(key)
        if there is not None and there.controller_uid not in (None, owner_uid):
            conflicts.append(key)
            continue
        digest = desired_digest(manifest)
        if there is None or digest not in (there.digest, there.accepted_digest):
            apply.append(manifest)
            digests[key] = digest
    delete = [
        key
        for key, there in sorted(observed.items())
        if key not in wanted and there.controller_uid == owner_uid and key[0] not in KEPT_KINDS
    ]
    return Plan(tuple(apply), tuple(delete), tuple(conflicts), digests)
