"""When something was said that does not say it itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from memory_service.contract.limits import MAX_QUEUED_SECONDS
from memory_service.operations.moments import ON_THE_WAY, Moment

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
TX: Any = SimpleNamespace(now=lambda: NOW)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def test_what_waited_for_an_embedder_was_said_when_it_came() -> None:
    moment = Moment.of(TX, lambda: 15.0)
    assert (moment.said_at(None), moment.ranked_at(None)) == (ago(15), ago(15))


def test_the_time_in_an_outbox_and_the_time_here_add_up() -> None:
    moment = Moment.of(TX, lambda: 15.0, queued_seconds=3_600)
    assert (moment.earliest, moment.said_at(None)) == (ago(3_615), ago(3_615))
    assert moment.ranked_at(None) == ago(3_615) + ON_THE_WAY


def test_how_long_something_is_here_is_asked_before_the_time_so_that_it_never_seems_to_come_before_it_did() -> None:
    asked: list[str] = []
    tx: Any = SimpleNamespace(now=lambda: asked.append("now") or NOW)
    Moment.of(tx, lambda: float(asked.append("here") or 0))
    assert asked == ["here", "now"]


def test_a_time_that_is_given_counts_as_it_is_and_at_most_as_now() -> None:
    for queued in (None, 5.0, MAX_QUEUED_SECONDS):
        moment = Moment.of(TX, lambda: 1.0, queued_seconds=queued)
        assert moment.said_at(ago(90)) == moment.ranked_at(ago(90)) == ago(90)
        assert moment.said_at(ago(-90)) == moment.ranked_at(ago(-90)) == NOW


def test_nothing_counts_as_said_later_than_now() -> None:
    assert Moment.of(TX, lambda: 0.0, queued_seconds=1.0).ranked_at(None) == NOW


def test_a_turn_goes_on_after_the_last_one_where_only_its_delivery_can_have_made_it_seem_earlier() -> None:
    moment = Moment.of(TX, lambda: 0.0, queued_seconds=60)
    assert moment.after(ago(59)).said_at(None) == ago(59)
    assert moment.after(ago(61)).said_at(None) == ago(60)
    assert moment.after(ago(10)).said_at(None) == ago(60)
    assert Moment.of(TX, lambda: 5.0).after(ago(2)).said_at(None) == ago(5)
