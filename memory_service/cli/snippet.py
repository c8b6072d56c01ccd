"""What a workload's pod template needs to be bound, as a patch for the workload that an AgentMemory names."""

from __future__ import annotations

from typing import Any, Final

import yaml

from memory_service.cli.diagnosis import JsonObject
from memory_service.cli.shape import BOUND, TEMPLATE, WORKLOADS, Misshapen, Object, shaped
from memory_service.contract.pods import bound_template

FIXED: Final = ("Job", "Pod")
"""Kinds whose pods cannot be changed once they are made."""


def workload_of(agent: JsonObject) -> tuple[str, str] | None:
    """Return kind and name of the workload that an AgentMemory names, if it names one.

    Raises:
        Misshapen: it is of a kind that has no pods of its own.
    """
    reference = agent.get("spec", {}).get("agent", {}).get("workloadRef")
    if reference is None:
        return None
    if reference["kind"] not in WORKLOADS:
        problem = f"spec.agent.workloadRef.kind is {reference['kind']!r}, and should be one of {', '.join(WORKLOADS)}"
        raise Misshapen(_called(agent), problem, "correct the field")
    return reference["kind"], reference["name"]


def _called(agent: JsonObject) -> str:
    return f"AgentMemory {agent['metadata']['name']}"


def pod_template(kind: str, workload: JsonObject) -> JsonObject:
    """Return the pod template in a workload; a Pod is its own."""
    if kind == "Pod":
        return workload
    spec = workload["spec"]["jobTemplate"]["spec"] if kind == "CronJob" else workload["spec"]
    template: JsonObject = spec["template"]
    return template


def containers_of(kind: str, workload: object) -> tuple[str, ...]:
    """Return the names of a workload's containers, one at least.

    Raises:
        Misshapen: the object is no such workload.
    """
    found = pod_template(kind, shaped(workload, WORKLOADS[kind], f"the {kind}"))
    return tuple(one["name"] for one in found["spec"]["containers"])


def _template(agent: JsonObject) -> dict[str, Any]:
    """Return the pod template's part: as the status has it, else, where no workload is named, made of its fields."""
    if "snippet" in agent["status"]:
        return _written(agent)
    step = "see that the operator runs, which writes it, and is of this version"
    status = shaped(agent, BOUND, _called(agent), step=step)["status"]
    return bound_template(
        agent["metadata"]["name"],
        service_account=status["serviceAccountName"],
        config_map=status["bindingConfigMap"],
        audience=status["audience"],
    )


def _written(agent: JsonObject) -> dict[str, Any]:
    try:
        content = yaml.safe_load(agent["status"]["snippet"])
    # A tag with a value that it does not fit ends in whatever PyYAML's constructor stumbles over.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise Misshapen(_called(agent), f"status.snippet is no YAML ({type(error).__name__})") from error
    shape = Object({"template": TEMPLATE})
    template: dict[str, Any] = shaped(content, shape, _called(agent), "status.snippet")["template"]
    return template


def why_none(agent: JsonObject) -> str | None:
    """Return why an AgentMemory has no snippet; None when it has one."""
    spec, status = agent.get("spec", {}), agent.get("status", {})
    if spec.get("agent", {}).get("template"):
        return "the operator runs this agent and has bound its pods: there is nothing to add"
    if not spec.get("memoryStore"):
        return "this agent's memory is its own: there is no store to bind it to"
    if "audience" not in status:
        return "no operator has looked at it yet: try again once its status is there"
    return None


def patch(agent: JsonObject, container: str | None) -> str:
    """Return a strategic-merge patch, as YAML, for the workload that an AgentMemory names, else for a Deployment.

    For a kind that cannot be patched it is the part of the manifest to make it anew with.

    Raises:
        Misshapen: the status has not what it is made of.
    """
    template = _template(agent)
    if container is not None:
        template["spec"]["containers"][0]["name"] = container
    kind, _ = workload_of(agent) or ("Deployment", "")
    if kind == "Pod":
        content: dict[str, Any] = template
    elif kind == "CronJob":
        content = {"spec": {"jobTemplate": {"spec": {"template": template}}}}
    else:
        content = {"spec": {"template": template}}
    try:
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    except (RecursionError, ValueError) as error:
        problem = f"status.snippet cannot be written as YAML ({type(error).__name__})"
        raise Misshapen(_called(agent), problem) from error
