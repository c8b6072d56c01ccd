"""Which turns a fact comes from is told by the words that they share."""

from __future__ import annotations

from datetime import UTC, datetime

from memory_service.contract.turns import Role
from memory_service.engines.sources import likely_sources
from memory_service.ports.models import SaidTurn

AT = datetime(2026, 5, 1, tzinfo=UTC)
TURNS = [
    SaidTurn(1, Role.USER, "My dog Rex hates thunder", None, AT),
    SaidTurn(2, Role.ASSISTANT, "Dogs like Rex often hide from thunder", None, AT),
    SaidTurn(3, Role.USER, "I moved to Lisbon", None, AT),
]


def test_the_turns_that_share_most_words_are_the_source() -> None:
    assert likely_sources("User moved to Lisbon", TURNS) == (3,)


def test_only_turns_of_the_named_speaker_are_looked_at() -> None:
    assert likely_sources("User's dog Rex hates thunder", TURNS, role=Role.USER) == (1,)


def test_all_turns_may_be_the_source_where_no_word_is_shared() -> None:
    assert likely_sources("引っ越した", TURNS) == (1, 2, 3)
    assert likely_sources("Something", TURNS[:1], role=Role.ASSISTANT) == (1,)


def test_without_turns_there_is_no_source() -> None:
    assert likely_sources("Something", []) == ()
