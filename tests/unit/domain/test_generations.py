"""When what a call builds on counts as erased, and which strings were never given to it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_service.domain import generations, scopes
from memory_service.domain.callers import Caller, CallerKind, Principal
from memory_service.domain.owners import Owner
from memory_service.errors import Erased, InvalidRequest

AGENT = "kaos://agent/shop/helper"
OTHER_AGENT = "kaos://agent/shop/other"
ANNA = Principal("https://id.example", "anna")
BERT = Principal("https://id.example", "bert")
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def agent(principal: Principal | None = None, *, identity: str = AGENT) -> Caller:
    return Caller(CallerKind.AGENT, identity, identity, principal)


def numbers(caller: Caller, session_id: str | None = None) -> dict[Owner, int]:
    return dict.fromkeys(scopes.generation_owners(caller, session_id), 0)


def test_a_generation_is_good_until_an_owner_moves_on() -> None:
    caller = agent(ANNA)
    home = scopes.home_owner(caller)
    given_ = generations.encode(numbers(caller, "s1"))
    generations.check(given_, numbers(caller, "s1"), home)
    for moved in scopes.generation_owners(caller, "s1"):
        with pytest.raises(Erased):
            generations.check(given_, {**numbers(caller, "s1"), moved: 1}, home)


def test_a_generation_without_a_session_says_nothing_about_one() -> None:
    caller = agent(ANNA)
    given_ = generations.encode(numbers(caller))
    session = scopes.session_owner(caller, "s1")
    generations.check(given_, {**numbers(caller, "s1"), session: 7}, scopes.home_owner(caller))


@pytest.mark.parametrize("foreign", [agent(BERT), agent(), agent(ANNA, identity=OTHER_AGENT)])
def test_another_callers_generation_is_a_wrong_request(foreign: Caller) -> None:
    mine = agent(ANNA)
    with pytest.raises(InvalidRequest):
        generations.check(generations.encode(numbers(foreign, "s1")), numbers(mine, "s1"), scopes.home_owner(mine))


def test_a_generation_from_before_a_backup_was_restored_asks_for_a_new_recall() -> None:
    caller = agent()
    given_ = generations.encode({**numbers(caller), scopes.home_owner(caller): 5})
    with pytest.raises(Erased, match="go on from a new recall"):
        generations.check(given_, numbers(caller), scopes.home_owner(caller))


def test_a_generation_from_before_a_backup_was_restored_vouches_for_no_owner_that_went_back() -> None:
    caller = agent(ANNA)
    home = scopes.home_owner(caller)
    given_ = generations.encode({**numbers(caller, "s1"), home: 5})
    assert generations.vouched(given_, numbers(caller, "s1"), home) == set(numbers(caller, "s1")) - {home}


@given(st.data())
def test_a_tampered_generation_is_a_wrong_request(data: st.DataObject) -> None:
    caller = agent(ANNA)
    good = generations.encode(numbers(caller, "s1"))
    at = data.draw(st.integers(0, len(good) - 1))
    replacement = data.draw(st.sampled_from("ABCDEFabcdef0123456789-_*é \x00"))
    tampered = good[:at] + replacement + good[at + 1 :]
    if tampered == good:
        return
    with pytest.raises(InvalidRequest):
        generations.check(tampered, numbers(caller, "s1"), scopes.home_owner(caller))


@given(st.text(max_size=200))
def test_any_text_as_a_generation_is_a_wrong_request(text: str) -> None:
    caller = agent()
    with pytest.raises(InvalidRequest):
        generations.check(text, numbers(caller), scopes.home_owner(caller))


@pytest.mark.parametrize(
    ("queued_seconds", "erased_ago", "is_erased"),
    [(60, 30, True), (60, 60, True), (30, 60, False), (0, 0, True), (0, 1, False)],
)
def test_turns_queued_before_an_erasure_are_erased(queued_seconds: float, erased_ago: float, is_erased: bool) -> None:
    moments = [None, NOW - timedelta(seconds=erased_ago), NOW - timedelta(days=9)]
    if is_erased:
        with pytest.raises(Erased):
            generations.check_queued(queued_seconds, NOW, moments)
    else:
        generations.check_queued(queued_seconds, NOW, moments)


def test_turns_of_owners_that_were_never_erased_are_taken_however_old() -> None:
    generations.check_queued(3.2e8, NOW, [None, None])


@pytest.mark.parametrize(("clock_step", "said", "is_taken"), [
    (60, -61, False), (60, -59, True), (60, 1, True),
    (-60, -1, False), (-60, 59, False), (-60, 61, True),
])  # fmt: skip
@pytest.mark.parametrize("delivered", [100, 100_000])
def test_a_clock_that_is_set_moves_the_border_of_an_erasure_by_as_much_and_no_further(
    clock_step: int, said: int, is_taken: bool, delivered: int
) -> None:
    """`said` and `delivered` are seconds after the erasure; the store's clock is set in between."""
    now = NOW + timedelta(seconds=delivered + clock_step)
    try:
        generations.check_queued(delivered - said, now, [NOW])
    except Erased:
        assert not is_taken
    else:
        assert is_taken
