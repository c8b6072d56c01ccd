"""Volumes provisioned on demand, folders of this machine.

StorageClass `local-path`, the default: a volume belongs to one node, may be asked to grow, and nothing resizes it.
StorageClass `fixed-path`: the same, and a claim that grows is refused by the API server.
StorageClass `shared-path`: a volume that pods on both nodes may mount, as with network storage.
"""

import json
from typing import Any

from . import archives, programs
from .control_plane import ControlPlane

NAMESPACE = "volumes"
_LOCAL = "rancher.io/local-path"
_SHARED = "memplane.test/shared-path"


def install(control_plane: ControlPlane) -> None:
    """Create the storage classes and start their provisioners."""
    kubectl = control_plane.kubectl.in_namespace(NAMESPACE)
    layouts = _layouts(control_plane)
    control_plane.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    kubectl.apply(
        _storage_class("local-path", _LOCAL, grows=True, is_default=True),
        _storage_class("fixed-path", _LOCAL, grows=False),
        _storage_class("shared-path", _SHARED, grows=True),
        *(_settings(name, content) for name, content in layouts.items()),
    )
    for name, provisioner in (("local-path", _LOCAL), ("shared-path", _SHARED)):
        _start(control_plane, name, provisioner, layouts[name])


def _storage_class(name: str, provisioner: str, *, grows: bool, is_default: bool = False) -> dict[str, Any]:
    chosen = {"storageclass.kubernetes.io/is-default-class": "true"} if is_default else {}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "annotations": chosen},
        "provisioner": provisioner,
        "allowVolumeExpansion": grows,
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def _layouts(control_plane: ControlPlane) -> dict[str, dict[str, Any]]:
    base = control_plane.run.folder / "volumes"
    for kind in ("local", "shared"):
        (base / kind).mkdir(parents=True)
    everywhere = {"node": "DEFAULT_PATH_FOR_NON_LISTED_NODES", "paths": [str(base / "local")]}
    return {
        "local-path": {"nodePathMap": [everywhere]},
        "shared-path": {"sharedFileSystemPath": str(base / "shared")},
    }


def _settings(name: str, layout: dict[str, Any]) -> dict[str, Any]:
    helper = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "helper-pod"},
        "spec": {
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "helper-pod", "image": archives.BUSYBOX, "imagePullPolicy": "Never"}],
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {
            "config.json": json.dumps(layout),
            "setup": '#!/bin/sh\nset -eu\nmkdir -p "$VOL_DIR"\nchmod 0777 "$VOL_DIR"\n',
            "teardown": '#!/bin/sh\nset -eu\nrm -rf "$VOL_DIR"\n',
            "helperPod.yaml": json.dumps(helper),
        },
    }


def _start(control_plane: ControlPlane, name: str, provisioner: str, layout: dict[str, Any]) -> None:
    run = control_plane.run
    settings = run.folder / f"{name}.json"
    settings.write_text(json.dumps(layout))
    run.processes().start(
        f"{name}-provisioner",
        [
            programs.path("local-path-provisioner"),
            "start",
            "--config",
            settings,
            "--provisioner-name",
            provisioner,
            "--kubeconfig",
            control_plane.keys.kubeconfig("local-path-provisioner"),
            "--namespace",
            NAMESPACE,
            "--configmap-name",
            name,
            "--helper-image",
            archives.BUSYBOX,
            "--service-account-name",
            "default",
        ],
        {"POD_NAMESPACE": NAMESPACE},
    )
