"""What a test sees of a cluster: `Cluster` for any one, `LocalCluster` for one that this package started."""

import contextlib
import re
import secrets
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from . import images, keys, nodes, runs, waiting
from .audit import AuditLog
from .commands import cluster_environment
from .control_plane import API_SERVER, ControlPlane
from .errors import ProgramFailed
from .kubectl import Kubectl, Manifest, helm
from .processes import Processes, end
from .progress import step
from .tiers import Tier

T = TypeVar("T")


class Cluster:
    """A Kubernetes to test against."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.kubectl = Kubectl(kubeconfig)
        self._made = Path(tempfile.mkdtemp(prefix="memplane-"))
        # It holds tokens. Not a TemporaryDirectory, which warns when nobody has closed it.
        weakref.finalize(self, shutil.rmtree, self._made, ignore_errors=True)

    def helm(self, *arguments: str, timeout_seconds: float = 300) -> str:
        """Run helm and return what it printed."""
        return helm(self.kubeconfig, arguments, timeout_seconds)

    @contextlib.contextmanager
    def new_namespace(self, prefix: str = "test") -> "Iterator[Namespace]":
        """A namespace of its own, deleted (without waiting) at the end."""
        name = f"{prefix[:40].strip('-')}-{secrets.token_hex(3)}"
        self.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.wait_until(
            f"the service account of {name}",
            lambda: self.kubectl.in_namespace(name).find("serviceaccount", "default"),
        )
        try:
            yield Namespace(name, self, self.kubectl.in_namespace(name))
        finally:
            self.kubectl.delete("namespace", name, wait=False)

    def wait_until(
        self,
        what: str,
        check: Callable[[], T | None],
        *,
        seconds: float = 30,
        ignoring: tuple[type[Exception], ...] = (),
        explain: Callable[[], str] | None = None,
    ) -> T:
        """Wait for a condition of any kind, with a limit; returns its first true value."""
        return waiting.until(what, check, seconds=seconds, ignoring=ignoring, explain=explain)

    def token(self, namespace: str, service_account: str, *, audience: str | None = None, seconds: int = 3600) -> str:
        """A token of a service account, for the API server or for another audience."""
        to = ["--audience", audience] if audience else []
        kubectl = self.kubectl.in_namespace(namespace)
        return kubectl("create", "token", service_account, f"--duration={seconds}s", *to).strip()

    def kubeconfig_of(self, namespace: str, service_account: str) -> Path:
        """A kubeconfig that acts as a service account: how a test runs the operator with its real permissions."""
        cluster = self._current_cluster()
        authority = self._made / "authority.crt"
        authority.write_bytes(keys.authority_in(cluster))
        return keys.write_kubeconfig(
            self._made / f"{namespace}-{service_account}.kubeconfig",
            cluster["server"],
            authority,
            self.token(namespace, service_account),
            service_account,
            namespace=namespace,
        )

    def _current_cluster(self) -> dict[str, Any]:
        return keys.only_cluster(self.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))

    @contextlib.contextmanager
    def forward(self, namespace: str, target: str, port: int) -> Iterator[str]:
        """A URL on this machine that reaches a port of `service/x` or `pod/x`; no network policy is in its way.

        The traffic goes to one pod, chosen at the start, and ends with that pod.
        """
        command = self.kubectl.in_namespace(namespace).command(
            "port-forward", "--pod-running-timeout=30s", "--address=127.0.0.1", target, f":{port}"
        )
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=cluster_environment()
            )
            try:
                local = waiting.until(f"{target}:{port}", lambda: _port(process, output), seconds=40)
                yield f"http://127.0.0.1:{local}"
            finally:
                process.terminate()
                process.wait(10)


def _port(process: "subprocess.Popen[bytes]", output: IO[str]) -> int | None:
    output.seek(0)
    said = output.read()
    if found := re.search(r"Forwarding from 127\.0\.0\.1:(\d+)", said):
        return int(found.group(1))
    if process.poll() is not None:
        raise ProgramFailed("kubectl port-forward", said, process.returncode)
    return None


@dataclass(frozen=True)
class Namespace:
    """A test's own namespace: `kubectl` is bound to it."""

    name: str
    cluster: Cluster
    kubectl: Kubectl

    def apply(self, *manifests: Manifest | str | Path) -> None:
        """Apply objects into this namespace."""
        self.kubectl.apply(*manifests)

    @contextlib.contextmanager
    def forward(self, target: str, port: int) -> Iterator[str]:
        """A URL that reaches a port of `service/x` or `pod/x` in this namespace."""
        with self.cluster.forward(self.name, target, port) as url:
            yield url

    def token(self, service_account: str = "default", *, audience: str | None = None) -> str:
        return self.cluster.token(self.name, service_account, audience=audience)

    def describe(self) -> str:
        """What a person looks at first when a test failed here."""
        parts = [
            self.kubectl("get", "all,pvc,networkpolicies,memplane", "-o", "wide", "--ignore-not-found")
            if self._has_memplane()
            else self.kubectl("get", "all,pvc,networkpolicies", "-o", "wide"),
            self.kubectl("get", "events", "--sort-by=.lastTimestamp"),
        ]
        for pod in self.kubectl.list("pods"):
            name = pod["metadata"]["name"]
            try:
                log = self.kubectl("logs", name, "--all-containers", "--prefix", "--tail=30")
            except ProgramFailed as error:
                log = error.output
            parts.append(f"--- log of {name}\n{log}")
        return "\n".join(parts)

    def _has_memplane(self) -> bool:
        return "memplane" in self.kubectl("api-resources", "--categories=memplane", "-o", "name")


