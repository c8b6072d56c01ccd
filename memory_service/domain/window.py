"""The window: which turns of a session are shown, when older ones are folded into the digest, and which ones.

A tool's result means nothing without its call, and a provider refuses it: between a call and its results the window is
never cut, neither on read nor by a fold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from memory_service.contract.turns import Role
from memory_service.domain.quoting import Counter

CUT_MARKER = "\n[… cut to fit the window; the stored turn is whole]"


class WindowTurn(Protocol):
    """A stored turn; `ports.records.TurnRow` is one."""

    @property
    def seq(self) -> int: ...
    @property
    def role(self) -> Role: ...
    @property
    def content(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def parts(self) -> tuple[Mapping[str, Any], ...] | None: ...
    @property
    def tokens(self) -> int: ...


T = TypeVar("T", bound=WindowTurn)


@dataclass(frozen=True)
class Shown(Generic[T]):
    """A turn as the window shows it: whole, or with `content` and `parts` cut and `truncated` set."""

    turn: T
    content: str
    parts: tuple[Mapping[str, Any], ...] | None
    tokens: int
    truncated: bool = False


@dataclass(frozen=True)
class Window(Generic[T]):
    """The shown turns, oldest first. `cut` says that turns which are in no digest yet did not fit."""

    turns: tuple[Shown[T], ...]
    tokens: int
    cut: bool


def visible(turns: Sequence[T], *, budget_tokens: int, event_cap: int, counter: Counter) -> Window[T]:
    """Return the newest of these turns (those after the digest, oldest first) that fit the budget and the cap.

    A result whose call is not among the turns is left out. A call that still waits for its result keeps what followed
    it only where all of that fits. Where not even the newest turn fits, or the newest call with its results, it is
    shown cut, with a marker: the window never exceeds its budget and is never empty for that.
    """
    calls = {call for turn in turns for call in _ids(turn, "tool_call")}
    whole = [turn for turn in turns if not _is_orphan(turn, calls)]
    fixed = [_without_orphans(turn, calls) for turn in whole]
    fitting = 0
    tokens = 0
    for turn in reversed(fixed[-event_cap:]):
        tokens += turn.tokens
        if tokens > budget_tokens:
            break
        fitting += 1
    starts = _starts(whole)
    first = len(whole) - fitting
    best = min((start for start in starts if start >= first), default=None)
    if best is None:
        starts = _starts(whole, open_calls_hold=False)
        best = min((start for start in starts if start >= first), default=None)
    if best is not None:
        shown = tuple(fixed[best:])
    elif whole:
        newest = max(starts)
        shown = _squeezed(fixed[newest:], budget_tokens, counter)
        best = newest
        if len(shown) > event_cap:
            # More results than the cap has room for: no cut through the pair is right, so only its newest text stays.
            shown = _squeezed([_as_text(fixed[-1])], budget_tokens, counter)
    else:
        shown, best = (), 0
    return Window(shown, sum(turn.tokens for turn in shown), cut=best > 0 or len(shown) < len(whole) - best)


def fold_due(window_tokens: int, window_turns: int, *, trigger_tokens: int, event_cap: int) -> bool:
    """Return whether the running totals of a window ask for a fold: over the trigger mark, or over the cap."""
    return window_tokens > trigger_tokens or window_turns > event_cap


def over_target(tokens: int, turns: int, *, target_tokens: int, event_cap: int) -> bool:
    """Return whether a window has more than a fold leaves: the target mark's tokens, and half of the event cap."""
    return tokens > target_tokens or turns > max(1, event_cap // 2)


def fold_range(
    turns: Sequence[T], *, target_tokens: int, event_cap: int, tokens_beyond: int = 0, turns_beyond: int = 0
) -> tuple[T, ...]:
    """Return the oldest of the window's turns that a fold takes so that what stays is within the target mark.

    `turns` are those after the digest, oldest first; more may follow that were not read, and they stay. At most half of
    the event cap stays, so that folds are rare. Calls stay with their results, and something always stays: empty when
    nothing can be folded. A call that still waits for its result is not folded either, as long as anything else can be:
    one that nobody ever answers must not keep every turn behind it out of the digest.
    """
    remaining_tokens = sum(turn.tokens for turn in turns) + tokens_beyond
    wanted = 0
    for wanted in range(len(turns) + 1):
        left = len(turns) - wanted + turns_beyond
        if not over_target(remaining_tokens, left, target_tokens=target_tokens, event_cap=event_cap):
            break
        if wanted < len(turns):
            remaining_tokens -= turns[wanted].tokens
    if wanted == 0:
        return ()
    starts = sorted(_starts(turns) - {0}) or sorted(_starts(turns, open_calls_hold=False) - {0})
    cuts = [start for start in starts if start >= wanted] or starts[-1:]
    return tuple(turns[: cuts[0]]) if cuts else ()


def extraction_due(*, last_seq: int, extracted_seq: int, min_turns: int, at_rest: bool) -> bool:
    """Return whether a session's turns should be extracted: enough of them wait, or any and it rests."""
    waiting = last_seq - extracted_seq
    return waiting >= min_turns or (at_rest and waiting > 0)


def _ids(turn: WindowTurn, kind: str) -> tuple[str, ...]:
    return tuple(str(part.get("id")) for part in turn.parts or () if part.get("type") == kind)


def _is_orphan(turn: WindowTurn, calls: set[str]) -> bool:
    """Whether a turn is nothing but results of calls that are not here."""
    parts = turn.parts or ()
    if not parts or (turn.role is not Role.TOOL and turn.content.strip()):
        return False
    return all(part.get("type") == "tool_result" and str(part.get("id")) not in calls for part in parts)


def _without_orphans(turn: T, calls: set[str]) -> Shown[T]:
    parts = turn.parts
    if parts is not None:
        parts = tuple(p for p in parts if p.get("type") != "tool_result" or str(p.get("id")) in calls)
    return Shown(turn, turn.content, parts, turn.tokens)


def _starts(turns: Sequence[WindowTurn], *, open_calls_hold: bool = True) -> set[int]:
    """Return the positions where a window may begin: not between a call and the last of its results.

    A call without a result holds the window together up to its end while it can still be answered: until a turn that
    is neither a result nor another call. With `open_calls_hold` off it holds nothing.
    """
    starts = set(range(len(turns)))
    called: dict[str, int] = {}
    open_calls: dict[str, int] = {}
    for position, turn in enumerate(turns):
        results, calls = _ids(turn, "tool_result"), _ids(turn, "tool_call")
        for call in results:
            if call in called:
                starts.difference_update(range(called[call] + 1, position + 1))
                open_calls.pop(call, None)
        if turn.role is Role.USER or not (results or calls or turn.role is Role.TOOL):
            open_calls.clear()
        for call in calls:
            called[call] = open_calls[call] = position
    if open_calls and open_calls_hold:
        starts.difference_update(range(min(open_calls.values()) + 1, len(turns)))
    return starts


def _squeezed(turns: Sequence[Shown[T]], budget: int, counter: Counter) -> tuple[Shown[T], ...]:
    """Cut the longest of these turns to one common length, so that together they are within the budget."""
    low, high = 0, budget
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(turn.tokens, middle) for turn in turns) <= budget:
            low = middle
        else:
            high = middle - 1
    return tuple(turn if turn.tokens <= low else _cut(turn, low, counter) for turn in turns)


def _cut(shown: Shown[T], limit: int, counter: Counter) -> Shown[T]:
    text = shown.turn.content if shown.turn.content.strip() else shown.turn.text
    content = counter.cut(text, max(0, limit - counter.count(CUT_MARKER))) + CUT_MARKER
    if counter.count(content) > limit:
        content = counter.cut(text, limit)
    parts = shown.parts
    if parts is not None:
        kept = [_cut_part(part, content) for part in parts if part.get("type") in ("tool_call", "tool_result")]
        parts = tuple(kept) or None
    return Shown(shown.turn, content, parts, min(limit, counter.count(content)), truncated=True)


def _cut_part(part: Mapping[str, Any], content: str) -> Mapping[str, Any]:
    """Keep what pairs a call with its result; the payload goes, since it may be what was too long."""
    if part.get("type") == "tool_call":
        return {**part, "arguments": {}}
    return {**part, "content": content}


def _as_text(shown: Shown[T]) -> Shown[T]:
    content = shown.content if shown.content.strip() else shown.turn.text
    return Shown(shown.turn, content, None, shown.tokens, truncated=True)
