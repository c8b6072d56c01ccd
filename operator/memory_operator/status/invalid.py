"""The status of an object with a spec that breaks a rule: it names the fields, and what runs is left alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from memory_operator.crd import conditions
from memory_operator.crd.base import Identity
from memory_operator.crd.conditions import Condition, ConditionType, Reason
from memory_operator.errors import Problem


def invalid_status(
    who: Identity,
    previous: Mapping[str, Any],
    problems: Sequence[Problem],
    now: datetime,
    *,
    refused: Collection[ConditionType] = (ConditionType.READY,),
    kept: Collection[Condition] = (),
) -> dict[str, Any]:
    """Return a status that is `Stalled`, and False in what is `refused`; the other conditions are those `kept`."""
    message = "; ".join(str(problem) for problem in problems)
    found = [
        *(Condition(kind, False, Reason.INVALID_SPEC, message) for kind in refused),
        Condition(ConditionType.STALLED, True, Reason.INVALID_SPEC, message),
        *kept,
    ]
    merged = conditions.merge(previous, found, who.generation, now)
    return {**previous, "observedGeneration": who.generation, "conditions": merged}
