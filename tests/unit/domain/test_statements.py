"""Statements: a fact that is lost is lost, so two texts are one, or exclude each other, only beyond doubt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_service.domain import statements
from memory_service.domain.merging import Add, Ignore, Known, Newcomer, Supersede, decide

DAY = datetime(2026, 3, 1, tzinfo=UTC)

BOTH_TRUE = """
    Kim takes the drops before lunch. | Kim takes the drops after lunch.
    The night light is on. | The night light is off.
    The gate should be opened on Sundays. | The gate should be opened off Sundays.
    The library is open until 6. | The library is open from 6.
    A call takes up to 20 minutes. | A call takes over 20 minutes.
    All rooms have a window. | Some rooms have a window.
    Kim worked at the harbour. | Kim works at the harbour.
    Lee is the captain of the team. | Lee was the captain of the team.
    The saldo of the till is -40 euros. | The saldo of the till is 40 euros.
    The cellar has -3 degrees. | The cellar has 3 degrees.
    The door password is Marigold4. | The door password is marigold4.
    The door password is Marigold. | The door password is marigold.
    Lee writes C. | Lee writes C++.
    Lee writes C++. | Lee writes C#.
    Kim has few plants. | Kim has a few plants.
    Kim works in IT. | Kim works in it.
    Kim has a plant. | Kim has plants.
    Marie lives in Turku. | Mary lives in Turku.
    Kim mag keine Hunde. | Kim mag Hunde.
    Kim isst kein Brot. | Kim isst Brot.
    Kim ne boit pas de lait. | Kim boit du lait.
    Kim would like to sell the boat. | Kim has to sell the boat.
    Kim wants to quit rowing. | Kim wants to row.
    Lee may use the workshop with Kim. | Lee may use the workshop without Kim.
    Lee may use the workshop. | Lee may use the workshop with Kim.
    Kim is taller than Lee. | Lee is taller than Kim.
    Kim likes rice. | Kim likes rice pudding.
    Kim likes gin. | Kim likes gin and tonic.
    Kim rides to work. | Kim rides to work on Mondays.
    Kim lives in Turku. | Kim's father lives in Turku.
    Kim's brother lives in Turku. | Kim's sister lives in Vaasa.
    Kim's brother lives in Turku. | Kim's brother lives in Vaasa.
    Kim lives in Turku. | Kim lives in Finland.
    Kim lives in Turku. | Kim lives in Turku Centre.
    Kim lives in Turku. | Kim lives with Lee.
    Kim was born in Turku. | Kim was born in 1988.
    Kim works at Nokia. | Kim works at night.
    Kim's work phone number is 1234. | Kim's home phone number is 5678.
    Kim's email is k@x.org. | Kim's work email is kim@y.com.
    Kim's brother's email is k@x.org. | Kim's brother's email is l@x.org.
    The travel budget is 500 euros. | The catering budget is 300 euros.
    The password of the test server is Foo1. | The password of the main server is Bar2.
    The deadline of project Fjord is 2 May. | The deadline of project Skerry is 4 June.
    The status of order 7 is sent. | The status of order 8 is lost.
    The version of Go is 1.22. | The version of Rust is 1.80.
    Kim's cat is named Tove. | Kim's cat is named Mymble.
    The child is 3 years old. | The child is 5 years old.
    Kim's job is tiring. | Kim's job is welding.
    Kim's favourite colour is red. | Kim's favourite soup is borscht.
    The meeting is on Monday. | The meeting is on Tuesday.
    Kim is allergic to fruit. | Kim is not allergic to sour fruit.
    Kim can eat cheese. | Kim can't eat raw cheese.
    Deliveries are allowed on Friday. | Deliveries are not allowed on Friday evening.
    Kim may come along. | Kim may not come along.
    Kim ate fish. | Kim did not eat fish.
    Kim likes fish. | No, Kim likes fish.
    All rooms have a window. | Not all rooms have a window.
    Kim stays in room 5. | Kim stays in room no 5.
