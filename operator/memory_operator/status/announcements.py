"""What of a new status is told by an Event: what somebody who follows one object wants to hear, each thing once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from memory_operator import names
from memory_operator.crd import conditions
from memory_operator.crd.conditions import STARTING, ConditionType, Reason

_ANNOUNCED: Final = {
    (names.MEMORY_STORE, ConditionType.READY),
    (names.MEMORY_STORE, ConditionType.PAUSED),
    (names.MEMORY_STORE, ConditionType.STALLED),
    (names.AGENT_MEMORY, ConditionType.ACCEPTED),
}
"""Conditions whose change is worth an Event; an outage must not write one for each of a thousand agents."""

_ANNOUNCED_REASONS: Final = frozenset({Reason.VOLUME_REPLACED})
"""Reasons that are worth one wherever they stand: nothing stopped, and somebody must hear of it all the same."""

_EXPECTED: Final = frozenset(
    {Reason.AVAILABLE, Reason.ACCEPTED, Reason.PAUSED, Reason.SCALED_TO_ZERO, Reason.TERMINATING, *STARTING}
)
"""Reasons that nobody has to act on: somebody asked for it, or it passes."""


_NOTE_BYTES = 1024
"""What the API server takes; it says characters, and counts bytes."""


def _note(item: Mapping[str, Any]) -> str:
    """Return what an Event says of a condition, cut between two characters."""
    text = str(item["message"] or item["reason"])
    return text.encode()[:_NOTE_BYTES].decode(errors="ignore")


@dataclass(frozen=True)
class Announcement:
    """One Event: `Normal` or `Warning`, a reason, a sentence, and the condition that says so."""

    severity: str
    reason: str
    note: str
    condition: Mapping[str, Any]


def _is_news(kind: str, item: Mapping[str, Any], old: Mapping[str, Any] | None) -> bool:
    if old is not None and (old["status"], old["reason"]) == (item["status"], item["reason"]):
        return False
    if item["reason"] in _ANNOUNCED_REASONS:
        return True
    if (kind, item["type"]) not in _ANNOUNCED or item["status"] == "Unknown":
        return False
    if item["type"] == ConditionType.ACCEPTED and item["status"] == "True":
        return old is not None
    was_serving = old is not None and old["status"] == "True"
    return was_serving or item["reason"] not in STARTING


def announcements(kind: str, previous: Mapping[str, Any], status: Mapping[str, Any]) -> list[Announcement]:
    """Return the Events for what changes in the status of an object of a kind, one for each reason.

    A store that starts is no news until it serves, or something keeps it from that.
    """
    before = conditions.by_type(previous)
    found: dict[str, Announcement] = {}
    for item in status.get("conditions") or ():
        if _is_news(kind, item, before.get(item["type"])):
            severity = "Normal" if item["reason"] in _EXPECTED else "Warning"
            found.setdefault(item["reason"], Announcement(severity, item["reason"], _note(item), item))
    return list(found.values())
