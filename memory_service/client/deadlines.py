"""How long calls may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds that a call may take in all, by kind.

    A recall's allows for the two seconds that a service waits for an embedding before it goes on with words alone.
    """

    recall: float = 4.0
    write: float = 5.0
    other: float = 15.0
    admin: float = 120.0

    def of(self, verb: str) -> float:
        """Return the seconds that a verb has unless its caller says otherwise."""
        if verb in ("recall", "health.live", "health.ready"):
            return self.recall
        if verb in ("write", "remember"):
            return self.write
        return self.admin if verb.startswith("admin.") else self.other
