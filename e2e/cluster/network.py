"""Where a cluster lives on the network, so that no packet for one of its addresses leaves the machine.

As root a cluster gets a network namespace with no default route: bridges, routes and iptables rules in it are not the
machine's, and removing the namespace removes them. The machine reaches it over one pair of virtual devices and two
routes. Every address is inside 198.18.0.0/15, the range set aside for test networks (RFC 2544), which no real network
uses. Without root the API server listens on the loopback device and services get loopback addresses.
"""

import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from .commands import run
from .errors import ProgramFailed

SLOTS = 8  # clusters at a time on one machine: how often the ranges below fit into 198.18.0.0/15


@dataclass(frozen=True)
class Addresses:
    """The addresses of the cluster in one slot."""

    link: IPv4Network  # .1 is the machine, .2 the cluster
    services: IPv4Network
    pods: IPv4Network

    @property
    def machine(self) -> IPv4Address:
        return self.link[1]

    @property
    def cluster(self) -> IPv4Address:
        return self.link[2]

    @property
    def api_service(self) -> IPv4Address:
        return self.services[1]

    @property
    def dns_service(self) -> IPv4Address:
        return self.services[10]

    def node_pods(self, node: int) -> IPv4Network:
        """The range of one real node."""
        return list(self.pods.subnets(new_prefix=24))[node]

    @property
    def fake_pods(self) -> IPv4Network:
        """The range of all fake nodes: the upper half."""
        return list(self.pods.subnets())[1]


def in_slot(slot: int) -> Addresses:
    """The addresses of one slot; no two slots share any."""
    return Addresses(
        link=IPv4Network((f"198.18.{slot}.0", 30)),
        services=IPv4Network((f"198.18.{128 + 16 * slot}.0", 20)),
        pods=IPv4Network((f"198.19.{32 * slot}.0", 19)),
    )


def on_loopback(slot: int) -> Addresses:
    """The addresses of a cluster without root: services on the loopback device, whatever the routes say."""
    return Addresses(
        link=IPv4Network((f"127.18.{slot}.0", 30)),
        services=IPv4Network((f"127.18.{128 + 8 * slot}.0", 21)),
        pods=IPv4Network((f"198.19.{32 * slot}.0", 19)),
    )


@dataclass(frozen=True)
class Namespace:
    """A network namespace with a way in for the machine and no way out."""

    name: str
    addresses: Addresses

    @property
    def path(self) -> Path:
        return Path("/run/netns") / self.name

    @property
    def _machine_device(self) -> str:
        return f"{self.name}-m"  # 15 characters at most

    @property
    def _cluster_device(self) -> str:
        return f"{self.name}-c"

    def create(self) -> None:
        """Make the namespace, its link to the machine and the routes."""
        here = self.addresses
        machine, cluster = self._machine_device, self._cluster_device
        run(["ip", "netns", "add", self.name])
        run(["ip", "link", "add", machine, "type", "veth", "peer", "name", cluster, "netns", self.name])
        run(["ip", "addr", "add", f"{here.machine}/{here.link.prefixlen}", "dev", machine])
        run(["ip", "link", "set", machine, "up"])
        inside = ["ip", "-n", self.name]
        run([*inside, "link", "set", "lo", "up"])
        run([*inside, "addr", "add", f"{here.cluster}/{here.link.prefixlen}", "dev", cluster])
        run([*inside, "link", "set", cluster, "up"])
        # A pod's own route is longer and wins; what is left ends here. Service addresses need some route, or programs
        # of the node could not send to them before kube-proxy's rules turn them into pod addresses.
        run([*inside, "route", "add", "blackhole", str(here.pods)])
        run([*inside, "route", "add", str(here.services), "dev", "lo", "src", str(here.cluster)])
        run([*self.enter(), "sysctl", "-qw", "net.ipv4.ip_forward=1"])
        for reached in (here.pods, here.services):
            run(["ip", "route", "replace", str(reached), "via", str(here.cluster)])

    def enter(self) -> list[str]:
        """The command that runs another one inside; `ip netns exec` would hide the cgroup file systems."""
        return ["nsenter", f"--net={self.path}"]

    def remove(self) -> None:
        """Remove the namespace; its devices, routes and rules go with it. Safe to repeat."""
        for command in (["ip", "link", "del", self._machine_device], ["ip", "netns", "del", self.name]):
            try:
                run(command)
            except ProgramFailed as error:
                if "Cannot find device" not in error.output and "No such file" not in error.output:
                    raise


def free_ports(count: int) -> list[int]:
    """Ports of the loopback device that nobody listens on now."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()
