"""Real nodes: each its own containerd and kubelet, all on this machine, in the cluster's network namespace."""

import contextlib
import json
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

from . import archives, home, programs, sysctls
from .commands import run as run_command
from .control_plane import ControlPlane
from .errors import ProgramFailed
from .image_store import ImageStore
from .images import Image
from .keys import Keys
from .runs import Run

_PROXY_HEALTH_PORT = 10256


def start(control_plane: ControlPlane, count: int) -> None:
    """Start this many nodes and kube-proxy, and wait until all are Ready."""
    run = control_plane.run
    names = [f"node{number}" for number in range(count)]
    sysctls.save()
    (run.folder / "nodes.json").write_text(json.dumps(names))
    run.groups.create(names)
    for number, name in enumerate(names):
        _start_containerd(run, number, name)
    basic = archives.write_basic_images(run.folder / "basic.tar")
    for number, name in enumerate(names):
        _until_containerd_answers(run, name)
        import_archive(run, name, basic)
        _start_kubelet(run, control_plane.keys, number, name)
    _start_proxy(control_plane)
    for name in names:
        run.processes().until_ready(f"kubelet-{name}", f"node {name}", partial(_is_ready, control_plane, name))


def folder(run: Run, name: str) -> Path:
    return run.folder / name


def import_archive(run: Run, name: str, archive: Path) -> None:
    """Load an archive of whole images into a node."""
    run_command([*_ctr(run, name), "images", "import", archive], timeout_seconds=300)


def import_image(run: Run, name: str, image: Image) -> None:
    """Load a built image into a node."""
    command = [*_ctr(run, name), "images", "import", f"--base-name={image.repository}", "-"]
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said) as importing:
            assert importing.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # ctr has ended; what it said is reported below
                image.layout.write(image.tag, importing.stdin)
        if importing.returncode != 0:
            said.seek(0)
            raise ProgramFailed(" ".join(command), said.read(), importing.returncode)


def images(run: Run, name: str) -> list[str]:
    """The names of the images on a node."""
    return run_command([*_ctr(run, name), "images", "list", "-q"]).split()


def forget_image(run: Run, name: str, reference: str) -> None:
    """Remove an image from a node."""
    run_command([*_ctr(run, name), "images", "rm", reference])


def _ctr(run: Run, name: str) -> list[str]:
    socket = folder(run, name) / "containerd.sock"
    return [str(programs.path("ctr")), "--address", str(socket), "--namespace", "k8s.io"]


def _is_ready(control_plane: ControlPlane, name: str) -> bool:
    node = control_plane.kubectl.find("node", name) or {}
    conditions = node.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _start_containerd(run: Run, number: int, name: str) -> None:
    here = folder(run, name)
    (here / "cni").mkdir(parents=True)
    (here / "cni" / "10-pods.conflist").write_text(json.dumps(_pod_network(run, number, here)))
    settings = Template((home.SOURCES / "containerd.toml").read_text())
    store = ImageStore(run.slot, name)
    (here / "containerd.toml").write_text(settings.substitute(node=here, pause=archives.PAUSE, images=store.open()))
    run.processes().start(
        f"containerd-{name}",
        [programs.path("containerd"), "--config", here / "containerd.toml"],
        {"PATH": programs.search_path(programs.NODES)},
    )


def _pod_network(run: Run, number: int, here: Path) -> dict[str, Any]:
    # ptp, not bridge: all of a pod's traffic is then routed, so services and network policies hold between two pods
    # of one node without bridge netfilter.
    subnet = str(run.addresses.node_pods(number))
    addresses = {
        "type": "host-local",
        "dataDir": str(here / "addresses"),
        "ranges": [[{"subnet": subnet}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {
        "cniVersion": "1.0.0",
        "name": f"pods-{number}",
        "plugins": [
            {"type": "ptp", "ipMasq": False, "ipam": addresses},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def _until_containerd_answers(run: Run, name: str) -> None:
    def answers() -> bool:
        try:
            run_command([*_ctr(run, name), "version"])
        except ProgramFailed:
            return False
        return True

    run.processes().until_ready(f"containerd-{name}", f"containerd of {name}", answers)


def _start_kubelet(run: Run, keys: Keys, number: int, name: str) -> None:
    here = folder(run, name)
    settings = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": str(run.addresses.cluster),
        "port": 10250 + number * 10,
        "healthzPort": 10248 + number * 10,
        "readOnlyPort": 0,
        "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(keys.authority)}},
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{here / 'containerd.sock'}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": run.groups.node(name),
        "failCgroupV1": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "podLogsDir": str(here / "pod-logs"),  # with the default one, two kubelets delete each other's logs
        "clusterDomain": "cluster.local",
        "clusterDNS": [str(run.addresses.dns_service)],
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        "syncFrequency": "10s",  # how late a changed Secret is seen by a pod that mounts it
        "registerNode": True,
    }
    (here / "pod-logs").mkdir()
    (here / "kubelet.json").write_text(json.dumps(settings))
    run.processes().start(
        f"kubelet-{name}",
        [
            programs.path("kubelet"),
            f"--config={here / 'kubelet.json'}",
            f"--hostname-override={name}",
            f"--kubeconfig={keys.kubeconfig(f'kubelet-{name}')}",
            f"--node-ip={run.addresses.cluster}",
            f"--root-dir={here / 'kubelet'}",
            f"--cert-dir={here / 'certificates'}",
            f"--node-labels=topology.kubernetes.io/zone=zone-{number}",
        ],
        {"PATH": programs.search_path(programs.NODES)},
    )


def _start_proxy(control_plane: ControlPlane) -> None:
    # One is enough: the nodes share a network namespace, and so the rules.
    run, processes = control_plane.run, control_plane.run.processes()
    processes.start(
        "kube-proxy",
        [
            programs.path("kube-proxy"),
            f"--kubeconfig={control_plane.keys.kubeconfig('kube-proxy')}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={run.addresses.pods}",
            "--hostname-override=node0",
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
            "--metrics-bind-address=127.0.0.1:10249",
            f"--healthz-bind-address={run.addresses.cluster}:{_PROXY_HEALTH_PORT}",
        ],
        {"PATH": programs.search_path(programs.NODES)},
    )
