"""What is configured, what a pod finds by itself, and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from memory_service.contract.config import (
    AuthMode,
    BindingsConfig,
    IdentityConfig,
    ServerConfig,
    ServiceConfig,
    UsersConfig,
)
from memory_service.errors import Misconfigured
from memory_service.identity.build import cluster_mark, make_authenticator
from memory_service.identity.cluster import ClusterAuthenticator
from memory_service.identity.cluster_settings import cluster_settings
from memory_service.identity.local import LocalAuthenticator
from memory_service.identity.static import StaticAuthenticator
from tests.fakes.kube_api import make_key

AUDIENCE = "memplane:shop/store"
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def config(auth: AuthMode, *, host: str = "127.0.0.1", directory: str | None = None, **identity: Any) -> ServiceConfig:
    return ServiceConfig(
        identity=IdentityConfig(auth=auth, **identity),
        server=ServerConfig(host=host),
        bindings=BindingsConfig(config_map_prefix="store-bindings", directory=directory),
    )


@pytest.fixture
def pod_folder(tmp_path: Path) -> str:
    (tmp_path / "token").write_text(make_key().sign({"iss": "https://cluster.example", "sub": "x"}) + "\n")
    (tmp_path / "ca.crt").write_text("ca")
    (tmp_path / "namespace").write_text("shop")
    return str(tmp_path)


def test_each_mode_has_its_authenticator(tmp_path: Path) -> None:
    assert isinstance(make_authenticator(config(AuthMode.NONE)), LocalAuthenticator)
    assert isinstance(make_authenticator(config(AuthMode.STATIC, tokens_file="t.yaml")), StaticAuthenticator)
    cluster = config(AuthMode.CLUSTER, audience=AUDIENCE, issuer="i", jwks="k.json", directory=str(tmp_path))
    made = make_authenticator(cluster, environment={}, pod_folder=str(tmp_path / "none"))
    assert isinstance(made, ClusterAuthenticator)


def test_a_pod_finds_its_cluster_by_itself(pod_folder: str) -> None:
    settings = cluster_settings(config(AuthMode.CLUSTER, audience=AUDIENCE), POD, pod_folder)
    assert settings.issuer == "https://cluster.example"
    assert settings.kube_api == "https://10.0.0.1:443"
    assert settings.kube_token_file == f"{pod_folder}/token"
    assert settings.kube_ca_file == f"{pod_folder}/ca.crt"
    assert (settings.bindings_namespace, settings.bindings_prefix) == ("shop", "store-bindings")
    assert settings.jwks is None


def test_a_cluster_is_told_by_its_ca_and_none_outside_of_one(pod_folder: str, tmp_path: Path) -> None:
    (tmp_path / "other.crt").write_text("another ca")
    (tmp_path / "same.crt").write_text("ca\n")

    def mark(auth: AuthMode = AuthMode.NONE, folder: str = pod_folder, **identity: Any) -> str:
        return cluster_mark(config(auth, **identity), pod_folder=folder)

    assert len({mark(), mark(AuthMode.CLUSTER), mark(kube_ca_file=f"{tmp_path}/same.crt")}) == 1
    assert mark() != mark(kube_ca_file=f"{tmp_path}/other.crt") != ""
    assert mark(folder=f"{tmp_path}/none") == mark(kube_ca_file=f"{tmp_path}/none.crt") == ""


def test_an_address_of_the_newer_kind_is_put_in_brackets(pod_folder: str) -> None:
    environment = {**POD, "KUBERNETES_SERVICE_HOST": "fd00::1"}
    settings = cluster_settings(config(AuthMode.CLUSTER, audience=AUDIENCE), environment, pod_folder)
    assert settings.kube_api == "https://[fd00::1]:443"


def test_what_is_configured_holds_over_what_is_found(pod_folder: str) -> None:
    given = config(AuthMode.CLUSTER, audience=AUDIENCE, issuer="https://mine.example", kube_api="https://api.example")
    settings = cluster_settings(given, POD, pod_folder)
    assert (settings.issuer, settings.kube_api) == ("https://mine.example", "https://api.example")


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        (config(AuthMode.NONE, host="0.0.0.0"), "allowUnauthenticated"),
        (config(AuthMode.STATIC), "tokensFile"),
        (config(AuthMode.CLUSTER), "identity.audience"),
        (config(AuthMode.CLUSTER, audience=AUDIENCE), "identity.issuer"),
        (config(AuthMode.CLUSTER, audience=AUDIENCE, issuer="i"), "identity.jwks"),
        (config(AuthMode.CLUSTER, audience=AUDIENCE, issuer="i", jwks="k.json"), "--bindings"),
        (
            config(AuthMode.CLUSTER, audience=AUDIENCE, admin_audience=AUDIENCE, issuer="i", jwks="k", directory="d"),
            "two roles",
        ),
        (
            config(
                AuthMode.CLUSTER,
                audience=AUDIENCE,
                issuer="i",
                jwks="k",
                directory="d",
                users={"issuers": [{"issuer": "a#b", "audiences": ["x"], "jwksFile": "k"}]},
            ),
            "identity.users.issuers",
        ),
    ],
)
def test_what_is_missing_is_named(given: ServiceConfig, setting: str, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=setting):
        make_authenticator(given, environment={}, pod_folder=str(tmp_path))


@pytest.mark.parametrize("content", [None, "", "half of a certif"], ids=["missing", "empty", "broken"])
@pytest.mark.parametrize("setting", ["identity.kubeCaFile", "jwksCaFile of 'https://id.example'"])
def test_a_ca_file_that_cannot_be_used_is_named_by_its_setting(
    setting: str, content: str | None, tmp_path: Path
) -> None:
    ca_file = tmp_path / "ca.crt"
    if content is not None:
        ca_file.write_text(content)
    issuer = {"issuer": "https://id.example", "audiences": ["x"], "jwksUrl": "https://id.example/keys"}
    identity: dict[str, Any] = {"kube_api": "https://api.example", "kube_ca_file": str(ca_file)}
    if setting.startswith("jwks"):
        identity = {"users": {"issuers": [{**issuer, "jwksCaFile": str(ca_file)}]}, "jwks": "k.json"}
    given = config(AuthMode.CLUSTER, audience=AUDIENCE, issuer="i", directory=str(tmp_path), **identity)
    with pytest.raises(Misconfigured, match=setting) as refused:
        make_authenticator(given, environment={}, pod_folder=str(tmp_path / "none"))
    assert str(ca_file) in refused.value.detail


@pytest.mark.parametrize("source", [{"jwksFile": "keys.json"}, {"jwksUrl": "http://id.example/keys"}])
def test_an_issuers_ca_without_a_certificate_to_check_is_refused(source: dict[str, str]) -> None:
    issuer = {"issuer": "i", "audiences": ["x"], "jwksCaFile": "ca.crt", **source}
    with pytest.raises(ValidationError, match="jwksCaFile"):
        UsersConfig.model_validate({"issuers": [issuer]})
