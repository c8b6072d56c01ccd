"""CPU of one search by words and meaning, by how many rows the owner has: rows in SQLite, no embedding, no ranking.

    python bench/search.py [--dimension 384] [--searches 50] [--sizes 1000 6000 20000 100000]

`first` reads the owner's rows; `next` finds them kept; `after a write` finds one new turn. Owners above 20,000 rows are
searched through the full-text index and (without `--mirror`) by reading every vector; with it through Chroma.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from memory_service.contract.scopes import Scope
from memory_service.domain.owners import Owner
from memory_service.ports.records import ItemFilters, OwnerRow, Pool, SearchQuery
from memory_service.storage import migration
from memory_service.storage.local_tables import SqliteTables
from memory_service.storage.search import SearchIndex, local_search
from memory_service.storage.sqlite_link import SqliteLink, connect
from memory_service.storage.statements import Statements
from memory_service.storage.states import CHANGE

HOME = OwnerRow(1, Owner(Scope.PRIVATE, "agent"), 0, None)
TURNS_PER_SESSION = 200


class _Clock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def shift(self) -> timedelta:
        return timedelta(0)

    def monotonic(self) -> float:
        return time.monotonic()


def _open(folder: Path, dimension: int) -> SqliteLink:
    connection = connect(folder / "bench.sqlite3")
    tables = SqliteTables(connection)
    identity = migration.Identity("bench", dimension)
    tables.in_one_transaction(lambda: migration.bring_up_to_date(tables, migration.migrations("sqlite"), identity))
    return SqliteLink(
        connection, Statements(postgres=False), _Clock(), dimension=dimension, embedding_model="bench", hmac_key=b""
    )


def _owner(link: SqliteLink, owner_id: int, scope: str) -> None:
    link.run(
        "INSERT INTO @owners (id, key, scope, agent, principal, session, workspace)"
        " VALUES (:id, :key, :scope, '', '', '', '')",
        {"id": owner_id, "key": str(owner_id), "scope": scope},
    )


def _fill(link: SqliteLink, size: int) -> None:
    """Store turns whose words fall off as words do, and random unit vectors."""
    generator, chooser = np.random.default_rng(size), random.Random(size)
    stems = [f"stem{number}" for number in range(20_000)]
    weights = list(itertools.accumulate(1 / (number + 1) for number in range(len(stems))))
    link.connection.execute("BEGIN")
    _owner(link, HOME.id, "private")
    for session in range(1, -(-size // TURNS_PER_SESSION) + 1):
        count = min(TURNS_PER_SESSION, size - (session - 1) * TURNS_PER_SESSION)
        _owner(link, session + 1000, "session")
        link.run(
            "INSERT INTO @sessions (id, owner_id, home_id, fact_scope, last_seq, window_tokens, window_turns,"
            " folded_seq, extracted_seq, digest_version, index_revision, created_at, last_write_at)"
            " VALUES (:id, :owner, :home, 'private', :count, 0, 0, 0, 0, 0, 1, 0, 0)",
            {"id": session, "owner": session + 1000, "home": HOME.id, "count": count},
        )
        vectors = generator.standard_normal((count, link.dimension)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        link.run_many(
            "INSERT INTO @turns (owner_id, session_id, seq, role, infer, indexed, tokens, said_at, created_at, length,"
            " terms, vector, text) VALUES (:home, :session, :seq, 0, 1, 1, 1, :at, 0, 15, :terms, :vector, '')",
            [
                {
                    "home": HOME.id,
                    "session": session,
                    "seq": number + 1,
                    "at": 10**15 + number,
                    "terms": " ".join(chooser.choices(stems, cum_weights=weights, k=15)),
                    "vector": link.vector_in(vectors[number]),
                }
                for number in range(count)
            ],
        )
    link.connection.execute("COMMIT")


def _add_turn(link: SqliteLink) -> None:
    link.connection.execute("BEGIN")
    link.run(f"UPDATE @sessions SET last_seq = last_seq + 1, {CHANGE} WHERE id = 1")
    link.run(
        "INSERT INTO @turns (owner_id, session_id, seq, role, infer, indexed, tokens, said_at, created_at, length,"
        " terms, vector, text)"
        " SELECT 1, 1, last_seq, 0, 1, 0, 1, 1, 0, 2, 'stem3 stem90', NULL, '' FROM @sessions WHERE id = 1"
    )
    link.connection.execute("COMMIT")


def _cpu(work: Callable[[], object], repeat: int, before: Callable[[], object] = lambda: None) -> float:
    """Return the median CPU of one call in milliseconds, all threads together."""
    taken = []
    for _ in range(repeat):
        before()
        start = time.process_time()
        work()
        taken.append((time.process_time() - start) * 1000)
    return sorted(taken)[len(taken) // 2]


def _search(index: SearchIndex, link: SqliteLink) -> Pool:
    vector = np.ones(link.dimension, np.float32) / np.float32(np.sqrt(link.dimension))
    filters = ItemFilters(now=datetime.now(UTC))
    query = SearchQuery(("stem2", "stem40", "stem300", "stem2500", "unknown"), vector, filters)
    return index.over(link, committed=True).episodes([HOME], query, session=None)


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--dimension", type=int, default=384)
    arguments.add_argument("--searches", type=int, default=50)
    arguments.add_argument("--sizes", type=int, nargs="+", default=[1_000, 6_000, 20_000, 100_000])
    arguments.add_argument("--mirror", action="store_true", help="mirror large owners in Chroma first")
    given = arguments.parse_args()
    print(f"{'own rows':>9} {'first':>10} {'next':>10} {'after a write':>14} {'candidates':>11} {'kept':>9}")
    for size in given.sizes:
        with tempfile.TemporaryDirectory() as name:
            link = _open(Path(name), given.dimension)
            _fill(link, size)
            index = local_search(Path(name), given.dimension)
            if given.mirror and index.mirror is not None:
                index.mirror.reconcile(lambda work, link=link: work(link))
            first = _cpu(lambda index=index, link=link: _search(index, link), 1)
            warm = _cpu(lambda index=index, link=link: _search(index, link), given.searches)
            written = _cpu(
                lambda index=index, link=link: _search(index, link),
                min(20, given.searches),
                before=lambda link=link: _add_turn(link),
            )
            found = len(_search(index, link).row_ids)
            kept = index.cache.nbytes / 1e6
            print(f"{size:>9,} {first:>7.1f} ms {warm:>7.2f} ms {written:>11.2f} ms {found:>11,} {kept:>6.1f} MB")
            index.close()
            link.connection.close()


if __name__ == "__main__":
    main()
