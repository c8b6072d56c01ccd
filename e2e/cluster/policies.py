"""Network policies, enforced by kube-router: its firewall only.

One for both nodes: it looks after the pods whose host address is its node's, and here the nodes share that address and
the network namespace in which the rules are. Two would remove each other's chains.
"""

from . import programs
from .commands import run as run_command
from .control_plane import ControlPlane

_NAME = "kube-router"


def start(control_plane: ControlPlane) -> None:
    """Start the firewall; `until_ready` waits for it."""
    run = control_plane.run
    run.processes().start(
        _NAME,
        [
            programs.path(_NAME),
            "--run-firewall=true",
            "--run-router=false",
            "--run-service-proxy=false",
            "--run-loadbalancer=false",
            "--hostname-override=node0",
            f"--kubeconfig={control_plane.keys.kubeconfig('kube-router')}",
            f"--service-cluster-ip-range={run.addresses.services}",
            "--iptables-sync-period=10s",
            "--health-port=0",
            "--metrics-port=0",
        ],
        {"PATH": programs.search_path(programs.NODES)},
    )


def until_ready(control_plane: ControlPlane) -> None:
    """Wait until forwarded packets pass the firewall's chain."""
    run = control_plane.run
    listing = [*run.namespace.enter(), "iptables", "-S", "FORWARD"]
    run.processes().until_ready(_NAME, "the firewall", lambda: "KUBE-ROUTER-FORWARD" in run_command(listing))
