"""Owner keys and their generations, and answers under idempotency keys."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory_service.contract.scopes import Scope
from memory_service.domain.callers import Principal
from memory_service.domain.owners import AgentPairs, Owner, PairErasure, PrincipalPairs, agent_mark
from memory_service.ports.records import StoredAnswer
from memory_service.ports.storage import Transaction
from memory_service.storage.encoding import micros
from tests.fakes.corpora import link_of
from tests.fakes.stores import AGENT, ALICE, BOB, OTHER_AGENT, Store, fact, pair_of, session_of


async def test_an_owner_is_made_once_and_found_again(store: Store) -> None:
    rows = await asyncio.gather(*(store.storage.transact(lambda tx: tx.owners.ensure(pair_of())) for _ in range(8)))
    assert len({row.id for row in rows}) == 1
    assert await store.storage.read(lambda tx: tx.owners.find([pair_of(), session_of()])) == {pair_of(): rows[0]}
    assert await store.storage.read(lambda tx: tx.owners.get(rows[0].id)) == rows[0]
    assert await store.storage.read(lambda tx: tx.owners.get(999_999)) is None


async def test_shared_owners_come_back_under_their_names(store: Store) -> None:
    owners = [agent_mark(AGENT), pair_of(principal=ALICE), Owner(Scope.USER, principal=ALICE), session_of()]
    rows = await store.storage.transact(lambda tx: tx.owners.share(owners))
    assert set(rows) == set(owners)
    assert all(row.owner == owner and row.generation == 0 and row.erased_at is None for owner, row in rows.items())
    assert await store.storage.transact(lambda tx: tx.owners.share(owners)) == rows
    assert await store.storage.transact(lambda tx: tx.owners.share([])) == {}


_PARTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_two_owners_share_a_key(data: st.DataObject) -> None:
    from memory_service.storage.rows.owners import OwnerKeys

    class Keyed:
        hmac_key = b"k" * 32

    keys = OwnerKeys(Keyed())  # type: ignore[arg-type]
    owner = st.builds(Owner, st.sampled_from(Scope), _PARTS, _PARTS, _PARTS, _PARTS)
    one, other = data.draw(owner), data.draw(owner)
    assert (keys.key(one) == keys.key(other)) == (one == other)


@pytest.mark.parametrize("name", ["*", "%", "_", "a' OR '1'='1", "kaos:shared", "a&agent_id=b", " ", "ü" * 200])
async def test_an_id_is_compared_literally(store: Store, name: str) -> None:
    def add(tx: Transaction, principal: str) -> None:
        tx.facts.add(
            fact(f"of {principal}", pair_of(principal=principal)), fact_id=str(hash(principal)), actor="t", now=tx.now()
        )

    await store.storage.transact(lambda tx: [add(tx, ALICE), add(tx, BOB), add(tx, name)])
    for pairs in (PrincipalPairs(name), AgentPairs(name)):
        found = await store.storage.read(lambda tx, pairs=pairs: tx.owners.pairs(pairs))
        assert {row.owner.principal for row in found} <= {name}
    mine = await store.storage.read(lambda tx: tx.owners.find([pair_of(principal=name)]))
    facts = await store.storage.read(
        lambda tx: tx.facts.list(list(mine.values()), filters=_now(store), limit=100, after=None)
    )
    assert [row.text for row in facts] == [f"of {name}"]
    erased = await store.storage.transact(
        lambda tx: tx.erasing.erase(PairErasure(AGENT, name), receipt_id="r", asked_by=None, now=tx.now())
    )
    assert erased.erased["facts"] == 1
    assert await store.storage.read(lambda tx: tx.facts.count_active()) == 2


def _now(store: Store):  # type: ignore[no-untyped-def]
    from memory_service.ports.records import ItemFilters

    return ItemFilters(now=store.clock.now())


async def test_pairs_are_those_of_one_agent_or_one_principal_in_one_workspace(store: Store) -> None:
    owners = [
        pair_of(),
        pair_of(principal=ALICE),
        pair_of(principal=ALICE, workspace="w"),
        pair_of(agent=OTHER_AGENT, principal=ALICE),
        session_of(principal=ALICE),
        Owner(Scope.USER, principal=ALICE),
        Owner(Scope.SHARED),
    ]
    await store.storage.transact(lambda tx: [tx.owners.ensure(owner) for owner in owners])

    async def pairs(of: AgentPairs | PrincipalPairs) -> set[Owner]:
        return {row.owner for row in await store.storage.read(lambda tx: tx.owners.pairs(of))}

    assert await pairs(AgentPairs(AGENT)) == {owners[0], owners[1]}
    assert await pairs(AgentPairs(AGENT, "w")) == {owners[2]}
    assert await pairs(PrincipalPairs(ALICE)) == {owners[1], owners[3]}
    assert await pairs(PrincipalPairs(BOB)) == set()
    assert await pairs(PrincipalPairs("")) == set()
    assert await pairs(AgentPairs("")) == set()


async def test_a_principals_name_is_kept_and_replaced(store: Store) -> None:
    principal = Principal("https://issuer", "alice")
    assert await store.storage.read(lambda tx: tx.owners.principal_name(principal.hash)) is None
    for _ in range(2):
        await store.storage.transact(lambda tx: tx.owners.name_principal(principal))
    assert await store.storage.read(lambda tx: tx.owners.principal_name(principal.hash)) == "https://issuer#alice"


ANSWER = StoredAnswer(body_hash="h", status=200, body='{"ok":true}')


def once(tx: Transaction, owner: Owner, ran: list[int], key: str = "k") -> StoredAnswer:
    known = tx.idempotency.begin(owner, route="write", key=key, body_hash="h", now=tx.now())
    if known is not None:
        return known
    ran.append(1)
    tx.jobs.counts(tx.now())
    tx.idempotency.finish(owner, route="write", key=key, answer=ANSWER)
    return ANSWER


async def test_a_request_that_is_repeated_is_carried_out_once(store: Store) -> None:
    ran: list[int] = []
    answers = await asyncio.gather(*(store.storage.transact(lambda tx: once(tx, pair_of(), ran)) for _ in range(12)))
    assert answers == [ANSWER] * 12
    assert len(ran) == 1


async def test_an_idempotency_key_is_its_owners_own_and_its_routes(store: Store) -> None:
    ran: list[int] = []
    await store.storage.transact(lambda tx: once(tx, pair_of(), ran))
    await store.storage.transact(lambda tx: once(tx, pair_of(principal=ALICE), ran))
    await store.storage.transact(lambda tx: once(tx, pair_of(agent=OTHER_AGENT), ran))
    assert len(ran) == 3
    other_route = await store.storage.transact(
        lambda tx: tx.idempotency.begin(pair_of(), route="remember", key="k", body_hash="h", now=tx.now())
    )
    assert other_route is None


async def test_a_request_that_fails_leaves_its_key_free(store: Store) -> None:
    ran: list[int] = []

    def fails(tx: Transaction) -> None:
        once(tx, pair_of(), ran)
        raise LookupError

    with pytest.raises(LookupError):
        await store.storage.transact(fails)
    await store.storage.transact(lambda tx: once(tx, pair_of(), ran))
    assert len(ran) == 2


async def test_the_stored_answer_keeps_the_body_that_it_answered(store: Store) -> None:
    await store.storage.transact(lambda tx: once(tx, pair_of(), []))
    known = await store.storage.transact(
        lambda tx: tx.idempotency.begin(pair_of(), route="write", key="k", body_hash="other", now=tx.now())
    )
    assert known == ANSWER


async def test_answers_expire_and_are_erased_with_their_owner(store: Store) -> None:
    await store.storage.transact(lambda tx: [once(tx, pair_of(), [], key=f"k{n}") for n in range(3)])
    await store.storage.transact(lambda tx: once(tx, pair_of(principal=ALICE), []))
    erased = await store.storage.transact(
        lambda tx: tx.erasing.erase(PairErasure(AGENT, ALICE), receipt_id="r", asked_by=None, now=tx.now())
    )
    assert erased.erased["answers"] == 1
    before = store.clock.now() + timedelta(seconds=5)
    assert await store.storage.transact(lambda tx: tx.idempotency.expire(before=before, limit=2)) == 2
    assert await store.storage.transact(lambda tx: tx.idempotency.expire(before=before, limit=9)) == 1


async def test_marks_of_old_commits_go_a_few_at_a_time_oldest_first(store: Store) -> None:
    def mark(tx: Transaction) -> None:
        for hours in range(5):
            at = tx.now() - timedelta(hours=hours + 1)
            link_of(tx).run(
                "INSERT INTO @commits (token, at) VALUES (:token, :at)", {"token": f"t{hours}", "at": micros(at)}
            )

    await store.storage.transact(mark)
    before = store.clock.now() - timedelta(hours=1, minutes=30)

    async def forget(limit: int) -> tuple[int, list[str]]:
        gone = await store.storage.transact(lambda tx: tx.idempotency.forget_commits(before=before, limit=limit))
        left = await store.storage.read(
            lambda tx: link_of(tx).rows("SELECT token FROM @commits WHERE token LIKE 't_' ORDER BY token")
        )
        return gone, [token for (token,) in left]

    assert await forget(3) == (3, ["t0", "t1"])
    assert await forget(3) == (1, ["t0"])
    assert await forget(3) == (0, ["t0"])
