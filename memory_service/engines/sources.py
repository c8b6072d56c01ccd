"""Which turns a candidate fact most likely comes from, for engines that do not say. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from memory_service.contract.turns import Role
from memory_service.ports.models import SaidTurn

_WORD = re.compile(r"\w{3,}")


def likely_sources(text: str, turns: Sequence[SaidTurn], *, role: Role | None = None) -> tuple[int, ...]:
    """Return the sequence numbers of the turns that share most words with a fact, in order; all if none shares any.

    Only turns of `role` are looked at, where there are any.
    """
    said = [turn for turn in turns if role is None or turn.role is role] or list(turns)
    words = _words(text)
    shared = [len(words & _words(turn.text)) for turn in said]
    most = max(shared, default=0)
    chosen = [turn.seq for turn, count in zip(said, shared, strict=True) if count * 2 > most or most == 0]
    return tuple(sorted(set(chosen)))


def _words(text: str) -> set[str]:
    return {word.rstrip("s") for word in _WORD.findall(text.casefold()) if word not in ("user", "assistant", "the")}
