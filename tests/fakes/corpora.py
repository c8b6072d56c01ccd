"""Rows for search tests, straight into a store's tables: known ids, any number of them, the same on both backends."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from memory_service.contract.scopes import Scope
from memory_service.domain.owners import Owner
from memory_service.ports.records import ItemFilters, OwnerRow, SearchQuery, Vector
from memory_service.ports.storage import Transaction
from memory_service.storage.search import SearchIndex
from memory_service.storage.statements import Link
from tests.fakes.stores import AGENT, Store

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def searches_of(store: Store) -> SearchIndex:
    """Return what a store's searches share."""
    return cast("SearchIndex", cast("Any", store.storage).searches)


def link_of(tx: Transaction) -> Link:
    """Return the link under a transaction."""
    return cast("Link", cast("Any", tx).link)


def units(seed: int, count: int, dimension: int, *, near: Vector | None = None) -> NDArray[np.float32]:
    """Return unit vectors: random ones, or ones close around `near`."""
    values = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    if near is not None:
        values = near + values * np.float32(0.05)
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def words(chooser: random.Random, count: int = 10, vocabulary: int = 300) -> str:
    """Return stems, few of which are common."""
    return " ".join(f"w{int(vocabulary * chooser.random() ** 3)}" for _ in range(count))


def add_owner(tx: Transaction, owner_id: int, scope: Scope = Scope.PRIVATE) -> OwnerRow:
    """Store an owner with a number of the test's choice."""
    link_of(tx).run(
        "INSERT INTO @owners (id, key, scope, agent, principal, session, workspace)"
        " VALUES (:id, :key, :scope, :agent, '', '', '')",
        {"id": owner_id, "key": f"test-{owner_id}", "scope": scope.value, "agent": AGENT},
    )
    return OwnerRow(owner_id, Owner(scope, AGENT), 0, None)


def add_turns(
    tx: Transaction,
    home: OwnerRow,
    session_id: int,
    terms: Sequence[str],
    vectors: Sequence[Vector | None],
    *,
    first_id: int,
) -> None:
    """Store a session whose turns have these stems and vectors, a minute apart."""
    add_owner(tx, 1_000_000 + session_id, Scope.SESSION)
    link_of(tx).run(
        "INSERT INTO @sessions (id, owner_id, home_id, fact_scope, last_seq, window_tokens, window_turns, folded_seq,"
        " extracted_seq, digest_version, index_revision, created_at, last_write_at)"
        " VALUES (:id, :owner, :home, 'private', :last, 0, 0, 0, 0, 0, 1, 0, 1)",
        {"id": session_id, "owner": 1_000_000 + session_id, "home": home.id, "last": len(terms)},
    )
    link_of(tx).run_many(
        "INSERT INTO @turns (id, owner_id, session_id, seq, role, infer, indexed, tokens, said_at, created_at, length,"
        " terms, vector, text)"
        " VALUES (:id, :home, :session, :seq, :role, 1, 1, 1, :at, 0, :length, :terms, :vector, '')",
        [
            {
                "id": first_id + number,
                "home": home.id,
                "session": session_id,
                "seq": number + 1,
                "role": number % 2,
                "at": 1_700_000_000_000_000 + (first_id + number) * 60_000_000,
                "length": len(terms[number].split()),
                "terms": terms[number],
                "vector": link_of(tx).vector_in(vectors[number]),
            }
            for number in range(len(terms))
        ],
    )


def add_facts(
    tx: Transaction,
    owner: OwnerRow,
    terms: Sequence[str],
    vectors: Sequence[Vector | None],
    *,
    first_id: int,
    at: int = 1_700_000_000_000_000,
) -> None:
    """Store active facts with these stems and vectors, said and stored from `at` on."""
    link_of(tx).run_many(
        "INSERT INTO @facts (row_id, owner_id, id, kind, status, text_hash, said_at, valid_from, pinned, revision,"
        " created_at, updated_at, tags, length, terms, vector, text, attributes)"
        " VALUES (:row_id, :owner, :id, 'semantic', 'active', '', :at, :at, 0, 1, :at, :at, '[]', :length, :terms,"
        " :vector, '', '{}')",
        [
            {
                "row_id": first_id + number,
                "owner": owner.id,
                "id": f"00000000-0000-4000-8000-{first_id + number:012d}",
                "at": at + number,
                "length": len(terms[number].split()),
                "terms": terms[number],
                "vector": link_of(tx).vector_in(vectors[number]),
            }
            for number in range(len(terms))
        ],
    )
    link_of(tx).run("UPDATE @owners SET revision = revision + 1 WHERE id = :id", {"id": owner.id})


def multiply_facts(tx: Transaction, owner: OwnerRow, *, have: int, want: int) -> None:
    """Copy an owner's `have` facts, numbered from `have` on, inside the database until there are `want`.

    The vector index is made afterwards: many times faster than row by row.
    """
    link = link_of(tx)
    link.run("[[DROP INDEX @facts_vector|SELECT 1]]")
    count = have
    while count < want:
        link.run(
            "INSERT INTO @facts (row_id, owner_id, id, kind, status, text_hash, said_at, valid_from, pinned, revision,"
            " created_at, updated_at, tags, length, terms, vector, text, attributes)"
            " SELECT row_id + :count, owner_id, 'copy-' || CAST(row_id + :count AS TEXT), kind, status, text_hash,"
            " said_at, valid_from, pinned, revision, created_at, updated_at, tags, length, terms, vector, text,"
            " attributes FROM @facts WHERE owner_id = :owner AND row_id < :upto",
            {"count": count, "owner": owner.id, "upto": have + min(count, want - count)},
        )
        count += min(count, want - count)
    link.run("[[CREATE INDEX facts_vector ON @facts USING hnsw (vector {vectors}.vector_cosine_ops)|SELECT 1]]")
    link.run("UPDATE @owners SET revision = revision + 1 WHERE id = :id", {"id": owner.id})


def query(vector: Vector | None = None, *terms: str, limit: int = 500, **filters: Any) -> SearchQuery:
    """Return a query asked at `NOW`."""
    return SearchQuery(terms, vector, ItemFilters(**{"now": NOW, **filters}), limit)