class LocalCluster(Cluster):
    """A cluster this package started, with what only its owner may do: stop parts of it, read its audit log."""

    def __init__(self, claim: runs.Claim, control_plane: ControlPlane, tier: Tier) -> None:
        super().__init__(control_plane.keys.kubeconfig(keys.ADMIN))
        self.tier = tier
        self.run = claim.run
        self.audit = AuditLog(claim.run.audit_log)
        self._claim = claim
        self._control_plane = control_plane

    @property
    def server(self) -> str:
        """The API server's URL."""
        return self._control_plane.server

    @property
    def authority(self) -> Path:
        """The certificate that the API server's is signed by."""
        return self._control_plane.keys.authority

    @property
    def nodes(self) -> list[str]:
        """The real nodes: node0 and node1, or none."""
        return self.run.nodes

    @property
    def components(self) -> list[str]:
        """The names `stop`, `kill` and `start` know: kube-apiserver, kubelet-node1, containerd-node0, kwok, ..."""
        return self._processes().names()

    def _processes(self) -> Processes:
        return self.run.processes()

    def log(self, component: str) -> str:
        """The end of a component's log."""
        return self._processes().log_end(component, lines=200)

    def stop(self, component: str, grace_seconds: float = 5) -> None:
        """End a component; `start` brings it back."""
        self._processes().stop([component], grace_seconds)

    def kill(self, component: str) -> None:
        """End a component as a crash would; nothing starts it again but `start`."""
        self._processes().kill(component)

    def start(self, component: str) -> None:
        """Start a component that was stopped or killed; the API server is ready when this returns."""
        self._processes().start_again(component)
        if component == API_SERVER:
            self._control_plane.until_api_ready()

    @contextlib.contextmanager
    def without(self, component: str) -> Iterator[None]:
        """A time in which a component is dead."""
        self.kill(component)
        try:
            yield
        finally:
            self.start(component)

    def restart_api_server(self) -> None:
        """Restart the API server; every watch and connection breaks."""
        self.stop(API_SERVER, grace_seconds=1)
        self.start(API_SERVER)

    @contextlib.contextmanager
    def drained(self, node: str, *, seconds: float = 60) -> Iterator[None]:
        """A time in which a node is drained, through the eviction API, as `kubectl drain` does it."""
        try:
            self.drain(node, seconds=seconds)
            yield
        finally:
            self.kubectl("uncordon", node)

    def drain(self, node: str, *, seconds: float = 60) -> str:
        """Drain a node and return what kubectl said; `kubectl("uncordon", node)` undoes it."""
        flags = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", f"--timeout={seconds:g}s"]
        return self.kubectl("drain", node, *flags, timeout_seconds=seconds + 10)

    def kill_pod_processes(self, pod: dict[str, Any]) -> None:
        """Kill what runs in a pod's containers, as the kernel would: the kubelet starts them again."""
        uid = pod["metadata"]["uid"]
        end(self.run.groups.pids_of_pod(uid), grace_seconds=0)

    def load(self, image: images.Image) -> str:
        """Make an image available on every real node and return its name; pods say imagePullPolicy Never."""
        with ThreadPoolExecutor() as at_once:
            list(at_once.map(lambda node: self._load(node, image), self.nodes))
        return image.reference

    def _load(self, node: str, image: images.Image) -> None:
        there = nodes.images(self.run, node)
        if image.reference in there:
            return
        with step(f"loading {image.reference} into {node}"):
            nodes.import_image(self.run, node, image)
        for old in there:
            if images.is_forgotten(old):
                nodes.forget_image(self.run, node, old)

    def take_down(self) -> None:
        """End everything. Safe to repeat."""
        self._claim.release()
