"""Network policies, enforced by kube-router: its firewall only, once a node."""

from . import programs
from .control_plane import ControlPlane


def start(control_plane: ControlPlane) -> None:
    """Start the firewall of every node."""
    run = control_plane.run
    off = ["--run-router=false", "--run-service-proxy=false", "--run-loadbalancer=false"]
    for name in run.nodes:
        run.processes().start(
            f"kube-router-{name}",
            [
                programs.path("kube-router"),
                "--run-firewall=true",
                *off,
                f"--hostname-override={name}",
                f"--kubeconfig={control_plane.keys.kubeconfig('kube-router')}",
                "--iptables-sync-period=10s",
                f"--service-cluster-ip-range={run.addresses.services}",
                "--health-port=0",
                "--metrics-port=0",
            ],
            {"PATH": programs.search_path(programs.NODES)},
        )
