"""etcd, the API server, the controller manager and the scheduler of one cluster."""

import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass

from . import audit, keys, programs
from .keys import Keys
from .kubectl import Kubectl
from .network import free_ports
from .processes import Processes
from .runs import Run

API_SERVER = "kube-apiserver"
_SERVICE_NAMES = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
]


@dataclass(frozen=True)
class ControlPlane:
    """A running control plane."""

    run: Run
    keys: Keys
    server: str

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self.keys.kubeconfig(keys.ADMIN))

    def until_api_ready(self, seconds: float = 60) -> None:
        """Wait until the API server says it is ready."""
        context = ssl.create_default_context(cafile=str(self.keys.authority))
        token = json.loads(self.keys.kubeconfig(keys.ADMIN).read_text())["users"][0]["user"]["token"]
        request = urllib.request.Request(f"{self.server}/readyz", headers={"Authorization": f"Bearer {token}"})
        direct = urllib.request.ProxyHandler({})
        opener = urllib.request.build_opener(direct, urllib.request.HTTPSHandler(context=context))

        def is_ready() -> bool:
            try:
                with opener.open(request, timeout=5) as answer:
                    return bool(answer.status == 200)
            except (OSError, urllib.error.URLError):
                return False

        self.run.processes().until_ready(API_SERVER, "the API server", is_ready, seconds)


def start(run: Run) -> ControlPlane:
    """Start the control plane and wait until it serves and new namespaces get their service account."""
    if run.is_rootless:
        bind, (api_port, client_port, peer_port) = "127.0.0.1", free_ports(3)
        advertised = "127.0.0.1"
    else:
        bind, (api_port, client_port, peer_port) = "0.0.0.0", (6443, 2379, 2380)
        advertised = str(run.addresses.cluster)
    server = f"https://{advertised}:{api_port}"
    made = keys.make(run.keys, server, ["127.0.0.1", advertised, str(run.addresses.api_service)], _SERVICE_NAMES)
    control_plane = ControlPlane(run, made, server)
    started = run.processes()
    _start_etcd(run, started, client_port, peer_port)
    etcd = f"http://127.0.0.1:{client_port}"
    _start_api_server(run, started, made, bind=bind, advertised=advertised, port=api_port, etcd=etcd)
    control_plane.until_api_ready()
    _start_controllers(run, started, made)
    kubectl = control_plane.kubectl
    started.until_ready(
        "kube-controller-manager",
        "the default service account",
        lambda: kubectl.find("serviceaccount", "default") is not None,
    )
    return control_plane


def _start_etcd(run: Run, started: Processes, client_port: int, peer_port: int) -> None:
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    started.start(
        "etcd",
        [
            programs.path("etcd"),
            "--name=one",
            f"--data-dir={run.folder / 'etcd'}",
            "--log-level=warn",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=one={peer}",
        ],
    )


def _start_api_server(
    run: Run, started: Processes, made: Keys, *, bind: str, advertised: str, port: int, etcd: str
) -> None:
    policy = run.folder / "audit-policy.json"
    policy.write_text(json.dumps(audit.POLICY))
    # Without root the server is on loopback, which an EndpointSlice may not name.
    endpoint = ["--endpoint-reconciler-type=none"] if run.is_rootless else [f"--advertise-address={advertised}"]
    started.start(
        API_SERVER,
        [
            programs.path(API_SERVER),
            f"--etcd-servers={etcd}",
            f"--bind-address={bind}",
            f"--secure-port={port}",
            *endpoint,
            f"--service-cluster-ip-range={run.addresses.services}",
            f"--tls-cert-file={made.certificate('server')}",
            f"--tls-private-key-file={made.key('server')}",
            f"--token-auth-file={made.tokens}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            # On in OpenShift; an operator that may own what it makes here may do so there.
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={made.key('accounts')}",
            f"--service-account-key-file={made.account_public_key}",
            # By name the server would ask DNS for a node that only it knows.
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={made.certificate('kubelet-client')}",
            f"--kubelet-client-key={made.key('kubelet-client')}",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={run.audit_log}",
            "--audit-log-maxsize=2000",
        ],
    )


def _start_controllers(run: Run, started: Processes, made: Keys) -> None:
    quick = ["--leader-elect=false", "--secure-port=0", "--kube-api-qps=200", "--kube-api-burst=400"]
    for name in ("kube-controller-manager", "kube-scheduler"):
        account = [f"--kubeconfig={made.kubeconfig(name)}"]
        if name == "kube-controller-manager":
            account += [f"--service-account-private-key-file={made.key('accounts')}"]
            account += [f"--root-ca-file={made.authority}"]
        started.start(name, [programs.path(name), *account, *quick])
