"""Why pods do not run, in one sentence that stays the same while the cause does.

Back-offs count seconds and restarts count up; neither is repeated here, so that a pod that keeps crashing is one
status and not a new one each time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

_MESSAGE_LIMIT: Final = 200
_REFUSED_POD: Final = re.compile(r'^(?:pods|Pod) "[^"]*" is (?:forbidden|invalid): ')
_HARMLESS: Final = frozenset({"ContainerCreating", "PodInitializing"})
_WITH_MESSAGE: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"}
)
"""Waiting reasons whose message says what a person needs and does not change by itself."""


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MESSAGE_LIMIT else f"{line[:_MESSAGE_LIMIT]}…"


def refusal(message: str) -> str:
    """Return why the API server refuses pods, without the name of the one that it refused last."""
    why = _shortened(_REFUSED_POD.sub("", message)).rstrip(".")
    return f"The API server refuses the pods: {why}" + ("" if why.endswith("…") else ".")


def _of_container(status: Mapping[str, Any]) -> str | None:
    """Return why a container is not ready; None when it is, or when nothing is wrong yet."""
    if status.get("ready") or status.get("started"):
        return None
    state = status.get("state") or {}
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or (status.get("lastState") or {}).get("terminated")
    if ended and (status.get("restartCount") or ended.get("exitCode")):
        why = ended.get("reason") or "Error"
        if why == "OOMKilled":
            return "OOMKilled: it needs more memory than its limit"
        return f"CrashLoopBackOff: it ended with exit code {ended.get('exitCode', 'unknown')}; see its log"
    reason = waiting.get("reason")
    if not reason or reason in _HARMLESS:
        return None
    if reason in ("ErrImagePull", "ImagePullBackOff"):
        reason = "ImagePullBackOff"
        return f"{reason}: the image {status.get('image', '')!r} cannot be pulled"
    message = waiting.get("message", "") if reason in _WITH_MESSAGE else ""
    return f"{reason}: {_shortened(message)}" if message else str(reason)


def _of_pod(pod: Mapping[str, Any]) -> str | None:
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason') or 'Unschedulable'}: {_shortened(condition.get('message', ''))}"
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        why = _of_container(container)
        if why is not None:
            return f"container {container['name']!r}: {why}"
    return f"{status['reason']}" if status.get("phase") == "Failed" and status.get("reason") else None


def trouble(pods: Iterable[Mapping[str, Any]]) -> str:
    """Return what keeps the first troubled pod from running; empty when nothing is known to."""
    for pod in sorted(pods, key=lambda item: (item["metadata"]["creationTimestamp"], item["metadata"]["name"])):
        if pod["metadata"].get("deletionTimestamp"):
            continue
        why = _of_pod(pod)
        if why is not None:
            return f"Pod {pod['metadata']['name']!r}: {why}."
    return ""
