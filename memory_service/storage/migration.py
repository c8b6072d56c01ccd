"""Numbered migrations: which files there are, which a database has, and whether this version may serve it.

`0001_name.sqlite.sql` and `0001_name.postgres.sql` belong together. The first line `-- min_reader: N` says how old a
version may be that still serves the schema afterwards.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Protocol

from memory_service.contract.health import Reason
from memory_service.errors import Misconfigured

_NAME = re.compile(r"^(?P<number>\d{4})_(?P<name>[a-z_]+)\.(?P<dialect>sqlite|postgres)\.sql$")
_MIN_READER = re.compile(r"\A-- min_reader: (?P<version>\d+)\n")


@dataclass(frozen=True)
class Migration:
    """One step of the schema in one dialect."""

    number: int
    name: str
    sql: str
    min_reader: int

    @property
    def sha256(self) -> str:
        """Return the hash that tells an applied file from an edited one."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


class Tables(Protocol):
    """What migrating needs of a database; everything in one transaction that the caller commits."""

    def meta(self) -> Mapping[str, str]:
        """Return the store's meta, made empty if this is a new schema."""

    def applied(self) -> Mapping[int, str]:
        """Return the hashes of applied migrations by number."""

    def apply(self, migration: Migration) -> None:
        """Run a migration's statements and note its hash."""

    def set_meta(self, values: Mapping[str, str]) -> None:
        """Write meta values."""


@dataclass(frozen=True)
class Identity:
    """What a schema is made for: an embedding, and (where it is named) a store."""

    embedding_model: str
    dimension: int
    store_uid: str = ""
    store_name: str = ""
    """Its cluster's mark, namespace and name; empty where one is not known. A schema has that of who opened it last."""


@cache
def migrations(dialect: str) -> Sequence[Migration]:
    """Return a dialect's migrations in order."""
    found = []
    for entry in resources.files(__package__).joinpath("migrations").iterdir():
        name = _NAME.match(entry.name)
        if name is None or name["dialect"] != dialect:
            continue
        sql = entry.read_text(encoding="utf-8")
        reader = _MIN_READER.match(sql)
        if reader is None:
            raise ValueError(f"{entry.name} does not begin with `-- min_reader: N`")
        found.append(Migration(int(name["number"]), name["name"], sql, int(reader["version"])))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"the {dialect} migrations are not numbered 1, 2, 3 …")
    return found


def bring_up_to_date(tables: Tables, steps: Sequence[Migration], identity: Identity) -> Mapping[str, str]:
    """Apply what is missing and return the meta; everything is checked before anything is changed.

    Raises:
        Misconfigured: too new, edited, made for another embedding or another store's.
    """
    meta = dict(tables.meta())
    applied = tables.applied()
    check(meta, identity, latest=len(steps))
    for step in steps:
        if step.number in applied and applied[step.number] != step.sha256:
            raise Misconfigured(
                f"migration {step.number} ({step.name}) of this schema is not the one of this version;"
                " it was made by a build that was never released. Use a new schema or folder",
                reason=Reason.SCHEMA_MISMATCH,
            )
    missing = [step for step in steps if step.number not in applied]
    for step in missing:
        tables.apply(step)
    wanted = {
        "embedding_model": identity.embedding_model,
        "dimension": str(identity.dimension),
        "hmac_key": meta.get("hmac_key") or secrets.token_hex(32),
        "store_uid": meta.get("store_uid") or identity.store_uid,
        "store_name": identity.store_name,
        "schema_version": meta.get("schema_version", "0"),
        "min_reader_version": meta.get("min_reader_version", "1"),
    }
    if missing:
        wanted["schema_version"] = str(max(int(wanted["schema_version"]), missing[-1].number))
        readers = [step.min_reader for step in missing]
        wanted["min_reader_version"] = str(max(int(wanted["min_reader_version"]), *readers))
    changed = {key: value for key, value in wanted.items() if meta.get(key) != value}
    if changed:
        tables.set_meta(changed)
    return meta | changed


def check(meta: Mapping[str, str], identity: Identity, *, latest: int) -> None:
    """Refuse a schema that this version or this configuration must not serve.

    Raises:
        Misconfigured: with what is wrong and what to do.
    """
    needed = int(meta.get("min_reader_version", "1"))
    if needed > latest:
        raise Misconfigured(
            f"the schema needs a version that knows schema {needed}; this one knows {latest}. Run a newer version",
            reason=Reason.SCHEMA_TOO_NEW,
        )
    model, dimension = meta.get("embedding_model"), meta.get("dimension")
    if model is not None and (model, dimension) != (identity.embedding_model, str(identity.dimension)):
        raise Misconfigured(
            f"the schema was made for the embedding {model!r} with {dimension} dimensions, and the configuration names"
            f" {identity.embedding_model!r} with {identity.dimension}. Set the first again, or use a new schema or"
            " folder and import an export into it",
            reason=Reason.EMBEDDING_MISMATCH,
        )
    uid = meta.get("store_uid")
    if uid and identity.store_uid and uid != identity.store_uid:
        raise Misconfigured(
            f"the schema belongs to the store with uid {uid!r}, not to {identity.store_uid!r}."
            " Name another schema, or leave `storeUid` empty to adopt this one",
            reason=Reason.SCHEMA_MISMATCH,
        )
