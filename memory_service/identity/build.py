"""From the configuration to the Authenticator; inside a pod most of it is found by itself."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from memory_service.contract.config import AuthMode, ServiceConfig
from memory_service.errors import Misconfigured, Unauthenticated
from memory_service.identity.authenticator import Authenticator, Monotonic, Now
from memory_service.identity.cluster import ClusterAuthenticator, ClusterSettings
from memory_service.identity.http_rules import HttpRules
from memory_service.identity.local import LocalAuthenticator
from memory_service.identity.static import StaticAuthenticator
from memory_service.identity.tokens import unverified_issuer

POD_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


def wall_clock() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


def make_authenticator(
    config: ServiceConfig,
    *,
    now: Now = wall_clock,
    monotonic: Monotonic = time.monotonic,
    environment: Mapping[str, str] | None = None,
    pod_folder: str = POD_FOLDER,
) -> Authenticator:
    """Return the authenticator of the configured mode; enter it before use.

    Raises:
        Misconfigured: something is missing or unsafe; the sentence names the setting.
    """
    identity = config.identity
    match identity.auth:
        case AuthMode.NONE:
            return LocalAuthenticator(
                host=config.server.host, allow_unauthenticated=identity.allow_unauthenticated, now=now
            )
        case AuthMode.STATIC:
            if identity.tokens_file is None:
                raise Misconfigured(
                    "auth mode `static` needs a tokens file; give --tokens FILE or identity.tokensFile",
                    reason="SecretMissing",
                )
            return StaticAuthenticator(identity.tokens_file, now=now, monotonic=monotonic)
        case AuthMode.CLUSTER:
            settings = cluster_settings(config, os.environ if environment is None else environment, pod_folder)
            return ClusterAuthenticator(settings, now=now, monotonic=monotonic)


def http_rules(config: ServiceConfig) -> HttpRules:
    """Return the rules on Host, Origin and content type that hold for this configuration."""
    identity = config.identity
    return HttpRules(identity.auth, identity.allow_unauthenticated, identity.allowed_origins)


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
