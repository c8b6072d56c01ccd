"""The shape that objects must have to be explained: checked once, where they are read, so that nothing else has to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from memory_service.cli.diagnosis import JsonObject, Kind

_READ_ANEW: Final = "read it anew, and see that nothing changes it on its way"


class Misshapen(Exception):
    """An object is not as an API server has it; the sentence names the field and what to do."""

    def __init__(self, called: str, problem: str, step: str = _READ_ANEW) -> None:
        super().__init__(f"{called} is not what `kubectl get -o json` prints: {problem}; {step}")


@dataclass(frozen=True, slots=True)
class Object:
    """Fields that must be there, and fields that may; others are not looked at."""

    needed: Mapping[str, Shape] = field(default_factory=dict)
    optional: Mapping[str, Shape] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    of: Shape
    at_least: int = 0


Shape: TypeAlias = Object | Items | type[str] | type[int] | type[bool] | re.Pattern[str]
"""A pattern is a text that matches it as a whole."""

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
"""Names go into commands that are run and shown: none of them may be read as a flag or by a shell."""
_META: Final = Object({"name": _NAME, "namespace": _NAME}, {"generation": int, "deletionTimestamp": str})
_CONDITION: Final = Object({"type": str, "status": str, "reason": str}, {"message": str, "lastTransitionTime": str})
_STATUS: Final[Mapping[str, Shape]] = {"observedGeneration": int, "conditions": Items(_CONDITION)}
_USE: Final = Object({}, {"modelAPI": _NAME})
_BINDING: Final[Mapping[str, Shape]] = {"audience": str, "bindingConfigMap": _NAME, "serviceAccountName": _NAME}
_AGENT: Final = Object({}, {"template": Object(), "workloadRef": Object({"kind": str, "name": _NAME})})

OURS: Final[Mapping[Kind, Object]] = {
    Kind.AGENT_MEMORY: Object(
        {"kind": str, "metadata": _META},
        {
            "spec": Object(
                {}, {"memoryStore": _NAME, "memoryStoreNamespace": _NAME, "failureMode": str, "agent": _AGENT}
            ),
            "status": Object({}, {**_STATUS, **_BINDING, "snippet": str, "started": bool}),
        },
    ),
    Kind.MEMORY_STORE: Object(
        {"kind": str, "metadata": _META},
        {
            "spec": Object({}, {"models": Object({}, {"summarization": _USE, "embedding": _USE})}),
            "status": Object({}, _STATUS),
        },
    ),
    Kind.MODEL_API: Object({"kind": str, "metadata": _META}, {"spec": Object(), "status": Object({}, _STATUS)}),
}
"""By kind, what is read of the objects that can be asked about."""
LISTED: Final = Object({"kind": str, "metadata": Object({"name": str}, {"namespace": str, "labels": Object()})})
"""What is read of every object in a file, to find the ones that matter."""
_CONTAINER_STATUSES: Final = Items(
    Object({"name": str}, {"restartCount": int, "state": Object({}, {"waiting": Object({}, {"reason": str})})})
)
POD: Final = Object(
    {"metadata": _META},
    {
        "status": Object(
            {},
            {
                "phase": str,
                "conditions": Items(Object({"type": str, "status": str}, {"reason": str, "message": str})),
                "initContainerStatuses": _CONTAINER_STATUSES,
                "containerStatuses": _CONTAINER_STATUSES,
            },
        )
    },
)
"""What is read of the pods that the operator runs."""
BOUND: Final = Object({"status": Object(_BINDING)})
"""What a snippet is made of where the status has none."""
TEMPLATE: Final = Object({"spec": Object({"containers": Items(Object({"name": str}), at_least=1)})})
_RUNS_PODS: Final = Object({"spec": Object({"template": TEMPLATE})})
WORKLOADS: Final[Mapping[str, Object]] = {
    "Deployment": _RUNS_PODS,
    "StatefulSet": _RUNS_PODS,
    "DaemonSet": _RUNS_PODS,
    "ReplicaSet": _RUNS_PODS,
    "Job": _RUNS_PODS,
    "CronJob": Object({"spec": Object({"jobTemplate": _RUNS_PODS})}),
    "Pod": TEMPLATE,
}
"""By kind, what is read of a workload that an AgentMemory may name."""


def shaped(value: object, shape: Object, called: str, at: str = "", *, step: str = _READ_ANEW) -> JsonObject:
    """Return an object whose fields are as the shape says; a field that is null is left out, as if it were not there.

    `called` is how an error calls the object, `at` where in it the value is, `step` what to do about it.

    Raises:
        Misshapen: a field is missing or is something else.
    """
    try:
        found: JsonObject = _checked(value, shape, at)
    except _Problem as problem:
        raise Misshapen(called, str(problem), step) from None
    return found


class _Problem(Exception):
    pass


def _checked(value: object, shape: Shape, at: str) -> Any:
    if isinstance(shape, Object):
        if not isinstance(value, Mapping):
            raise _Problem(f"{at or 'it'} is {_what(value)}, and should be an object")
        found = {name: item for name, item in value.items() if item is not None}
        for name, inner in (*shape.needed.items(), *shape.optional.items()):
            path = f"{at}.{name}" if at else name
            if name in found:
                found[name] = _checked(found[name], inner, path)
            elif name in shape.needed:
                raise _Problem(f"{path} is missing")
        return found
    if isinstance(shape, Items):
        if not isinstance(value, list):
            raise _Problem(f"{at} is {_what(value)}, and should be a list")
        if len(value) < shape.at_least:
            raise _Problem(f"{at} is empty")
        return [_checked(item, shape.of, f"{at}[{number}]") for number, item in enumerate(value)]
    if isinstance(shape, re.Pattern):
        if not isinstance(value, str) or not shape.fullmatch(value):
            raise _Problem(f"{at} is {_what(value)}, and should be a name of Kubernetes")
    elif type(value) is not shape:  # A bool is an int to Python, and no number to Kubernetes.
        wanted = {str: "a text", int: "a whole number", bool: "true or false"}[shape]
        raise _Problem(f"{at} is {_what(value)}, and should be {wanted}")
    return value


def _what(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
