"""Export and import: whole rows, between any two backends, never over what is there or was erased."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from memory_service.contract.limits import MAX_BODY_BYTES, MAX_HISTORY_CHARS, MAX_SOURCE_SEQS
from memory_service.contract.scopes import Scope
from memory_service.domain import lexical
from memory_service.domain.callers import Principal
from memory_service.domain.owners import AgentErasure, Erasure, Owner, PairErasure, PrincipalErasure, SessionErasure
from memory_service.errors import InvalidRequest
from memory_service.ports.records import DigestRow, FactChange, FactRow, FactSource, ItemFilters, TurnRow
from memory_service.ports.storage import Transaction
from memory_service.storage.rows import fact_sources
from memory_service.storage.rows import lines as lines_of
from memory_service.storage.transaction import RowTransaction
from tests.fakes.corpora import link_of
from tests.fakes.stores import AGENT, BOB, OTHER_AGENT, Store, fact, pair_of, session_of, turn, uid, vector

PRINCIPAL = Principal("https://issuer", "alice")
ALICE = PRINCIPAL.hash
SHARED = Owner(Scope.SHARED)
Line = Mapping[str, Any]


def populate(tx: Transaction) -> None:
    now = tx.now()
    tx.owners.name_principal(PRINCIPAL)
    for agent, principal in ((AGENT, ALICE), (AGENT, BOB), (OTHER_AGENT, ALICE)):
        session = tx.sessions.ensure(session_of(agent=agent, principal=principal), Scope.SHARED, now)
        tx.turns.append(session, [turn(f"turn {n}", client_id=f"c{n}", tokens=n) for n in range(1, 6)], now)
        tx.turns.store_vectors(session.id, {tx.turns.unindexed(session.id, limit=1)[0].id: vector(7)})
        for version in (1, 2):
            digest = DigestRow(session.id, version, f"digest {version}", version, 2, now)
            tx.digests.append(digest, folded_from=version - 1, keep=5)
        tx.sessions.advance_extracted(session.id, from_seq=0, to_seq=4)
        for owner in (pair_of(agent=agent, principal=principal), SHARED):
            name = f"{owner.scope}-{agent}-{principal[:4]}"
            source = FactSource(agent, principal, "s1", "", (1, 2))
            tx.facts.add(
                fact(name, owner, source=source, key=name.replace("/", "."), tags=("a",), vector=vector(3)),
                fact_id=uid(name),
                actor="t",
                now=now,
            )
    tx.facts.add_source(uid(f"shared-{AGENT}-{ALICE[:4]}"), FactSource(AGENT, BOB, "s1"))
    tx.facts.change(
        uid(f"shared-{AGENT}-{BOB[:4]}"),
        FactChange({"text": "said anew"}, terms=("anew",)),
        event="corrected",
        actor="e",
        now=now,
    )


async def export(store: Store, limit: int = 3) -> list[Line]:
    lines: list[Line] = []
    cursor = None
    while True:
        page, cursor = await store.storage.read(lambda tx, cursor=cursor: tx.moving.export(cursor=cursor, limit=limit))
        lines += [json.loads(json.dumps(line)) for line in page]
        if cursor is None:
            return lines


async def restore(store: Store, lines: Sequence[Line]) -> list[str]:
    return await store.storage.transact(lambda tx: list(tx.moving.restore(lines, tx.now()).outcomes))


def without_numbers(fact_row: FactRow) -> dict[str, Any]:
    return {name: value for name, value in vars(fact_row).items() if name != "row_id"}


def seen(tx: Transaction, now: Any) -> dict[str, Any]:
    """Return everything that a caller could see, without the store's own numbers."""

    def spoken(row: TurnRow) -> dict[str, Any]:
        return {name: value for name, value in row._asdict().items() if name not in {"id", "session_id"}}

    seen: dict[str, Any] = {"principal": tx.owners.principal_name(ALICE)}
    for agent, principal in ((AGENT, ALICE), (AGENT, BOB), (OTHER_AGENT, ALICE)):
        row = tx.sessions.find(session_of(agent=agent, principal=principal))
        if row is None:
            continue
        fields = {name: value for name, value in vars(row).items() if name not in {"id", "home_id"}}
        turns = tx.turns.between(row, after=0, upto=None, limit=100)
        digests = [(d.version, d.summary, d.upto_seq) for d in tx.digests.list(row.id, limit=10)]
        waiting = [turn.seq for turn in tx.turns.unindexed(row.id, limit=10)]
        seen[f"{agent}-{principal}"] = (fields, [spoken(turn) for turn in turns], digests, waiting)
    for fact_row in tx.facts.list_all(filters=ItemFilters(now=now), limit=100, after=None):
        seen[fact_row.id] = (without_numbers(fact_row), tx.facts.history(fact_row.id))
    return seen


