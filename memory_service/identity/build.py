"""From the configuration to the Authenticator. A mode's libraries are loaded by that mode alone."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from memory_service.contract.config import AuthMode, ServiceConfig
from memory_service.errors import Misconfigured
from memory_service.identity.authenticator import Authenticator, Monotonic, Now
from memory_service.identity.http_rules import HttpRules

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
            from memory_service.identity.local import LocalAuthenticator

            return LocalAuthenticator(
                host=config.server.host, allow_unauthenticated=identity.allow_unauthenticated, now=now
            )
        case AuthMode.STATIC:
            if identity.tokens_file is None:
                raise Misconfigured(
                    "auth mode `static` needs a tokens file; give --tokens FILE or identity.tokensFile",
                    reason="SecretMissing",
                )
            from memory_service.identity.static import StaticAuthenticator

            return StaticAuthenticator(identity.tokens_file, now=now, monotonic=monotonic)
        case AuthMode.CLUSTER:
            from memory_service.identity.cluster import ClusterAuthenticator
            from memory_service.identity.cluster_settings import cluster_settings

            settings = cluster_settings(config, os.environ if environment is None else environment, pod_folder)
            return ClusterAuthenticator(settings, now=now, monotonic=monotonic)


def cluster_mark(config: ServiceConfig, *, pod_folder: str = POD_FOLDER) -> str:
    """Return what the cluster of this pod alone has, a hash of its CA; empty outside of one. Clusters that share a CA
    have one mark.

    A renewed CA is another mark: what was marked before is known to nobody then, and never somebody else's.
    """
    try:
        authority = Path(config.identity.kube_ca_file or Path(pod_folder, "ca.crt")).read_bytes()
    except OSError:
        return ""
    return hashlib.sha256(authority.strip()).hexdigest()[:32]


def http_rules(config: ServiceConfig) -> HttpRules:
    """Return the rules on Host, Origin and content type that hold for this configuration."""
    identity = config.identity
    return HttpRules(identity.auth, identity.allow_unauthenticated, identity.allowed_origins)
