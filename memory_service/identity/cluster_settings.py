"""What the mode `cluster` works with: what is configured, and what a pod finds by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from memory_service.contract.config import Revocation, ServiceAccountRef, ServiceConfig, UserIssuer
from memory_service.errors import Misconfigured, Unauthenticated
from memory_service.identity.tokens import unverified_issuer


@dataclass(frozen=True)
class ClusterSettings:
    """All that the mode needs, found or configured. `jwks` is a URL or a file; None asks the API server."""

    issuer: str
    audience: str
    admin_audience: str | None
    operator_audience: str
    operator: ServiceAccountRef | None
    admins: tuple[ServiceAccountRef, ...]
    user_issuers: tuple[UserIssuer, ...]
    revocation: Revocation
    jwks: str | None
    kube_api: str | None
    kube_ca_file: str | None
    kube_token_file: str | None
    bindings_namespace: str | None
    bindings_prefix: str | None
    bindings_directory: str | None
    timeout_seconds: float = 3.0
    watch_seconds: float = 30.0


def cluster_settings(config: ServiceConfig, environment: Mapping[str, str], pod_folder: str) -> ClusterSettings:
    """Return the settings of the mode `cluster`, with what a pod knows where nothing is configured.

    Raises:
        Misconfigured: something is neither configured nor to be found.
    """
    identity = config.identity
    folder = Path(pod_folder)
    token_file = identity.kube_token_file or _file(folder / "token")
    if identity.audience is None:
        raise Misconfigured(
            "auth mode `cluster` needs identity.audience: memplane:<namespace>/<store>", reason="AudienceInvalid"
        )
    return ClusterSettings(
        issuer=identity.issuer or _own_issuer(token_file),
        audience=identity.audience,
        admin_audience=identity.admin_audience,
        operator_audience=identity.operator_audience,
        operator=identity.operator,
        admins=identity.admins,
        user_issuers=identity.users.issuers,
        revocation=identity.revocation,
        jwks=identity.jwks,
        kube_api=identity.kube_api or _in_pod(environment),
        kube_ca_file=identity.kube_ca_file or _file(folder / "ca.crt"),
        kube_token_file=token_file,
        bindings_namespace=config.bindings.namespace or _text(folder / "namespace"),
        bindings_prefix=config.bindings.config_map_prefix,
        bindings_directory=config.bindings.directory,
    )


def _own_issuer(token_file: str | None) -> str:
    """Return the issuer of the service's own token: the cluster that it runs in."""
    token = _text(Path(token_file)) if token_file else None
    if token is not None:
        try:
            return unverified_issuer(token)
        except Unauthenticated:
            pass
    raise Misconfigured(
        "auth mode `cluster` needs the cluster's issuer; outside of a pod give --issuer or identity.issuer",
        reason="IssuerInvalid",
    )


def _in_pod(environment: Mapping[str, str]) -> str | None:
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        return None
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _file(path: Path) -> str | None:
    return str(path) if path.is_file() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError):
        return None
