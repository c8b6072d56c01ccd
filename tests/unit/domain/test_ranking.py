"""Ranking: what is found first, what is no match, and what can never matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from memory_service.contract.scopes import Scope
from memory_service.domain.candidates import Talk
from memory_service.domain.lexical import query_terms, terms
from memory_service.domain.ranking import DEFAULT_FLOOR, Ranking, RankOutcome, ScopedPool, rank
from memory_service.domain.settling import Detail, settled
from memory_service.domain.weights import DEFAULT_WEIGHTS
from memory_service.ports.records import Pool
from tests.fakes.pools import hits_of, term_counts
from tests.unit.domain.plain_ranking import ranks_and_scores

NONE = float("nan")


def pool(
    query: str,
    texts: Sequence[str],
    *,
    tier: str = "fact",
    cosines: Sequence[float] | None = None,
    ids: Sequence[int] | None = None,
    sessions: Sequence[int] | None = None,
    seqs: Sequence[int] | None = None,
    roles: Sequence[int] | None = None,
    said_at: Sequence[float] | None = None,
    passes: Sequence[bool] | None = None,
) -> Pool:
    """Build the pool that storage would answer with for an owner of exactly these rows."""
    size = len(texts)
    stems = [terms(text) for text in texts]
    wanted = query_terms(query)
    counts = np.array([[some.count(term) for term in wanted] for some in stems], np.float32).reshape(size, len(wanted))
    lengths = np.array([len(some) for some in stems], np.float32)
    return Pool(
        tier="fact" if tier == "fact" else "episode",
        row_ids=np.array(ids if ids is not None else range(1, size + 1), np.int64),
        session_ids=np.array(sessions if sessions is not None else [0 if tier == "fact" else 1] * size, np.int64),
        seqs=np.array(seqs if seqs is not None else range(1, size + 1), np.int64),
        roles=np.array(roles if roles is not None else [-1 if tier == "fact" else 0] * size, np.int8),
        said_at=np.array(said_at if said_at is not None else range(size), np.float64),
        lengths=lengths,
        hits=hits_of(counts),
        cosines=np.array(cosines if cosines is not None else [NONE] * size, np.float32),
        passes=np.array(passes if passes is not None else [True] * size, np.bool_),
        population=size,
        total_length=float(lengths.sum()),
        document_counts=(counts > 0).sum(axis=0).astype(np.int64),
        exact=True,
    )


def scoped(some: Pool, scope: Scope = Scope.PRIVATE, window: tuple[int, int] | None = None) -> ScopedPool:
    return ScopedPool(scope, some, window)


def order(ranking: Ranking) -> list[int]:
    return [item.row_id for item in ranking.items]


def permuted(some: Pool, positions: Sequence[int]) -> Pool:
    at = np.array(positions, np.int64)
    return replace(
        some,
        row_ids=some.row_ids[at],
        session_ids=some.session_ids[at],
        seqs=some.seqs[at],
        roles=some.roles[at],
        said_at=some.said_at[at],
        lengths=some.lengths[at],
        hits=hits_of(term_counts(some)[at]),
        cosines=some.cosines[at],
        passes=some.passes[at],
    )


WORDS = st.lists(
    st.sampled_from(["harbour", "boat", "red", "lake", "Berlin", "hike", "tea", "2023"]), min_size=1, max_size=8
)


@st.composite
def pools(draw: st.DrawFn) -> list[ScopedPool]:
    found = []
    for number in range(draw(st.integers(1, 3))):
        texts = [" ".join(words) for words in draw(st.lists(WORDS, min_size=1, max_size=8))]
        size = len(texts)
        tier = draw(st.sampled_from(["fact", "episode"]))
        some = pool(
            "red boat in Berlin",
            texts,
            tier=tier,
            cosines=draw(
                st.lists(st.sampled_from([NONE, 0.0, 0.1, 0.3, 0.31, 0.6, 1.0]), min_size=size, max_size=size)
            ),
            ids=[1 + number * 5 + at for at in range(size)],
            sessions=[1 + at // 3 for at in range(size)],
            seqs=[1 + at % 3 for at in range(size)],
            roles=draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)) if tier == "episode" else None,
            said_at=draw(st.lists(st.integers(0, 9).map(float), min_size=size, max_size=size)),
            passes=draw(st.lists(st.booleans(), min_size=size, max_size=size)),
        )
        window = draw(st.sampled_from([None, (1, 2)]))
        found.append(scoped(some, draw(st.sampled_from(list(Scope))), window))
    return found


@settings(max_examples=200)
@given(pools(), st.randoms(use_true_random=False), st.integers(1, 6), st.sampled_from([0.0, 0.2, 0.6]))
def test_the_order_of_pools_and_of_rows_never_matters(
    given_pools: list[ScopedPool], random: object, top: int, floor: float
) -> None:
    shuffled = []
    for some in given_pools:
        positions = list(range(len(some.pool.row_ids)))
        random.shuffle(positions)  # type: ignore[attr-defined]
        shuffled.append(replace(some, pool=permuted(some.pool, positions)))  # type: ignore[arg-type]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert rank(shuffled, top=top, floor=floor) == rank(given_pools, top=top, floor=floor)


@settings(max_examples=200)
@given(pools())
def test_ranks_and_scores_are_what_plain_arithmetic_gives_row_by_row(given_pools: list[ScopedPool]) -> None:
    for some in given_pools:
        whole = replace(some.pool, passes=np.ones(len(some.pool.row_ids), np.bool_))
        plain = ranks_and_scores(whole)
        found = rank([scoped(whole)], top=50, floor=0.0).items
        assert {item.row_id for item in found} == {row for row, (_, score) in plain.items() if score >= 1e-6}
        for item in found:
            wanted = plain[item.row_id]
            assert (item.rank, item.score) == (pytest.approx(wanted[0], abs=1e-6), pytest.approx(wanted[1], abs=1e-4))


@given(pools())
def test_what_is_known_of_a_conversation_beforehand_changes_nothing(given_pools: list[ScopedPool]) -> None:
    told = [
        replace(some, pool=replace(some.pool, talk=Talk.of(some.pool.session_ids, some.pool.seqs, some.pool.lengths)))  # type: ignore[arg-type]
        for some in given_pools
    ]
    assert rank(told, top=50, floor=0.0) == rank(given_pools, top=50, floor=0.0)


@given(pools(), st.integers(1, 6))
def test_the_parts_of_a_rank_add_up_to_it_and_scores_are_within_bounds(given_pools: list[ScopedPool], top: int) -> None:
    ranking = rank(given_pools, top=top, floor=0.0)
    assert len(ranking.items) <= top
    for item in ranking.items:
        assert item.rank == pytest.approx(sum(item.parts.values()))
        assert 0 <= item.score <= 1
    ranks = [item.rank for item in ranking.items]
    assert ranks == sorted(ranks, reverse=True)
    assert len({(item.tier, item.row_id) for item in ranking.items}) == len(ranking.items)


@given(pools(), st.floats(0, 1))
def test_nothing_below_the_floor_is_returned(given_pools: list[ScopedPool], floor: float) -> None:
    ranking = rank(given_pools, top=50, floor=floor)
    assert all(item.score >= floor - 1e-4 for item in ranking.items)
    assert (ranking.outcome is RankOutcome.APPLIED) == bool(ranking.items)


@given(pools(), st.floats(0, 1))
def test_a_floor_divides_the_rows_where_their_scores_do(given_pools: list[ScopedPool], floor: float) -> None:
    for some in given_pools:
        whole = replace(some.pool, passes=np.ones(len(some.pool.row_ids), np.bool_))
        scores = {row: score for row, (_, score) in ranks_and_scores(whole).items() if score >= 1e-6}
        assume(all(abs(score - floor) > 1e-6 for score in scores.values()))
        ranking = rank([scoped(whole)], top=50, floor=floor)
        assert {item.row_id for item in ranking.items} == {row for row, score in scores.items() if score > floor}
        below = {left.row_id for left in ranking.left_out if left.reason == "below_floor"}
        assert below == {row for row, score in scores.items() if score < floor}


def test_what_the_filters_or_the_window_take_out_is_compared_with_its_own_best() -> None:
    some = pool(
        "red boat",
        ["The boat is red.", "A boat.", "The red boat.", "A boat again."],
        tier="episode",
        passes=[True, True, False, False],
        ids=[1, 2, 3, 4],
        sessions=[1, 2, 3, 4],
        seqs=[1, 1, 1, 1],
    )
    alone = {item.row_id: item.score for item in rank([scoped(replace(some, passes=~some.passes))], top=5).items}
    assert alone.keys() == {3, 4}
    assert {item.row_id for item in rank([scoped(some)], top=5).items} == {1, 2}
    floor = alone[4] + 0.001
    reasons = {(left.row_id, left.reason) for left in rank([scoped(some)], top=5, floor=floor).left_out}
    assert (3, "filtered") in reasons
    assert (4, "filtered") not in reasons


def test_words_find_a_fact_without_any_vector_and_the_ranking_says_so() -> None:
    ranking = rank([scoped(pool("red boat", ["The boat is red.", "Tea is green.", "Cats sleep."]))], top=5)
    assert order(ranking) == [1]
    assert ranking.text_only


def test_meaning_finds_a_fact_without_a_common_word() -> None:
    some = pool("Which pet?", ["My beagle barks.", "Rent is due.", "Tea is green."], cosines=[0.5, 0.05, 0.02])
    ranking = rank([scoped(some)], top=5)
    assert order(ranking) == [1]
    assert not ranking.text_only


def test_the_nearest_of_unrelated_facts_is_no_match() -> None:
    texts = ["Tea is green.", "Rent is due.", "Cats sleep.", "The lake is cold."]
    ranking = rank([scoped(pool("capital of Mongolia", texts, cosines=[0.13, 0.05, 0.02, 0.08]))], top=5)
    assert ranking.outcome is RankOutcome.NO_MATCHES
    assert ranking.items == ()
    assert ("fact", 1, "below_floor") in {(left.tier, left.row_id, left.reason) for left in ranking.left_out}


def test_even_without_a_floor_a_row_that_shares_nothing_is_no_match() -> None:
    ranking = rank([scoped(pool("boat", ["Tea is green.", "The boat."], cosines=[0.0, 0.0]))], top=5, floor=0.0)
    assert order(ranking) == [2]


def test_a_match_that_fails_the_filters_is_filtered_out_not_missing() -> None:
    some = pool("red boat", ["The boat is red.", "Tea is green."], passes=[False, True])
    ranking = rank([scoped(some)], top=5)
    assert ranking.outcome is RankOutcome.FILTERED_OUT
    assert [(left.row_id, left.reason) for left in ranking.left_out] == [(1, "filtered")]


def test_no_rows_are_no_matches() -> None:
    assert rank([], top=5).outcome is RankOutcome.NO_MATCHES
    assert rank([scoped(pool("x", []))], top=5).outcome is RankOutcome.NO_MATCHES


def test_one_single_row_can_be_a_match() -> None:
    ranking = rank([scoped(pool("peanuts", ["Allergic to peanuts."], cosines=[0.6]))], top=5)
    assert order(ranking) == [1]
    assert ranking.items[0].score > DEFAULT_FLOOR


def test_a_query_of_function_words_is_answered_by_meaning_alone() -> None:
    ranking = rank([scoped(pool("who am I?", ["Ada, an engineer.", "Tea."], cosines=[0.45, 0.0]))], top=5)
    assert order(ranking) == [1]


def test_the_turn_after_a_question_is_found_with_it() -> None:
    texts = ["Where is the harbour boat now?", "In Kiel, next to the mill.", "Tea?", "No.", "Rain today.", "Yes."]
    some = pool("harbour boat", texts, tier="episode", sessions=[1, 1, 2, 2, 3, 3], seqs=[1, 2, 1, 2, 1, 2])
    assert order(rank([scoped(some)], top=2)) == [1, 2]


def test_a_turn_of_another_session_is_no_neighbour() -> None:
    texts = ["The harbour boat.", "In Kiel.", "Tea?", "Rain."]
    some = pool("harbour boat", texts, tier="episode", sessions=[1, 2, 3, 4], seqs=[1, 2, 3, 4])
    assert order(rank([scoped(some)], top=4)) == [1]


def test_a_gap_in_the_sequence_is_no_neighbour() -> None:
    texts = ["The harbour boat.", "In Kiel.", "Tea?", "Rain."]
    some = pool("harbour boat", texts, tier="episode", sessions=[1, 1, 2, 2], seqs=[1, 9, 1, 9])
    assert order(rank([scoped(some)], top=4)) == [1]


def test_the_users_own_words_go_before_a_long_reply_that_mentions_the_same() -> None:
    long_reply = "boat " + " ".join(f"word{number}" for number in range(400)) + " boat harbour"
    some = pool(
        "harbour boat",
        [long_reply, "My boat lies in the harbour."],
        tier="episode",
        sessions=[1, 2],
        roles=[1, 0],
        cosines=[0.5, 0.5],
    )
    assert order(rank([scoped(some)], top=2))[0] == 2


def test_turns_that_the_window_shows_are_not_shown_again_and_still_help_their_neighbours() -> None:
    texts = ["In Kiel, by the mill.", "The harbour boat?", "Tea.", "Rain."]
    some = pool("harbour boat", texts, tier="episode", sessions=[1, 1, 2, 2], seqs=[1, 2, 1, 2])
    ranking = rank([scoped(some, window=(1, 1))], top=4)
    assert order(ranking) == [1]
    assert ("episode", 2, "in_window") in {(left.tier, left.row_id, left.reason) for left in ranking.left_out}


def test_a_row_that_several_scopes_found_is_there_once() -> None:
    some = pool("red boat", ["The boat is red.", "Tea is green."], tier="episode", sessions=[1, 2])
    ranking = rank([scoped(some, Scope.SESSION), scoped(some, Scope.PRIVATE)], top=5)
    assert [(item.row_id, item.scope) for item in ranking.items] == [(1, Scope.PRIVATE)]


def test_a_fact_and_an_episode_of_one_number_are_two_rows() -> None:
    found = rank(
        [scoped(pool("red boat", ["The boat is red."])), scoped(pool("red boat", ["A red boat!"], tier="episode"))],
        top=5,
    )
    assert {(item.tier, item.row_id) for item in found.items} == {("fact", 1), ("episode", 1)}


def test_equal_rows_are_ordered_by_their_number() -> None:
    some = pool("red boat", ["A red boat."] * 4, ids=[9, 3, 7, 5], said_at=[0, 0, 0, 0])
    assert order(rank([scoped(some)], top=3, floor=0.0)) == [3, 5, 7]


def test_a_row_that_waits_for_its_vector_is_found_by_its_words() -> None:
    texts = ["The harbour boat is red.", "Rent.", "Tea.", "Rain."]
    some = pool("red harbour boat", texts, cosines=[NONE, 0.1, 0.3, 0.0])
    ranking = rank([scoped(some)], top=4)
    assert order(ranking)[0] == 1
    assert not ranking.text_only


def test_another_owners_pool_moves_no_score_of_words_between_rows_of_one_owner() -> None:
    """The BM25 of a row is of its owner's statistics: a second owner's text does not change which row goes first."""
    mine = pool("red boat", ["red red boat", "boat", "red", "tea"])
    alone = order(rank([scoped(mine)], top=4, floor=0.0))
    other = pool("red boat", ["boat boat boat"] * 50, ids=range(100, 150))
    both = order(rank([scoped(mine), scoped(other, Scope.SHARED)], top=100, floor=0.0))
    assert [row for row in both if row < 100] == alone


def test_the_floor_asks_for_more_likeness_the_more_rows_there_are() -> None:
    def score(size: int) -> float:
        texts = [f"thing{number}" for number in range(size)]
        cosines = [0.35] + [0.05] * (size - 1)
        items = rank([scoped(pool("question", texts, cosines=cosines))], top=1, floor=0.0).items
        return items[0].score

    assert score(1) > score(30) > score(900) > 0


def test_rows_beyond_the_top_are_named_as_such() -> None:
    some = pool("red boat", ["A red boat."] * 3)
    ranking = rank([scoped(some)], top=2)
    third = order(rank([scoped(some)], top=3))[2]
    assert (ranking.left_out[0].row_id, ranking.left_out[0].reason) == (third, "top_k")


def details(texts: Sequence[str], importance: Sequence[float | None] | None = None) -> dict[tuple[str, int], Detail]:
    values = importance or [None] * len(texts)
    return {
        ("fact", number): Detail(text, value)
        for number, (text, value) in enumerate(zip(texts, values, strict=True), start=1)
    }


def test_the_newer_of_two_near_equal_facts_goes_first() -> None:
    texts = ["Favourite colour is blue, really blue colour.", "Favourite colour is green now.", "Tea is hot."]
    some = pool("favourite colour", texts, cosines=[0.7, 0.65, 0.1], said_at=[1, 2, 3])
    ranking = rank([scoped(some)], top=3)
    assert order(ranking)[0] == 1
    items = settled(ranking.items, details(texts))
    assert [item.row_id for item in items][:2] == [2, 1]
    assert all(item.rank == pytest.approx(sum(item.parts.values())) for item in items)


def recency(some: Pool) -> dict[int, float]:
    ranking = rank([scoped(some)], top=len(some.row_ids), floor=0.0)
    return {item.row_id: item.parts.get("recency", 0.0) for item in ranking.items}


@pytest.mark.parametrize("odd", ["0001-01-01", "1899-12-31", "2200-01-02", "9999-12-31"])
def test_one_time_that_no_clock_shows_takes_recency_from_nobody(odd: str) -> None:
    moments = [datetime(2026, month, 1, tzinfo=UTC).timestamp() for month in range(3, 9)]
    strange = datetime.fromisoformat(odd).replace(tzinfo=UTC).timestamp()
    texts = ["A red boat."] * 7
    ages = recency(pool("red boat", texts[:6], said_at=moments))
    assert len(set(ages.values())) == 6
    extreme = ages[1] if odd < "2000" else ages[6]
    assert recency(pool("red boat", texts, said_at=[*moments, strange])) == {**ages, 7: extreme}
    assert set(recency(pool("red boat", texts, said_at=[strange] * 7)).values()) == {0.0}


def test_a_newer_fact_about_something_else_does_not_go_first() -> None:
    texts = ["Favourite colour is blue.", "The dentist is called Novak.", "Tea is hot."]
    some = pool("favourite colour", texts, cosines=[0.7, 0.2, 0.1], said_at=[1, 2, 3])
    items = settled(rank([scoped(some)], top=3, floor=0.0).items, details(texts))
    assert items[0].row_id == 1


def test_importance_decides_between_facts_that_answer_alike() -> None:
    texts = ["boat red harbour", "boat red mill", "boat red lake"]
    some = pool("red boat", texts, said_at=[0, 0, 0])
    ranking = rank([scoped(some)], top=3, floor=0.0)
    assert order(ranking) == [1, 2, 3]
    items = settled(ranking.items, details(texts, [0.1, None, 0.9]))
    assert [item.row_id for item in items] == [3, 2, 1]
    assert items[0].parts["importance"] == pytest.approx(0.8 * DEFAULT_WEIGHTS.importance)


def test_items_without_details_keep_their_order() -> None:
    ranking = rank([scoped(pool("red boat", ["red boat", "boat", "red"]))], top=3, floor=0.0)
    assert settled(ranking.items, {}) == ranking.items


def test_the_same_question_asked_before_goes_behind_its_answer() -> None:
    question = "What is the name of my boat?"
    texts = [question, "My boat is the Seagull by name.", "Rain.", "Tea."]
    some = pool(question, texts, tier="episode", sessions=[1, 2, 3, 4], cosines=[1.0, 0.7, 0.1, 0.0])
    ranking = rank([scoped(some)], top=4)
    assert order(ranking)[0] == 1
    by_row = {("episode", number): Detail(text) for number, text in enumerate(texts, start=1)}
    items = settled(ranking.items, by_row, query_terms=query_terms(question))
    assert items[0].row_id == 2
    assert items[-1].parts["echo"] == -DEFAULT_WEIGHTS.echo


def test_the_question_in_the_window_does_not_lift_what_has_nothing_to_do_with_it() -> None:
    texts = ["What is the capital of Mongolia?", "Tea is green.", "Rent is due.", "Cats sleep."]
    some = pool(texts[0], texts, tier="episode", sessions=[1, 2, 3, 4], cosines=[1.0, 0.15, 0.1, 0.05])
    assert rank([scoped(some, window=(1, 0))], top=4).outcome is RankOutcome.NO_MATCHES


def test_a_match_behind_the_filters_does_not_lift_what_passes_them() -> None:
    some = pool("red boat", ["The boat is red.", "Tea."], cosines=[0.9, 0.16], passes=[False, True])
    assert rank([scoped(some)], top=4).outcome is RankOutcome.FILTERED_OUT