async def look(store: Store) -> dict[str, Any]:
    return await store.storage.read(lambda tx: seen(tx, store.clock.now()))


async def test_an_import_of_an_export_is_the_same_store(store: Store, target: Store) -> None:
    await store.storage.transact(populate)
    lines = await export(store)
    assert set(await restore(target, lines)) == {"imported"}
    assert await look(target) == await look(store)
    assert undated(await export(target, 100)) == undated(lines)


def undated(lines: Sequence[Line]) -> list[str]:
    """Return the lines in one order, without those that carry the time of the export or a hash of its store."""
    return sorted(json.dumps(line) for line in lines if line["type"] not in {"principal", "subject"})


async def test_importing_again_changes_nothing(store: Store, target: Store) -> None:
    await store.storage.transact(populate)
    lines = await export(store)
    await restore(target, lines)
    before = await look(target)
    assert set(await restore(target, lines)) == {"skipped"}
    assert set(await restore(store, lines)) == {"skipped"}
    assert await look(target) == before == await look(store)


async def test_a_line_that_comes_twice_in_one_batch_is_stored_once(store: Store, target: Store) -> None:
    await store.storage.transact(populate)
    lines = await export(store)
    outcomes = await restore(target, [line for line in lines for _ in range(2)])
    assert outcomes == ["imported", "skipped"] * len(lines)
    assert await look(target) == await look(store)


