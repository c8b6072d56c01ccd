"""What a workload's pod template needs to be bound, as a patch for the workload that an AgentMemory names."""

from __future__ import annotations

from typing import Any, Final

import yaml

from memory_service.cli.diagnosis import JsonObject

FIXED: Final = ("Job", "Pod")
"""Kinds whose pods cannot be changed once they are made."""


def workload_of(agent: JsonObject) -> tuple[str, str] | None:
    """Return kind and name of the workload that an AgentMemory names, if it names one."""
    reference = ((agent.get("spec") or {}).get("agent") or {}).get("workloadRef")
    return (reference["kind"], reference["name"]) if reference else None


def pod_template(kind: str, workload: JsonObject) -> JsonObject:
    """Return the pod template in a workload; a Pod is its own."""
    if kind == "Pod":
        return workload
    spec = workload["spec"]["jobTemplate"]["spec"] if kind == "CronJob" else workload["spec"]
    template: JsonObject = spec["template"]
    return template


def containers_of(kind: str, workload: JsonObject) -> tuple[str, ...]:
    """Return the names of a workload's containers."""
    return tuple(one["name"] for one in pod_template(kind, workload)["spec"]["containers"])


def _template(agent: JsonObject) -> dict[str, Any]:
    """Return the pod template's part: as the status has it, else, where no workload is named, made of its fields."""
    status = agent["status"]
    if "snippet" in status:
        written: dict[str, Any] = yaml.safe_load(status["snippet"])["template"]
        return written
    name = agent["metadata"]["name"]
    token = {"audience": status["audience"], "expirationSeconds": 3600, "path": "token"}
    sources = [
        {"configMap": {"name": status["bindingConfigMap"], "optional": True}},
        {"serviceAccountToken": token},
    ]
    mount = {"name": "memplane", "mountPath": "/var/run/memplane", "readOnly": True}
    return {
        "metadata": {"labels": {"memplane.dev/binding": name}},
        "spec": {
            "serviceAccountName": status["serviceAccountName"],
            "containers": [{"name": "<your container>", "volumeMounts": [mount]}],
            "volumes": [{"name": "memplane", "projected": {"defaultMode": 0o444, "sources": sources}}],
        },
    }


def why_none(agent: JsonObject) -> str | None:
    """Return why an AgentMemory has no snippet; None when it has one."""
    spec, status = agent.get("spec") or {}, agent.get("status") or {}
    if (spec.get("agent") or {}).get("template"):
        return "the operator runs this agent and has bound its pods: there is nothing to add"
    if not spec.get("memoryStore"):
        return "this agent's memory is its own: there is no store to bind it to"
    if "audience" not in status:
        return "no operator has looked at it yet: try again once its status is there"
    return None


def patch(agent: JsonObject, container: str | None) -> str:
    """Return a strategic-merge patch, as YAML, for the workload that an AgentMemory names, else for a Deployment.

    For a kind that cannot be patched it is the part of the manifest to make it anew with.
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
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
