"""Merging: what becomes of a candidate beside what is known."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_service.domain.lexical import terms
from memory_service.domain.merging import (
    Add,
    Decision,
    Ignore,
    Known,
    Newcomer,
    Refuse,
    Replace,
    Supersede,
    decide,
    normal_text,
)

DAY = datetime(2024, 3, 1, tzinfo=UTC)


def new(text: str, day: int = 5, **more: object) -> Newcomer:
    return Newcomer(text, DAY + timedelta(days=day), **more)  # type: ignore[arg-type]


def known(text: str, day: int = 1, **more: object) -> Known:
    return Known("k1", text, DAY + timedelta(days=day), **{"cosine": 0.95, **more})  # type: ignore[arg-type]


def test_what_nobody_said_before_is_added() -> None:
    assert decide(new("Ada lives in Kiel."), []) == Add()
    assert decide(new("Ada lives in Kiel."), [known("Bo has a cat.", cosine=0.1)]) == Add()


def test_the_same_text_is_known_already_whatever_its_case_or_spaces() -> None:
    assert decide(new("ada  lives in KIEL"), [known("Ada lives in Kiel.", cosine=None)]) == Ignore("k1", "same")


def test_what_has_expired_is_no_rival_but_gives_its_key_back() -> None:
    gone = {"expires_at": DAY, "expired": True}
    assert decide(new("Ada lives in Kiel."), [known("Ada lives in Kiel.", **gone)]) == Add()
    assert decide(new("Ada lives in Bonn."), [known("Ada lives in Kiel.", **gone)]) == Add()
    later = known("Ada lives in Kiel.", day=9, key="home", **gone)
    assert decide(new("Ada lives in Bonn.", key="home"), [later]) == Replace("k1")


def test_a_statement_that_says_less_is_kept_where_the_longer_one_ends_before_it() -> None:
    longer = known("Ada lives in Kiel with two cats.", expires_at=DAY + timedelta(days=9))
    assert decide(new("Ada lives in Kiel.", by_extraction=False), [longer]) == Add()
    sooner = new("Ada lives in Kiel.", by_extraction=False, expires_at=DAY + timedelta(days=8))
    assert decide(sooner, [longer]) == Ignore("k1", "less")


def test_what_extraction_finds_said_again_in_part_does_not_outlast_the_expiry_that_somebody_set() -> None:
    longer = known("Ada lives in Kiel with two cats.", expires_at=DAY + timedelta(days=9))
    assert decide(new("Ada lives in Kiel."), [longer]) == Ignore("k1", "less")


def test_nothing_of_another_agent_is_replaced_or_superseded() -> None:
    theirs = {"is_own": False}
    assert decide(new("Ada lives in Bonn.", key="home"), [known("Ada lives in Kiel.", key="home", **theirs)]) == Refuse(
        "k1"
    )
    assert decide(new("Ada is home.", dedupe_key="d"), [known("Ada is away.", dedupe_key="d", **theirs)]) == Refuse(
        "k1"
    )
    assert decide(new("Ada lives in Bonn."), [known("Ada lives in Kiel.", **theirs)]) == Add()
    assert decide(new("Ada lives in Kiel with two cats."), [known("Ada lives in Kiel.", **theirs)]) == Add()
    assert decide(new("Ada lives in Kiel.", key="home"), [known("Ada lives in Kiel.", **theirs)]) == Add()
    assert decide(new("Ada lives in Kiel."), [known("Ada lives in Kiel.", **theirs)]) == Ignore("k1", "same")


def test_labels_of_two_facts_replace_the_one_with_the_key_and_end_the_other() -> None:
    by_dedupe = replace(known("Order 9 is open.", dedupe_key="o9"), id="k2")
    both = [by_dedupe, known("Bo likes tea.", key="bo/drink")]
    juice = new("Bo drinks juice.", key="bo/drink", dedupe_key="o9")
    assert decide(juice, both) == decide(juice, both[::-1]) == Replace("k1", ("k2",))
    newer = replace(by_dedupe, said_at=DAY + timedelta(days=9))
    assert decide(juice, [newer, both[1]]) == Ignore("k2", "older")


def test_the_same_text_is_known_already_however_its_letters_are_composed() -> None:
    assert decide(new("Le cafe\u0301"), [known("Le caf\u00e9", cosine=None)]) == Ignore("k1", "same")


def test_what_is_done_and_what_is_being_done_are_one_statement() -> None:
    assert decide(new("Ada is living in Kiel."), [known("Ada lives in Kiel.")]) == Ignore("k1", "same")


@pytest.mark.parametrize(
    ("first", "second"),
    [("Ada beats Bo at chess.", "Bo beats Ada at chess."), ("Flight 12 leaves at 7", "Flight 7 leaves at 12")],
)
def test_who_did_what_to_whom_is_part_of_a_statement(first: str, second: str) -> None:
    assert decide(new(second), [known(first, cosine=0.99)]) == Add()


def test_a_statement_that_says_less_is_not_stored_again() -> None:
    assert decide(new("Ada lives in Kiel."), [known("Ada lives in Kiel with two cats.")]) == Ignore("k1", "less")


def test_a_statement_that_says_more_takes_the_place_of_the_shorter_one() -> None:
    assert decide(new("Ada lives in Kiel with two cats."), [known("Ada lives in Kiel.")]) == Supersede("k1")


def test_an_older_statement_that_says_more_is_stored_beside_the_newer_one() -> None:
    assert decide(new("Ada lives in Kiel with two cats.", 0), [known("Ada lives in Kiel.", 1)]) == Add()


def test_another_number_is_another_statement() -> None:
    assert decide(new("Ada owns 3 boats."), [known("Ada owns 2 boats.")]) == Add()


def test_a_new_value_of_an_attribute_with_one_value_supersedes_the_old_one() -> None:
    assert decide(new("Ada lives in Hamburg now."), [known("Ada lives in Kiel.", cosine=0.8)]) == Supersede("k1")
    assert decide(
        new("Ada's favourite colour is green."), [known("Ada's favourite colour is blue.", cosine=0.85)]
    ) == Supersede("k1")


def test_things_of_which_there_can_be_several_stay_side_by_side() -> None:
    assert decide(new("Ada has a dog called Rex."), [known("Ada has a cat called Tom.", cosine=0.8)]) == Add()
    assert decide(new("Ada likes tea."), [known("Ada likes coffee.", cosine=0.85)]) == Add()


def test_the_attribute_of_another_person_is_not_touched() -> None:
    assert decide(new("Bo's brother plays chess."), [known("Ada lives in Kiel.", cosine=0.75)]) == Add()


def test_a_negated_statement_supersedes_what_it_denies() -> None:
    assert decide(new("Ada no longer eats meat."), [known("Ada eats meat.", cosine=0.85)]) == Supersede("k1")
    assert decide(new("Ada doesn't eat meat."), [known("Ada eats meat.", cosine=0.92)]) == Supersede("k1")


def test_an_older_statement_never_takes_a_newer_ones_place() -> None:
    assert decide(new("Ada lives in Kiel.", 0), [known("Ada lives in Hamburg.", 1, cosine=0.8)]) == Ignore(
        "k1", "older"
    )


def test_the_engines_word_that_a_fact_changed_is_followed_by_time() -> None:
    fact = known("The office is on Mill Road.", cosine=0.2)
    assert decide(new("The office is at Pier 9.", updates="k1", contradicts=True), [fact]) == Supersede("k1")
    assert decide(new("The office is at Pier 9.", 0, updates="k1", contradicts=True), [fact]) == Ignore("k1", "older")


def test_what_the_engine_says_to_hold_still_is_never_superseded() -> None:
    fact = known("Ada is allergic to bees.", cosine=0.6)
    assert decide(new("Ada carries a pen because of her allergy to bees.", updates="k1"), [fact]) == Add()


def test_the_engine_supersedes_nothing_that_is_about_something_else() -> None:
    fact = known("The vault code is 9999.", cosine=0.2)
    assert decide(new("Nothing is known about topic 3.", updates="k1", contradicts=True), [fact]) == Add()


def test_of_two_values_in_one_write_the_one_that_was_said_later_holds() -> None:
    oslo = known("Ada lives in Oslo.", day=5, cosine=0.8)
    assert decide(new("Ada lives in Bergen."), [oslo]) == Add()
    assert decide(new("Ada lives in Bergen."), [replace(oslo, said_before=True)]) == Supersede("k1")


def test_a_reference_to_a_fact_that_is_not_there_changes_nothing() -> None:
    assert decide(new("The office is at Pier 9.", updates="k9"), [known("Tea is hot.", cosine=0.1)]) == Add()


def test_a_save_with_the_same_key_replaces_and_an_older_one_does_not() -> None:
    fact = known("blue", key="colour", cosine=None)
    assert decide(new("green", key="colour", by_extraction=False), [fact]) == Replace("k1")
    assert decide(new("green", 0, key="colour", by_extraction=False), [fact]) == Ignore("k1", "older")


def test_a_save_with_the_same_dedupe_key_updates_the_first() -> None:
    fact = known("blue", dedupe_key="d", cosine=None)
    assert decide(new("green", dedupe_key="d", by_extraction=False), [fact]) == Replace("k1")


def test_another_key_is_another_fact_even_if_the_key_is_missing() -> None:
    assert decide(new("green", key="a", by_extraction=False), [known("blue", key="b", cosine=0.5)]) == Add()
    assert decide(new("green", by_extraction=False), [known("blue", cosine=0.5)]) == Add()


@pytest.mark.parametrize(
    "text", ["Ada lives in Hamburg.", "Ada no longer lives in Kiel.", "Ada lives in Kiel with two cats."]
)
def test_extraction_never_replaces_a_pinned_fact(text: str) -> None:
    decision = decide(new(text), [known("Ada lives in Kiel.", pinned=True)])
    assert decision == Add()
    assert decide(new(text, updates="k1", contradicts=True), [known("Ada lives in Kiel.", pinned=True)]) == Add()


def test_extraction_never_overwrites_a_pinned_key() -> None:
    fact = known("blue", pinned=True, dedupe_key="d", cosine=None)
    assert decide(new("green", dedupe_key="d"), [fact]) == Ignore("k1", "pinned")


def test_a_person_may_replace_a_pinned_fact() -> None:
    fact = known("Ada lives in Kiel.", pinned=True, cosine=0.8)
    assert decide(new("Ada lives in Hamburg.", by_extraction=False), [fact]) == Supersede("k1")


def test_a_keyed_fact_is_not_superseded_by_what_has_no_key() -> None:
    assert decide(new("Ada lives in Hamburg."), [known("Ada lives in Kiel.", key="home", cosine=0.8)]) == Add()


def test_a_repeat_of_what_was_superseded_is_old_news_until_it_is_said_again() -> None:
    gone = known("Ada lives in Kiel.", 1, active=False)
    assert decide(new("Ada lives in Kiel.", 1), [gone]) == Ignore("k1", "same")
    assert decide(new("Ada lives in Kiel.", 9), [gone]) == Add()


class Memory:
    """A model of a store: it looks for what is similar by the words in common, and does what is decided."""

    def __init__(self) -> None:
        self.facts: dict[str, Known] = {}

    def merge(self, newcomer: Newcomer, number: int) -> None:
        decision = decide(newcomer, self.similar(newcomer))
        if isinstance(decision, Ignore):
            fact = self.facts[decision.id]
            if decision.reason in ("same", "less") and newcomer.said_at > fact.said_at:
                self.facts[decision.id] = replace(fact, said_at=newcomer.said_at)
            return
        fact_id = f"f{len(self.facts)}-{number}"
        if isinstance(decision, Replace):
            fact_id = decision.id
        if isinstance(decision, Supersede):
            self.facts[decision.id] = replace(self.facts[decision.id], active=False)
        self.facts[fact_id] = Known(
            fact_id, newcomer.text, newcomer.said_at, key=newcomer.key, dedupe_key=newcomer.dedupe_key
        )

    def similar(self, newcomer: Newcomer) -> list[Known]:
        found = []
        mine = set(terms(newcomer.text))
        for fact in self.facts.values():
            theirs = set(terms(fact.text))
            cosine = len(mine & theirs) / np.sqrt(max(1, len(mine)) * max(1, len(theirs)))
            found.append(replace(fact, cosine=float(cosine)))
        return found

    def state(self) -> set[tuple[str, datetime, bool, str | None]]:
        return {(fact.text, fact.said_at, fact.active, fact.key) for fact in self.facts.values()}


WHO = st.sampled_from(["Ada", "Bo"])
WHAT = st.sampled_from(
    [
        "lives in Kiel.",
        "lives in Hamburg.",
        "lives in Kiel with two cats.",
        "no longer lives in Kiel.",
        "likes tea.",
        "does not like tea.",
        "likes tea and coffee.",
        "owns 2 boats.",
        "owns 3 boats.",
    ]
)
DAYS = st.integers(0, 4).map(lambda day: DAY + timedelta(days=day))
STATEMENTS = st.builds(lambda who, what, day: Newcomer(f"{who} {what}", day), WHO, WHAT, DAYS)
SAVES = st.builds(
    lambda what, day, key: Newcomer(what, day, key=key, by_extraction=False), WHAT, DAYS, st.sampled_from(["a", "b"])
)


@settings(max_examples=400)
@given(st.one_of(st.lists(STATEMENTS, max_size=8), st.lists(SAVES, max_size=6)))
def test_merging_a_batch_twice_equals_merging_it_once(batch: list[Newcomer]) -> None:
    """Turns are extracted in the order they were said, so a batch is in that order."""
    batch = sorted(batch, key=lambda newcomer: newcomer.said_at)
    memory = Memory()
    for number, newcomer in enumerate(batch):
        memory.merge(newcomer, number)
    once = memory.state()
    for number, newcomer in enumerate(batch):
        memory.merge(newcomer, 100 + number)
    assert memory.state() == once


@given(STATEMENTS, st.lists(STATEMENTS, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_what_is_known_never_matters(newcomer: Newcomer, facts: list[Newcomer], random: object) -> None:
    memory = Memory()
    for number, fact in enumerate(facts):
        memory.merge(fact, number)
    found = memory.similar(newcomer)
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first: Decision = decide(newcomer, found)
    assert decide(newcomer, shuffled) == first


@given(st.lists(STATEMENTS, min_size=1, max_size=8))
def test_no_two_active_facts_of_extraction_have_the_same_text(batch: list[Newcomer]) -> None:
    memory = Memory()
    for number, newcomer in enumerate(batch):
        memory.merge(newcomer, number)
    texts = [normal_text(fact.text) for fact in memory.facts.values() if fact.active and fact.key is None]
    assert len(texts) == len(set(texts))
