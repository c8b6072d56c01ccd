"""The window: what is shown, what is folded, and that no tool result ever stands without its call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_service.contract.turns import Role
from memory_service.domain.window import CUT_MARKER, Window, extraction_due, fold_due, fold_range, visible
from tests.unit.domain.counters import Characters


@dataclass(frozen=True)
class Turn:
    """A stored turn."""

    seq: int
    role: Role
    content: str
    parts: tuple[Mapping[str, Any], ...] | None = None

    @property
    def text(self) -> str:
        return self.content

    @property
    def tokens(self) -> int:
        return len(self.content)


def said(seq: int, tokens: int = 10, role: Role = Role.USER) -> Turn:
    return Turn(seq, role, "x" * tokens)


def call(seq: int, *ids: str, tokens: int = 10) -> Turn:
    parts = tuple({"type": "tool_call", "id": name, "name": "look", "arguments": {"a": 1}} for name in ids)
    return Turn(seq, Role.ASSISTANT, "c" * tokens, parts)


def result(seq: int, name: str, tokens: int = 10) -> Turn:
    return Turn(seq, Role.TOOL, "r" * tokens, ({"type": "tool_result", "id": name, "content": "r" * tokens},))


@st.composite
def conversations(draw: st.DrawFn) -> list[Turn]:
    """Make a conversation: some calls are answered at once, some late, some never, and some results are lost."""
    turns: list[Turn] = []
    waiting: list[str] = []
    for seq in range(1, draw(st.integers(1, 14)) + 1):
        tokens = draw(st.integers(1, 60))
        kind = draw(st.sampled_from(["user", "assistant", "call", "result", "lost"]))
        if kind == "call":
            names = [f"{seq}.{number}" for number in range(draw(st.integers(1, 2)))]
            waiting += names
            turns.append(call(seq, *names, tokens=tokens))
        elif kind == "result" and waiting:
            turns.append(result(seq, waiting.pop(draw(st.integers(0, len(waiting) - 1))), tokens))
        elif kind == "lost":
            turns.append(result(seq, f"lost.{seq}", tokens))
        else:
            turns.append(said(seq, tokens, Role.USER if kind == "user" else Role.ASSISTANT))
    return turns


def ids(window_or_turns: Window[Turn] | Sequence[Turn], kind: str) -> list[str]:
    shown = window_or_turns.turns if isinstance(window_or_turns, Window) else window_or_turns
    return [str(part["id"]) for turn in shown for part in turn.parts or () if part["type"] == kind]


def seqs(window: Window[Turn]) -> list[int]:
    return [shown.turn.seq for shown in window.turns]


@settings(max_examples=300)
@given(conversations(), st.integers(1, 200), st.integers(1, 10))
def test_a_window_is_within_its_budget_and_cap_and_has_no_orphan_result(
    turns: list[Turn], budget: int, cap: int
) -> None:
    window = visible(turns, budget_tokens=budget, event_cap=cap, counter=Characters())
    assert window.tokens == sum(shown.tokens for shown in window.turns) <= budget
    assert len(window.turns) <= cap
    assert all(len(shown.content) <= shown.tokens for shown in window.turns)
    assert set(ids(window, "tool_result")) <= set(ids(window, "tool_call"))
    assert seqs(window) == sorted(seqs(window))


@settings(max_examples=300)
@given(conversations(), st.integers(1, 200), st.integers(1, 10))
def test_a_window_shows_the_newest_turns_without_a_hole(turns: list[Turn], budget: int, cap: int) -> None:
    window = visible(turns, budget_tokens=budget, event_cap=cap, counter=Characters())
    calls = set(ids(turns, "tool_call"))
    whole = [turn.seq for turn in turns if not set(ids([turn], "tool_result")) - calls]
    if window.turns:
        assert seqs(window) == whole[-len(window.turns) :]
    else:
        assert not whole


@settings(max_examples=300)
@given(conversations(), st.integers(1, 120), st.integers(2, 12))
def test_a_fold_takes_the_oldest_turns_leaves_some_and_parts_no_call_from_its_result(
    turns: list[Turn], target: int, cap: int
) -> None:
    taken = fold_range(turns, target_tokens=target, event_cap=cap)
    assert list(taken) == turns[: len(taken)]
    kept = turns[len(taken) :]
    assert kept
    assert not set(ids(taken, "tool_call")) & set(ids(kept, "tool_result"))


def test_what_was_not_read_stays_and_counts_for_the_target() -> None:
    turns = [said(seq, 10) for seq in range(1, 6)]
    assert fold_range(turns, target_tokens=55, event_cap=100) == ()
    beyond = fold_range(turns, target_tokens=55, event_cap=100, tokens_beyond=40, turns_beyond=4)
    assert [turn.seq for turn in beyond] == [1, 2, 3, 4]
    many = fold_range(turns, target_tokens=1_000, event_cap=10, tokens_beyond=1, turns_beyond=3)
    assert [turn.seq for turn in many] == [1, 2, 3]


def test_a_fold_brings_the_window_down_to_its_target() -> None:
    turns = [said(seq) for seq in range(1, 21)]
    taken = fold_range(turns, target_tokens=55, event_cap=1_000)
    assert taken[-1].seq == 15


def test_thirty_turns_cause_few_folds_and_the_window_never_stays_over_its_trigger() -> None:
    turns: list[Turn] = []
    folds = 0
    for seq in range(1, 31):
        turns.append(said(seq))
        if fold_due(sum(turn.tokens for turn in turns), len(turns), trigger_tokens=80, event_cap=1_000):
            turns = turns[len(fold_range(turns, target_tokens=40, event_cap=1_000)) :]
            folds += 1
        assert sum(turn.tokens for turn in turns) <= 80
    assert 0 < folds < 15


def test_more_turns_than_the_cap_are_folded_whatever_their_tokens() -> None:
    assert fold_due(5, 11, trigger_tokens=1_000, event_cap=10)
    assert not fold_due(1_000, 10, trigger_tokens=1_000, event_cap=10)
    taken = fold_range([said(seq, 1) for seq in range(1, 12)], target_tokens=500, event_cap=10)
    assert len(taken) == 6


def test_a_single_turn_is_never_folded_away() -> None:
    assert fold_range([said(1, 500)], target_tokens=10, event_cap=10) == ()
    assert fold_range([], target_tokens=10, event_cap=10) == ()


def test_a_call_that_waits_for_its_result_is_not_folded() -> None:
    turns = [said(1), said(2), call(3, "a", tokens=100)]
    assert [turn.seq for turn in fold_range(turns, target_tokens=20, event_cap=100)] == [1, 2]


def test_a_call_that_nobody_will_answer_any_more_does_not_hold_the_fold_up() -> None:
    turns = [call(1, "a"), said(2), said(3), said(4)]
    assert [turn.seq for turn in fold_range(turns, target_tokens=20, event_cap=100)] == [1, 2]


def test_a_call_that_the_assistant_left_behind_does_not_hold_the_fold_up() -> None:
    turns = [call(1, "a"), *(said(seq, role=Role.ASSISTANT) for seq in range(2, 5))]
    assert [turn.seq for turn in fold_range(turns, target_tokens=20, event_cap=100)] == [1, 2]


def test_a_call_that_is_never_answered_is_folded_once_nothing_else_can_be() -> None:
    turns = [said(1), call(2, "lost")]
    for seq in range(3, 23, 2):
        turns += [call(seq, str(seq)), result(seq + 1, str(seq))]
    first = fold_range(turns, target_tokens=40, event_cap=100)
    assert [turn.seq for turn in first] == [1]
    second = fold_range(turns[1:], target_tokens=40, event_cap=100)
    assert second[-1].seq == 18


def test_a_window_behind_a_call_that_is_never_answered_shows_whole_turns() -> None:
    turns = [call(1, "lost")]
    for seq in range(2, 22, 2):
        turns += [call(seq, str(seq)), result(seq + 1, str(seq))]
    window = visible(turns, budget_tokens=45, event_cap=100, counter=Characters())
    assert seqs(window) == [18, 19, 20, 21]
    assert not any(shown.truncated for shown in window.turns)
    assert window.cut


def test_the_newest_turn_is_shown_cut_with_a_marker_when_it_alone_is_too_long() -> None:
    window = visible([said(1), said(2, 500)], budget_tokens=100, event_cap=10, counter=Characters())
    assert seqs(window) == [2]
    shown = window.turns[0]
    assert shown.truncated
    assert shown.content.endswith(CUT_MARKER)
    assert window.tokens <= 100
    assert window.cut


@pytest.mark.parametrize("budget", [1, 5])
def test_a_budget_smaller_than_the_marker_still_shows_a_start(budget: int) -> None:
    window = visible([said(1, 500)], budget_tokens=budget, event_cap=10, counter=Characters())
    assert window.turns[0].content == "x" * budget


def test_a_call_and_its_results_are_shown_together_or_not_at_all() -> None:
    turns = [said(1), call(2, "a", "b"), result(3, "a"), result(4, "b"), said(5)]
    assert seqs(visible(turns, budget_tokens=35, event_cap=10, counter=Characters())) == [5]
    assert seqs(visible(turns, budget_tokens=40, event_cap=10, counter=Characters())) == [2, 3, 4, 5]


def test_a_newest_result_that_is_too_long_is_cut_and_keeps_its_call() -> None:
    turns = [said(1), call(2, "a"), result(3, "a", 900)]
    window = visible(turns, budget_tokens=120, event_cap=10, counter=Characters())
    assert seqs(window) == [2, 3]
    assert ids(window, "tool_result") == ids(window, "tool_call") == ["a"]
    assert [shown.truncated for shown in window.turns] == [False, True]
    parts = window.turns[1].parts
    assert parts is not None
    assert len(str(parts[0]["content"])) <= 120


def test_a_result_whose_call_is_in_the_digest_is_left_out() -> None:
    window = visible([result(1, "gone"), said(2)], budget_tokens=100, event_cap=10, counter=Characters())
    assert seqs(window) == [2]


def test_a_window_that_holds_everything_is_not_cut() -> None:
    window = visible([said(1), said(2)], budget_tokens=20, event_cap=2, counter=Characters())
    assert not window.cut
    assert visible([said(1), said(2)], budget_tokens=19, event_cap=2, counter=Characters()).cut
    assert visible([said(1), said(2)], budget_tokens=20, event_cap=1, counter=Characters()).cut


def test_a_session_without_turns_has_an_empty_window() -> None:
    assert visible([], budget_tokens=10, event_cap=10, counter=Characters()) == Window((), 0, cut=False)


def test_extraction_is_due_when_enough_waits_or_anything_waits_at_rest() -> None:
    assert extraction_due(last_seq=8, extracted_seq=0, min_turns=8, at_rest=False)
    assert not extraction_due(last_seq=7, extracted_seq=0, min_turns=8, at_rest=False)
    assert extraction_due(last_seq=6, extracted_seq=5, min_turns=8, at_rest=True)
    assert not extraction_due(last_seq=6, extracted_seq=6, min_turns=8, at_rest=True)