"""
ONE_HOLDS = """
    User lives in Turku | User lives in Vaasa
    Kim lives in Turku. | Kim lives in Vaasa now.
    Kim works for Nokia. | Kim works at Wärtsilä.
    Kim is engaged to Lee. | Kim is engaged to Noa.
    Kim is 34 years old. | Kim is 35 years old.
    Kim weighs 70 kg. | Kim weighs 66 kg.
    Kim's birthday is 4 May. | Kim's birthday is 5 May.
    Kim's phone number is 1234. | Kim's phone number is 5678.
    Kim's work email is k@x.org. | Kim's work email is kim@y.com.
    Kim's favourite colour is red. | Kim's favourite colour is green.
    The deadline is 2 May. | The deadline is 4 June.
    The deadline of project Fjord is 2 May. | The deadline of project Fjord is 4 June.
    The budget is 500 euros. | The budget is 800 euros.
    The default branch is master. | The default branch is main.
    The version of Go is 1.22. | The version of Go is 1.23.
    Kim eats fish. | Kim doesn't eat fish.
    Kim eats fish. | Kim does not eat any fish anymore.
    Kim no longer eats fish. | Kim eats fish.
    Kim has allergies. | Kim has no allergies.
    The gate is open. | The gate is not open.
    Kim can swim. | Kim cannot swim.
"""
ONE_STATEMENT = """
    Kim lives in Turku. | kim  lives in TURKU
    Kim has the key of the boat. | Kim has a key of a boat
    Kim cannot swim. | Kim can't swim!
    Kim is living in Turku. | Kim lives in Turku.
    Il caffe\u0301 \u00e8 forte. | Il caff\u00e9 \u00e8 forte
    她住在图尔库。 | 她住在图尔库
"""


def pairs(table: str) -> list[tuple[str, str]]:
    found = [line.split(" | ") for line in table.strip().splitlines()]
    return [(first.strip(), second.strip()) for first, second in found]


def decided(first: str, second: str) -> object:
    """Return what becomes of the second text, said a day later, where its meaning is as near as can be."""
    known = Known("k", first, DAY, cosine=0.99)
    return decide(Newcomer(second, DAY + timedelta(days=1), by_extraction=False), [known])


@pytest.mark.parametrize(("first", "second"), pairs(BOTH_TRUE))
def test_what_can_both_be_true_is_kept_side_by_side_however_near_it_is(first: str, second: str) -> None:
    assert decided(first, second) == Add()
    assert decided(second, first) == Add()


@pytest.mark.parametrize(("first", "second"), pairs(ONE_HOLDS))
def test_another_value_or_a_denial_of_the_same_takes_the_older_ones_place(first: str, second: str) -> None:
    assert decided(first, second) == Supersede("k")
    assert decided(second, first) == Supersede("k")


@pytest.mark.parametrize(("first", "second"), pairs(ONE_STATEMENT))
def test_a_statement_in_the_same_words_is_known_already(first: str, second: str) -> None:
    assert decided(first, second) == Ignore("k", "same")
    assert decided(second, first) == Ignore("k", "same")


def test_what_goes_on_where_a_statement_ends_says_more() -> None:
    assert statements.says_more("Kim lives in Turku with two cats.", "Kim lives in Turku.")
    assert statements.says_more("Kim has a sister who is a pilot", "Kim has a sister")
    for longer in ("Kim now lives in Turku with two cats.", "Kim lives in Turku if need be.", "Kim lives in Turku."):
        assert not statements.says_more(longer, "Kim lives in Turku.")


WORDS = (
    "Kim Lee Kim's Turku Vaasa the a is are not no never lives live in works for 5 -5 kg May may with status open"
    " doesn't any anymore years old number phone favourite colour of weighs married to living"
)
TEXTS = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(WORDS.split()), max_size=9).map(" ".join))


@given(TEXTS, TEXTS)
def test_any_two_texts_are_compared_alike_from_either_side(one: str, other: str) -> None:
    assert statements.same(one, one)
    assert not statements.contradict(one, one)
    assert not statements.says_more(one, one)
    assert statements.same(one, other) == statements.same(other, one)
    assert statements.contradict(one, other) == statements.contradict(other, one)
    assert not (statements.same(one, other) and statements.contradict(one, other))
    assert not (statements.says_more(one, other) and statements.says_more(other, one))
