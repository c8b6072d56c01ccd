"""What a pod needs to be bound to a store: the folder with its binding and token, and where its containers find it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

BINDING_LABEL: Final = "memplane.dev/binding"
"""On the pods of bound agents: a store's NetworkPolicy admits pods that carry it."""
BINDING_FOLDER: Final = "/var/run/memplane"
"""Where containers find the folder."""
TOKEN_FILE: Final = "token"
CA_FILE: Final = "ca.crt"
"""In that folder, where a store's certificate has an authority of its own."""
CONTAINER_GAP: Final = "<your container>"
"""Stands where somebody has to write the name of the agent's container."""

_VOLUME: Final = "memplane"
_TOKEN_SECONDS: Final = 3600


def binding_volume(config_map: str, audience: str) -> dict[str, Any]:
    """Return the volume with the binding (optional: a pod may start before it) and the agent's token."""
    token = {"audience": audience, "expirationSeconds": _TOKEN_SECONDS, "path": TOKEN_FILE}
    sources = [{"configMap": {"name": config_map, "optional": True}}, {"serviceAccountToken": token}]
    return {"name": _VOLUME, "projected": {"defaultMode": 0o444, "sources": sources}}


def bound_audience(pod: Mapping[str, Any]) -> str | None:
    """Return the audience of the token that pods of this spec are given; None when they are given none."""
    volumes = (item for item in pod.get("volumes") or () if item["name"] == _VOLUME)
    sources = [item for volume in volumes for item in (volume.get("projected") or {}).get("sources") or ()]
    return next((token.get("audience") for item in sources if (token := item.get("serviceAccountToken"))), None)


def binding_mount() -> dict[str, Any]:
    """Return what a container mounts of it."""
    return {"name": _VOLUME, "mountPath": BINDING_FOLDER, "readOnly": True}


def bound_template(binding: str, *, service_account: str, config_map: str, audience: str) -> dict[str, Any]:
    """Return the part of a pod template that binds an existing workload, with a gap for the container's name."""
    return {
        "metadata": {"labels": {BINDING_LABEL: binding}},
        "spec": {
            "serviceAccountName": service_account,
            "containers": [{"name": CONTAINER_GAP, "volumeMounts": [binding_mount()]}],
            "volumes": [binding_volume(config_map, audience)],
        },
    }
