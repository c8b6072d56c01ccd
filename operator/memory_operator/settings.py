"""What an operator process is told when it starts; read from `MEMPLANE_OPERATOR_*` variables once, in `__main__`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from memory_operator.errors import MemoryOperatorError

_PREFIX: Final = "MEMPLANE_OPERATOR_"


class InvalidSettings(MemoryOperatorError):
    """A variable that cannot be understood."""


@dataclass(frozen=True)
class OperatorSettings:
    """The operator's settings; each is the variable `MEMPLANE_OPERATOR_<NAME IN CAPITALS>`."""

    service_image: str = "ghcr.io/memplane/memplane:0.1.0"
    """The memory service's image for stores that name none."""
    image_pull_policy: str = "IfNotPresent"
    namespace: str = "memplane-system"
    """Where the operator runs: its Lease is there, and the stores' NetworkPolicies admit it from there."""
    pod_name: str = "memplane-operator"
    """Who holds the Lease."""
    service_account: str = "memplane-operator"
    """Whose token may read health reports."""
    watch_namespaces: tuple[str, ...] = ()
    """The namespaces to serve, separated by commas; none: all of them."""
    cluster_domain: str = "cluster.local"
    token_file: str = "/var/run/secrets/memplane/token"
    """The projected token with the audience `memplane:operator`."""
    token_review_role: str = ""
    """The ClusterRole that may create TokenReviews; none: no ClusterRoleBinding is kept."""
    token_review_binding: str = "memplane-token-review"
    """The name of the ClusterRoleBinding that lists the stores' ServiceAccounts."""
    network_policies: bool = True
    service_monitors: bool = False
    """Whether stores get a ServiceMonitor; needs the Prometheus operator's kinds."""
    service_monitor_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels by which a Prometheus finds the stores' ServiceMonitors, `key=value` separated by commas."""
    metrics_namespaces: tuple[str, ...] = ()
    """Namespaces whose pods may reach the stores' metrics port."""
    lease_name: str = "memplane-operator"
    lease_seconds: float = 15
    renew_deadline_seconds: float = 10
    retry_seconds: float = 2
    """How often the leader renews the Lease."""
    standby_seconds: float = 1
    """How often the others look whether it is free."""
    workers: int = 8
    requests_per_second: float = 400
    request_burst: int = 800
    request_timeout_seconds: float = 30
    resync_seconds: float = 300
    watch_silence_seconds: float = 70
    """A watch that says nothing for longer is opened anew; the API server says something every minute."""
    rollouts_at_once: int = 10
    """Stores that are rolled out at a time for another reason than a change of their own spec; 0: all of them."""
    refused_seconds: float = 30
    """When to try again what the API server refused: a permission or a quota may have come."""
    health_seconds: float = 30
    unready_health_seconds: float = 5
    touch_seconds: float = 5
    """How often the pods of a store with agents are touched between two reports."""
    health_timeout_seconds: float = 3
    health_concurrency: int = 32
    health_address: str = ""
    """`host:port` to ask in place of every pod; for scale runs that answer from a stub."""
    counters_seconds: float = 30
    hysteresis_seconds: float = 5
    probe_seconds: float = 30
    """How often a ModelAPI is probed; a third of it while it does not answer."""
    bind_address: str = "0.0.0.0"
    port: int = 8080
    """Serves /livez, /readyz and /metrics."""
    log_level: str = "INFO"
    pod_labels: Mapping[str, str] = field(
        default_factory=lambda: {
            "app.kubernetes.io/name": "memplane",
            "app.kubernetes.io/component": "operator",
        }
    )
    """The operator's own pod labels, `key=value` separated by commas: NetworkPolicies admit them."""

    @property
    def is_cluster_wide(self) -> bool:
        """Whether all namespaces are served."""
        return not self.watch_namespaces


def _boolean(text: str) -> bool:
    if text.lower() in {"1", "true", "yes", "on"}:
        return True
    if text.lower() in {"0", "false", "no", "off"}:
        return False
    raise ValueError("expected true or false")


def _words(text: str) -> tuple[str, ...]:
    return tuple(sorted({word.strip() for word in text.split(",") if word.strip()}))


def _labels(text: str) -> dict[str, str]:
    pairs = [word.partition("=") for word in _words(text)]
    if any(not separator for _, separator, _ in pairs):
        raise ValueError("expected key=value, separated by commas")
    return {key: value for key, _, value in pairs}


_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    "str": str,
    "bool": _boolean,
    "int": int,
    "float": float,
    "tuple[str, ...]": _words,
    "Mapping[str, str]": _labels,
}


def from_environment(environment: Mapping[str, str]) -> OperatorSettings:
    """Return the settings that these variables give; one that is not set keeps its default.

    Raises:
        InvalidSettings: a variable has a value that cannot be understood, or an unknown name.
    """
    known = {f"{_PREFIX}{item.name.upper()}": item for item in fields(OperatorSettings)}
    values: dict[str, object] = {}
    for variable, text in environment.items():
        if not variable.startswith(_PREFIX):
            continue
        if variable not in known:
            raise InvalidSettings(f"{variable} is not a setting of the operator; known are {', '.join(sorted(known))}")
        item = known[variable]
        try:
            values[item.name] = _PARSERS[str(item.type)](text)
        except ValueError as error:
            raise InvalidSettings(f"{variable}: {error}") from error
    return OperatorSettings(**values)  # type: ignore[arg-type]