async def test_an_import_goes_on_where_it_stopped(store: Store, target: Store) -> None:
    await store.storage.transact(populate)
    lines = await export(store)
    for line in lines[: len(lines) // 2]:
        await restore(target, [line])
    await restore(target, lines)
    assert await look(target) == await look(store)


def _say_everywhere(tx: Transaction) -> None:
    """Store a fact that was said in more sessions than a line names, with the longest ids that there are."""
    agent = f"kaos://agent/{'n' * 63}/{'.'.join(['a' * 62] * 4)}"
    ends = FactSource(agent, ALICE, "s" * 120, "w" * 128, tuple(range(10**6, 10**6 + MAX_SOURCE_SEQS)))
    tx.facts.add(fact("we say it again", SHARED), fact_id=uid("often"), actor="t", now=tx.now())
    owner_id, row_id = link_of(tx).rows("SELECT owner_id, row_id FROM @facts", {})[0]
    places = [replace(ends, session=f"{ends.session}{number}") for number in range(2 * lines_of.SOURCES_PER_LINE)]
    link_of(tx).run_many(
        fact_sources.INSERT,
        [{"owner_id": owner_id, "fact_id": row_id, **fact_sources.values(place)} for place in places],
    )


async def _sources(store: Store) -> set[tuple[Any, ...]]:
    return set(await store.storage.read(lambda tx: link_of(tx).rows("SELECT session, seqs FROM @fact_sources", {})))


async def test_a_fact_of_very_many_sessions_is_exported_in_lines_that_an_import_takes_one_by_one(
    store: Store, target: Store
) -> None:
    await store.storage.transact(_say_everywhere)
    lines = [line for line in await export(store, 1) if line["type"] == "fact"]
    assert [len(line["sources"]) for line in lines] == [1_000, 1_000, 1]
    assert max(len(json.dumps(line)) for line in lines) + MAX_HISTORY_CHARS * len("\\u0001") < MAX_BODY_BYTES
    for line in lines[::-1]:
        assert set(await restore(target, [line])) <= {"imported", "skipped"}
    assert len(await _sources(target)) == 2_001
    assert await _sources(target) == await _sources(store)


async def test_a_fact_whose_first_line_an_erasure_keeps_away_comes_with_its_other_sources_and_says_no_more(
    store: Store, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first who said it is erased in the other store: its text stays, what was given with it does not."""
    monkeypatch.setattr(lines_of, "SOURCES_PER_LINE", 1)

    def work(tx: Transaction) -> None:
        hers, his = FactSource(AGENT, ALICE, "s1"), FactSource(AGENT, BOB, "s1")
        draft = fact("we both say it", SHARED, source=hers, key="k", tags=("hers",), evidence="she said so")
        tx.facts.add(draft, fact_id=uid("both"), actor="t", now=tx.now())
        tx.facts.add_source(uid("both"), his)

    def erase_her(tx: Transaction) -> None:
        tx.owners.share([PrincipalErasure(ALICE).marks[0]])
        tx.erasing.erase(PrincipalErasure(ALICE), receipt_id="r", asked_by=None, now=tx.now())

    await store.storage.transact(work)
    target.clock.advance(timedelta(hours=1))
    await target.storage.transact(erase_her)
    assert Counter(await restore(target, await export(store)))["tombstoned"] == 1
    kept = await target.storage.read(lambda tx: tx.facts.get(uid("both")))
    assert kept is not None
    assert [source.principal for source in kept.sources] == [BOB]
    assert (kept.text, kept.tags, kept.evidence, kept.key) == ("we both say it", (), None, None)


@pytest.mark.parametrize("limit", [1, 2, 1_000])
async def test_an_export_is_whole_whatever_its_pages(store: Store, limit: int) -> None:
    await store.storage.transact(populate)
    kinds = [line["type"] for line in await export(store, limit)]
    assert kinds == ["principal"] + ["subject"] * 6 + ["session"] * 3 + ["turn"] * 15 + ["digest"] * 3 + ["fact"] * 6


@pytest.mark.parametrize(
    ("erasure", "kept_principal"),
    [
        (PrincipalErasure(ALICE), False),
        (AgentErasure(AGENT), True),
        (SessionErasure(AGENT, ALICE, "s1"), True),
        (PairErasure(AGENT, ALICE), True),
    ],
)
async def test_an_import_brings_back_nothing_that_was_erased(
    store: Store, erasure: Erasure, kept_principal: bool
) -> None:
    await store.storage.transact(populate)
    lines = await export(store)
    store.clock.advance(timedelta(seconds=5))
    await store.storage.transact(lambda tx: tx.erasing.erase(erasure, receipt_id="r", asked_by=None, now=tx.now()))
    after = await look(store)
    outcomes = await restore(store, lines)
    assert set(outcomes) == {"skipped", "tombstoned"}
    assert await look(store) == after
    assert (after["principal"] is not None) is kept_principal


async def test_an_import_names_nobody_again_whose_lines_it_refuses(store: Store) -> None:
    await store.storage.transact(populate)
    lines = await export(store)
    store.clock.advance(timedelta(seconds=5))
    await store.storage.transact(
        lambda tx: tx.erasing.erase(AgentErasure(OTHER_AGENT), receipt_id="r", asked_by=None, now=tx.now())
    )
    await restore(store, lines)

    def named(tx: Transaction) -> int:
        assert isinstance(tx, RowTransaction)
        found = tx.link.row("SELECT COUNT(*) FROM @owners WHERE agent = :agent", {"agent": OTHER_AGENT})
        assert found is not None
        return int(found[0])

    assert await store.storage.read(named) == 0


async def test_what_is_stored_after_an_erasure_can_be_imported(store: Store) -> None:
    await store.storage.transact(populate)
    await store.storage.transact(
        lambda tx: tx.erasing.erase(PrincipalErasure(ALICE), receipt_id="r", asked_by=None, now=tx.now())
    )
    store.clock.advance(timedelta(seconds=5))

    def write(tx: Transaction) -> None:
        row = tx.sessions.ensure(session_of(principal=ALICE), Scope.PRIVATE, tx.now())
        tx.turns.append(row, [turn("after")], tx.now())

    await store.storage.transact(write)
    mine = [line for line in await export(store) if line.get("principal") == ALICE and line["type"] == "turn"]
    assert await restore(store, mine) == ["skipped"]


async def test_an_import_brings_back_nothing_that_an_erased_person_gave_a_fact_of_others(store: Store) -> None:
    mine, theirs = FactSource(AGENT, ALICE, "s1"), FactSource(AGENT, BOB, "s9")

    def work(tx: Transaction) -> None:
        draft = fact("we all say", SHARED, source=mine, evidence="hers", tags=("t",), attributes={"a": "b"})
        tx.facts.add(draft, fact_id=uid("f"), actor="t", now=tx.now())
        tx.facts.add_source(uid("f"), theirs)

    await store.storage.transact(work)
    lines = await export(store)
    await store.storage.transact(
        lambda tx: tx.erasing.erase(PrincipalErasure(ALICE), receipt_id="r", asked_by=None, now=tx.now())
    )
    await store.storage.transact(
        lambda tx: tx.erasing.erase(AgentErasure(OTHER_AGENT), receipt_id="r2", asked_by=None, now=tx.now())
    )
    await store.storage.transact(lambda tx: tx.link.run("DELETE FROM @facts"))
    await restore(store, lines)
    found = await store.storage.read(lambda tx: tx.facts.get(uid("f")))
    assert found is not None
    assert (found.text, found.sources, found.evidence, found.tags, found.attributes) == (
        "we all say", (theirs,), None, (), {},
    )  # fmt: skip


async def test_an_import_does_not_bring_back_a_deleted_fact(store: Store) -> None:
    await store.storage.transact(populate)
    lines = [line for line in await export(store) if line["type"] == "fact"][:1]
    await store.storage.transact(lambda tx: tx.facts.delete(lines[0]["id"]))
    assert await restore(store, lines) == ["tombstoned"]


async def test_vectors_of_another_model_are_left_out_and_made_again(store: Store) -> None:
    await store.storage.transact(populate)
    lines = [{**line, **({"embedding_model": "foreign"} if "vector" in line else {})} for line in await export(store)]
    await store.storage.transact(
        lambda tx: [
            tx.erasing.erase(PrincipalErasure(name), receipt_id=name[:9], asked_by=None, now=tx.now())
            for name in (ALICE, BOB)
        ]
    )
    later = [
        {**line, "created_at": line["created_at"] + 10**9} | ({"history": []} if "history" in line else {})
        for line in lines
        if line["type"] != "subject"
    ]
    assert set(await restore(store, later)) == {"imported"}
    waiting = await store.storage.read(lambda tx: tx.facts.without_vector(limit=100))
    assert len(waiting) == 6
    session = await store.storage.read(lambda tx: tx.sessions.find(session_of(principal=ALICE)))
    assert session is not None
    assert len(await store.storage.read(lambda tx: tx.turns.unindexed(session.id, limit=10))) == 5


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"type": "unknown"},
        {"type": "turn"},
        {"type": "session", "agent": 1},
        {"type": "fact", "id": "x", "created_at": 1, "scope": "nowhere"},
        {"type": "principal", "hash": "h", "display": "d", "created_at": "soon"},
    ],
)
async def test_a_line_that_is_not_of_an_export_is_refused_and_nothing_is_stored(store: Store, line: Line) -> None:
    with pytest.raises(InvalidRequest):
        await restore(store, [{"type": "principal", "hash": "h", "display": "d", "created_at": 1}, line])
    assert await store.storage.read(lambda tx: tx.owners.principal_name("h")) is None


def _vectors(lines: Sequence[dict[str, Any]]) -> dict[str, NDArray[np.float32]]:
    return {
        str(line.get("id", line.get("seq"))): np.frombuffer(base64.b64decode(line["vector"]), "<f4")
        for line in lines
        if "vector" in line
    }


@pytest.mark.parametrize("factor", [1.0, 50.0, 1e-6])
async def test_an_imported_vector_has_unit_length_however_long_it_came(
    store: Store, target: Store, factor: float
) -> None:
    await store.storage.transact(populate)
    lines = [dict(line) for line in await export(store)]
    before = _vectors(lines)
    for line in lines:
        if "vector" in line:
            stored = np.frombuffer(base64.b64decode(line["vector"]), "<f4") * np.float32(factor)
            line["vector"] = base64.b64encode(stored.astype("<f4").tobytes()).decode()
    await restore(target, lines)
    after = _vectors([dict(line) for line in await export(target)])
    assert before.keys() == after.keys()
    for name, vector_before in before.items():
        assert np.allclose(after[name], vector_before, atol=1e-6)
        assert factor != 1.0 or bool((after[name] == vector_before).all())


async def test_an_imported_vector_without_a_direction_is_made_again(store: Store, target: Store) -> None:
    await store.storage.transact(populate)
    lines = [dict(line) for line in await export(store)]
    for line in lines:
        if "vector" in line:
            line["vector"] = base64.b64encode(bytes(len(base64.b64decode(line["vector"])))).decode()
    await restore(target, lines)
    assert await target.storage.read(lambda tx: tx.facts.without_vector(limit=1))
    assert not _vectors([dict(line) for line in await export(target)])


@pytest.mark.parametrize("field", ["seq", "text", "role", "parts", "tokens", "vector", "created_at"])
async def test_a_damaged_turn_is_refused(store: Store, field: str) -> None:
    await store.storage.transact(populate)
    good = next(line for line in await export(store) if line["type"] == "turn" and "vector" in line)
    for value in ({"a": 1}, 2**70, "A\x00", ["x"]):
        damaged = {**good, "seq": 999, "client_id": None, field: value}
        with pytest.raises(InvalidRequest):
            await restore(store, [damaged])


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("turn", "parts.0.type", [{"type": "foo"}]),
        ("turn", "parts.0.more", [{"type": "text", "text": "x", "more": 1}]),
        ("turn", "parts", "abc"),
        ("turn", "said_at", 10**18),
        ("turn", "said_at", True),
        ("turn", "tokens", "7"),
        ("fact", "importance", "0.5"),
        ("turn", "tokens", -5_000_000),
        ("turn", "seq", -3),
        ("turn", "seq", 2**70),
        ("turn", "session", "bad session id!"),
        ("turn", "agent", "nobody"),
        ("session", "last_seq", -1),
        ("digest", "created_at", -(10**18)),
        ("fact", "said_at", 10**18),
        ("fact", "importance", 7),
        ("fact", "attributes", {"a": "\x00"}),
        ("fact", "text", ""),
        ("fact", "id", "abc"),
        ("fact", "id", "ABCDEF00-0000-0000-0000-000000000000"),
        ("fact", "superseded_by", 5),
        ("fact", "superseded_by", "nope"),
        ("fact", "vector", "!!"),
        ("fact", "vector", "AAAA"),
        ("fact", "vector", "/////////////////////////////////////////w=="),
        ("turn", "indexed", 2),
        ("fact", "history.0.event", [{"event": "melted"}]),
        ("fact", "sources.0.seqs.0", [{"seqs": [-1]}]),
        ("", "type", "cake"),
    ],
)
async def test_an_import_names_the_line_and_the_field_that_no_read_could_answer(
    store: Store, kind: str, field: str, value: Any
) -> None:
    await store.storage.transact(populate)
    good = next(line for line in await export(store) if not kind or line["type"] == kind)
    name = field.partition(".")[0]
    if name in {"history", "sources"}:
        value = [{**good[name][0], **value[0]}]
    with pytest.raises(InvalidRequest) as refused:
        await restore(store, [good, {**good, name: value}])
    where = refused.value.errors[0].field
    assert where == (f"lines.1.{field}" if not field.endswith(".type") or not kind else "lines.1.parts.0")


@pytest.mark.parametrize(("kind", "field"), [("fact", "superseded_by"), ("turn", "indexed"), ("session", "digest")])
async def test_an_import_names_the_field_that_is_missing(store: Store, kind: str, field: str) -> None:
    await store.storage.transact(populate)
    good = next(line for line in await export(store) if line["type"] == kind)
    with pytest.raises(InvalidRequest) as refused:
        await restore(store, [good, {name: value for name, value in good.items() if name != field}])
    assert refused.value.errors[0].field == f"lines.1.{field}"


@pytest.mark.parametrize(
    "cursor",
    [
        "", "x", "[9,1]", "[1]", "[0,1]", '[1,"x"]', "null", "[-1,1]", "[1.5,1]", "[1,true]", "[true,1]", "[1,-1]",
        f"[1,{2**63}]", "[" * 100_000, '[0,"\\ud800"]', '[0,"\\u0000"]',
    ],
)  # fmt: skip
async def test_a_cursor_that_was_not_given_out_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidRequest):
        await store.storage.read(lambda tx: tx.moving.export(cursor=cursor, limit=5))


async def test_long_turns_end_a_page_before_its_rows_do(store: Store, target: Store) -> None:
    def write(tx: Transaction) -> None:
        session = tx.sessions.ensure(session_of(), Scope.SHARED, tx.now())
        tx.turns.append(session, [turn(f"{n} " + "word " * 180_000) for n in range(5)], tx.now())

    await store.storage.transact(write)
    cursor, pages = None, []
    while True:
        page, cursor = await store.storage.read(
            lambda tx, cursor=cursor: tx.moving.export(cursor=cursor, limit=100)  # type: ignore[misc]
        )
        pages.append(page)
        if cursor is None:
            break
    assert [len([line for line in page if line["type"] == "turn"]) for page in pages] == [2, 2, 1]
    for page in pages:
        assert set(await restore(target, page)) == {"imported"}


async def test_stems_are_made_by_the_import(store: Store, target: Store) -> None:
    await store.storage.transact(populate)
    lines = await export(store)
    assert not any("terms" in line for line in lines)
    await restore(target, lines)

    def stems(tx: Transaction) -> list[tuple[str, str]]:
        assert isinstance(tx, RowTransaction)
        return [(row[0], row[1]) for row in tx.link.rows("SELECT text, terms FROM @facts WHERE text = 'said anew'")]

    ((text, made),) = await target.storage.read(stems)
    assert set(lexical.terms(text)) <= set(made.split(" "))
