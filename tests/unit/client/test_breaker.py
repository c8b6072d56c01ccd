"""The breaker's state machine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memory_service.client.breaker import (
    MAX_RETRY_AFTER_SECONDS,
    SPREAD,
    Admission,
    Breaker,
    Rules,
    State,
    abandoned,
    admit,
    failed,
    seconds_until_probe,
    succeeded,
)

RULES = Rules(first_delay=1, max_delay=8, probe_seconds=5)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def breaker() -> tuple[Breaker, Clock]:
    clock = Clock()
    return Breaker(rules=RULES, clock=clock, spread=lambda: 0.0), clock


def fail(of: Breaker, retry_after: float | None = None) -> None:
    admission = of.admit()
    assert admission is not None
    of.failed(admission, retry_after)


def test_one_failure_is_enough_for_fast_answers() -> None:
    subject, _ = breaker()
    fail(subject)
    assert subject.admit() is None


def test_one_probe_is_let_through_after_the_delay() -> None:
    subject, clock = breaker()
    fail(subject)
    clock.now += 1
    probe = subject.admit()
    assert probe is not None
    assert probe.is_probe
    assert subject.admit() is None


def test_a_probe_that_succeeds_closes_the_breaker() -> None:
    subject, clock = breaker()
    fail(subject)
    clock.now += 1
    assert subject.admit() is not None
    subject.succeeded()
    assert subject.admit() is not None
    assert subject.admit() is not None


def test_the_delay_doubles_with_each_failed_probe_up_to_its_bound() -> None:
    subject, clock = breaker()
    delays = []
    for _ in range(6):
        fail(subject)
        delays.append(subject.seconds_until_probe())
        clock.now += delays[-1]
    assert delays == [1, 2, 4, 8, 8, 8]


def test_a_burst_of_calls_in_flight_opens_it_once() -> None:
    subject, _ = breaker()
    burst = [subject.admit() for _ in range(20)]
    for admission in burst:
        assert admission is not None
        subject.failed(admission)
    assert subject.state.failures == 1
    assert subject.seconds_until_probe() == 1


def test_retry_after_is_kept_to_the_second() -> None:
    subject, clock = breaker()
    fail(subject, retry_after=20)
    clock.now += 19.9
    assert subject.admit() is None
    clock.now += 0.1
    assert subject.admit() is not None


def test_a_probe_whose_caller_went_away_frees_its_place() -> None:
    subject, clock = breaker()
    fail(subject)
    clock.now += 1
    probe = subject.admit()
    assert probe is not None
    subject.abandoned(probe)
    assert subject.admit() is not None


def test_a_probe_that_is_never_reported_is_replaced_after_a_while() -> None:
    subject, clock = breaker()
    fail(subject)
    clock.now += 1
    assert subject.admit() is not None
    clock.now += RULES.probe_seconds
    assert subject.admit() is not None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "succeed", "fail", "fail after", "abandon"]),
        st.floats(0, 50),
        st.floats(0, 1),
        st.integers(0, 5),
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_happens_an_open_breaker_admits_one_probe_at_a_time_and_never_waits_for_ever(
    steps: list[tuple[str, float, float, int]],
) -> None:
    state, now = State(), 0.0
    given_out: list[Admission] = []
    for step, amount, spread, which in steps:
        now += amount / 10
        chosen = given_out.pop(which % len(given_out)) if given_out and step != "admit" else None
        match step:
            case "admit":
                before = state
                admission, state = admit(state, now, RULES)
                if admission is None:
                    assert not before.is_closed
                    assert seconds_until_probe(before, now) > 0
                else:
                    given_out.append(admission)
                    assert before.is_closed or now >= before.open_until
                    if admission.is_probe:
                        assert admit(state, now, RULES)[0] is None
            case "succeed":
                state = succeeded(state)
                assert state.is_closed
            case "fail" if chosen is not None:
                state = failed(state, chosen, now, RULES, spread=spread)
            case "fail after" if chosen is not None:
                state = failed(state, chosen, now, RULES, retry_after=amount * 1000, spread=spread)
            case "abandon" if chosen is not None:
                state = abandoned(state, chosen)
        longest = max(RULES.max_delay * (1 + SPREAD), MAX_RETRY_AFTER_SECONDS, RULES.probe_seconds)
        wait = seconds_until_probe(state, now)
        assert 0 <= wait <= longest
        assert admit(state, now + wait + 1e-6, RULES)[0] is not None
