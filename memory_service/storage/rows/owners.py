"""Owner keys: their numbers, generations and the locks that order writes against erasures.

An owner is found by a keyed hash, so that its generation outlives an erasure that blanks its readable columns.
On Postgres a writer holds the marks of every erasure that could cover it FOR KEY SHARE and an erasure holds them
FOR UPDATE, so each waits for the other and then reads what it left. Several rows are always locked in one order.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from memory_service.contract.scopes import Scope
from memory_service.domain.callers import Principal
from memory_service.domain.owners import AgentPairs, Owner, PrincipalPairs
from memory_service.ports.records import OwnerRow
from memory_service.storage.encoding import moment_or_none
from memory_service.storage.statements import LOCK, Link, Row
from memory_service.storage.states import COLUMNS as STATE
from memory_service.storage.states import OwnerState, state

READABLE = "o.scope, o.agent, o.principal, o.session, o.workspace"
"""Columns of `@owners AS o` that `readable` reads back."""

_COLUMNS = f"o.id, o.key, o.generation, o.erased_at, {READABLE}"
_SELECT = f"SELECT {_COLUMNS} FROM @owners AS o"
_WITH_STATE = f"SELECT {_COLUMNS}, {STATE} FROM @owners AS o WHERE o.key IN [:keys] ORDER BY o.id"


@lru_cache(maxsize=4_096)
def readable(columns: tuple[str, ...]) -> Owner:
    """Return the owner in the columns of READABLE; the rows of one answer name the same few again."""
    scope, agent, principal, session, workspace = columns
    return Owner(Scope(scope), agent, principal, session, workspace)


class OwnerKeys:
    """The port's Owners."""

    def __init__(self, link: Link, *, keeps: bool = False) -> None:
        """`keeps`: the transaction reads one snapshot and writes nothing, so what was found is not looked up again."""
        self._link = link
        self._ids: dict[Owner, int] = {}
        self._kept: dict[Owner, OwnerRow | None] | None = {} if keeps else None
        self.states: dict[int, OwnerState] = {}
        """What `find_searched` learned, by owner."""

    def key(self, owner: Owner) -> str:
        """Return the hash under which an owner is stored."""
        return _owner_key(self._link.hmac_key, owner)

    def keyed_hash(self, *parts: str) -> str:
        """Return a hash of parts under the store's own random key."""
        return _keyed_hash(self._link.hmac_key, parts)

    def find(self, owners: Sequence[Owner]) -> Mapping[Owner, OwnerRow]:
        """Return the rows of these owners; one under which nothing was ever stored is left out."""
        kept = self._kept
        if kept is None:
            return self._rows(owners, "")
        missing = [owner for owner in owners if owner not in kept]
        if missing:
            kept.update({**dict.fromkeys(missing), **self._rows(missing, "")})
        return {owner: row for owner in owners if (row := kept[owner]) is not None}

    def find_searched(self, owners: Sequence[Owner]) -> Mapping[Owner, OwnerRow]:
        """Like `find`, and a search of these owners need not ask whether what is kept of them still holds."""
        if self._kept is None:
            return self.find(owners)
        by_key = {self.key(owner): owner for owner in owners}
        for row in self._link.rows(_WITH_STATE, {"keys": sorted(by_key)}):
            owner = by_key.pop(row[1])
            self._kept[owner] = _owner_row(owner, row)
            self.states[row[0]] = state(row[9:])
        self._kept.update(dict.fromkeys(by_key.values()))
        return self.find(owners)

    def get(self, owner_id: int) -> OwnerRow | None:
        """Return an owner by its number."""
        found = self._link.row(f"{_SELECT} WHERE o.id = :id", {"id": owner_id})
        return None if found is None else _owner_row(readable(found[4:]), found)

    def ensure(self, owner: Owner) -> OwnerRow:
        """Return the owner's row, made if it is not there."""
        return self._ensure([owner], "")[owner]

    def share(self, owners: Sequence[Owner]) -> Mapping[Owner, OwnerRow]:
        """Return the owners' rows, made if needed; erasures of them wait until the transaction ends."""
        return self._ensure(owners, "[[FOR KEY SHARE]]")

    def hold(self, owners: Sequence[Owner]) -> Mapping[Owner, OwnerRow]:
        """Like `share`, and what an erasure has blanked stays so: for owners that are only asked about."""
        return self._ensure(owners, "[[FOR KEY SHARE]]", restore=False)

    def lock(self, owner: Owner) -> OwnerRow:
        """Return the owner's row and hold it against other writers until the transaction ends."""
        return self._ensure([owner], LOCK)[owner]

    def lock_many(self, owners: Sequence[Owner]) -> Mapping[Owner, OwnerRow]:
        """Like `lock`, for several owners in one order: that of their numbers, as an erasure's."""
        return self._ensure(owners, LOCK)

    def lock_ids(self, owner_ids: Collection[int]) -> None:
        """Hold owners by number, in the same order."""
        self._link.rows(f"SELECT id FROM @owners WHERE id IN [:ids] ORDER BY id {LOCK}", {"ids": sorted(owner_ids)})

    def ensure_id(self, owner: Owner) -> int:
        """Return the owner's number like `ensure`, looked up once per transaction."""
        known = self._ids.get(owner)
        return self.ensure(owner).id if known is None else known

    def ensure_ids(self, owners: Iterable[Owner]) -> Mapping[Owner, int]:
        """Return the owners' numbers like `ensure_id`, in as many statements for many as for one."""
        wanted = list(dict.fromkeys(owners))
        missing = [owner for owner in wanted if owner not in self._ids]
        if missing:
            self._ensure(missing, "")
        return {owner: self._ids[owner] for owner in wanted}

    def pairs(self, pairs: AgentPairs | PrincipalPairs) -> Sequence[OwnerRow]:
        """Return the private pairs that exist."""
        by_agent = isinstance(pairs, AgentPairs)
        name = pairs.agent if isinstance(pairs, AgentPairs) else pairs.principal
        if not name:
            return []
        found = self._link.rows(
            f"{_SELECT} WHERE o.{'agent' if by_agent else 'principal'} = :name AND o.scope = 'private'"
            " AND o.workspace = :workspace ORDER BY o.id",
            {"name": name, "workspace": pairs.workspace},
        )
        return [_owner_row(readable(row[4:]), row) for row in found]

    def name_principal(self, principal: Principal) -> None:
        """Keep the shown form of a principal beside its hash."""
        if self.principal_name(principal.hash) != principal.display:
            self._link.run(
                "INSERT INTO @principals (hash, display) VALUES (:hash, :display)"
                " ON CONFLICT (hash) DO UPDATE SET display = excluded.display",
                {"hash": principal.hash, "display": principal.display},
            )

    def principal_name(self, principal_hash: str) -> str | None:
        """Return the shown form, or None."""
        found = self._link.row("SELECT display FROM @principals WHERE hash = :hash", {"hash": principal_hash})
        return None if found is None else str(found[0])

    def revise(self, owner_ids: Iterable[int]) -> None:
        """Note that facts of these owners changed: whoever keeps them must read them again."""
        ids = sorted(set(owner_ids))
        if len(ids) > 1:
            self.lock_ids(ids)
        if ids:
            self._link.run("UPDATE @owners SET revision = revision + 1 WHERE id IN [:ids]", {"ids": ids})

    def _ensure(self, owners: Sequence[Owner], lock: str, *, restore: bool = True) -> Mapping[Owner, OwnerRow]:
        found = self._rows(owners, lock, restore=restore)
        missing = sorted(set(owners) - set(found))
        if missing:
            self._link.run_many(
                "INSERT INTO @owners (key, scope, agent, principal, session, workspace)"
                " VALUES (:key, :scope, :agent, :principal, :session, :workspace) ON CONFLICT (key) DO NOTHING",
                [{"key": self.key(owner), **_columns(owner)} for owner in missing],
            )
            found = self._rows(owners, lock, restore=restore)
        if restore:
            self._ids.update({owner: row.id for owner, row in found.items()})
        return found

    def _rows(self, owners: Sequence[Owner], lock: str, *, restore: bool = False) -> Mapping[Owner, OwnerRow]:
        by_key = {self.key(owner): owner for owner in owners}
        if len(by_key) == 1:
            found = self._link.rows(f"{_SELECT} WHERE o.key = :key {lock}", {"key": next(iter(by_key))})
        elif by_key:
            found = self._link.rows(f"{_SELECT} WHERE o.key IN [:keys] ORDER BY o.id {lock}", {"keys": sorted(by_key)})
        else:
            found = []
        rows = {}
        for row in found:
            owner = by_key[row[1]]
            if restore and readable(row[4:]) != owner:
                self._write_readable(owner, row[0])
            rows[owner] = _owner_row(owner, row)
        return rows

    def _write_readable(self, owner: Owner, owner_id: int) -> None:
        """Name an owner again that was erased and is written to anew."""
        self._link.run(
            "UPDATE @owners SET scope = :scope, agent = :agent, principal = :principal, session = :session,"
            " workspace = :workspace WHERE id = :id",
            {"id": owner_id, **_columns(owner)},
        )


@lru_cache(maxsize=4_096)
def _owner_key(hmac_key: bytes, owner: Owner) -> str:
    """Return the hash of an owner; every call names the same few again."""
    return _keyed_hash(hmac_key, (owner.scope.value, owner.agent, owner.principal, owner.session, owner.workspace))


def _keyed_hash(hmac_key: bytes, parts: Iterable[str]) -> str:
    digest = hmac.new(hmac_key, digestmod=hashlib.sha256)
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()


def _columns(owner: Owner) -> dict[str, str]:
    return {
        "scope": owner.scope.value,
        "agent": owner.agent,
        "principal": owner.principal,
        "session": owner.session,
        "workspace": owner.workspace,
    }


def _owner_row(owner: Owner, found: Row) -> OwnerRow:
    return OwnerRow(found[0], owner, found[2], moment_or_none(found[3]))
