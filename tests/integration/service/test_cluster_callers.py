"""The same with tokens of a cluster, against a stand-in API server."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from memory_service.contract.config import (
    AuthMode,
    BindingsConfig,
    IdentityConfig,
    ServiceAccountRef,
    UserIssuer,
    UsersConfig,
)
from memory_service.contract.problems import UNEXPIRED_TOKEN
from tests.fakes.identity_world import (
    ADMIN_AUDIENCE,
    AUDIENCE,
    OPERATOR_AUDIENCE,
    USER_AUDIENCE,
    USER_ISSUER,
    binding,
)
from tests.fakes.kube_api import ISSUER, FakeKubeApi, SigningKey, make_key
from tests.fakes.stores import MovableClock
from tests.integration.service.conftest import Start
from tests.integration.service.harness import ALL_SCOPES, Asker, Service, problem, window_texts

AsCluster = Callable[[], Awaitable[Service]]


@pytest.fixture(autouse=True)
def _no_ca_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def kube(tmp_path: Path, clock: MovableClock) -> Iterator[FakeKubeApi]:
    """An API server that issues tokens and holds two bindings."""
    with FakeKubeApi(tmp_path, now=clock.now) as server:
        rows = {f"{name}.json": binding(name, readScopes=ALL_SCOPES) for name in ("helper", "other")}
        server.put_config_map("shop", "store-bindings-0", rows)
        yield server


@pytest.fixture
def user_key(tmp_path: Path) -> SigningKey:
    """The key of the users' issuer."""
    key = make_key("ES256")
    (tmp_path / "users.json").write_text(json.dumps({"keys": [key.public_jwk]}))
    return key


@pytest.fixture
def as_cluster(kube: FakeKubeApi, user_key: SigningKey, start: Start, tmp_path: Path) -> AsCluster:
    """Start a service that takes the cluster's tokens; it ends before the API server does."""
    identity = IdentityConfig(
        auth=AuthMode.CLUSTER,
        issuer=ISSUER,
        audience=AUDIENCE,
        admin_audience=ADMIN_AUDIENCE,
        operator_audience=OPERATOR_AUDIENCE,
        operator=ServiceAccountRef(namespace="memplane-system", name="operator"),
        admins=(ServiceAccountRef(namespace="shop", name="boss"),),
        users=UsersConfig(
            issuers=(
                UserIssuer(issuer=USER_ISSUER, audiences=(USER_AUDIENCE,), jwks_file=str(tmp_path / "users.json")),
            )
        ),
        kube_api=kube.url,
        kube_ca_file=kube.ca_file,
        kube_token_file=kube.token_file,
    )
    bindings = BindingsConfig(namespace="shop", config_map_prefix="store-bindings")

    async def started() -> Service:
        return await start(identity=identity, bindings=bindings)

    return started


def _user(key: SigningKey, clock: MovableClock, subject: str, **claims: object) -> str:
    now = int(clock.now().timestamp())
    body = {"iss": USER_ISSUER, "sub": subject, "aud": USER_AUDIENCE, "exp": now + 3600, "iat": now, **claims}
    return key.sign(body)


def _asker(service: Service, token: str, user: str | None = None) -> Asker:
    headers = {"Authorization": f"Bearer {token}"}
    return Asker(service.http, headers if user is None else {**headers, "X-Memplane-User": user})


async def test_the_token_of_a_pod_is_its_agent_and_nothing_else_is(
    as_cluster: AsCluster, kube: FakeKubeApi, user_key: SigningKey, clock: MovableClock
) -> None:
    service = await as_cluster()
    anna, ben = (_user(user_key, clock, name) for name in ("anna", "ben"))
    helper, other = (kube.token("shop", name, AUDIENCE) for name in ("helper", "other"))
    callers = {
        "helper for anna": _asker(service, helper, anna),
        "helper for ben": _asker(service, helper, ben),
        "other for anna": _asker(service, other, anna),
        "helper alone": _asker(service, helper),
    }
    for name, asker in callers.items():
        forging = Asker(service.http, {**asker.headers, "X-Memplane-Agent": "kaos://agent/shop/helper"})
        await forging.write(f"said by {name}")
    for name, asker in callers.items():
        recalled = await asker.recall("said", session_id="s1", include=["short_term"])
        assert window_texts(recalled) == [f"said by {name}"]


async def test_tokens_that_do_not_prove_a_bound_agent_are_refused(
    as_cluster: AsCluster, kube: FakeKubeApi, user_key: SigningKey, clock: MovableClock
) -> None:
    service = await as_cluster()
    good = kube.token("shop", "helper", AUDIENCE)
    body = {"query": "anything"}
    assert (await _asker(service, good).ask("POST", "/v1/recall", body)).status_code == 200
    header, claims, signature = good.split(".")
    refused = {
        "no token": "",
        "forged signature": f"{header}.{claims}.{signature[:-8]}AAAAAAAA",
        "another key": make_key("RS256").sign(
            {"iss": ISSUER, "aud": AUDIENCE, "sub": "system:serviceaccount:shop:helper"}
        ),
        "another store": kube.token("shop", "helper", "memplane:shop/elsewhere"),
        "the admin's audience": kube.token("shop", "helper", ADMIN_AUDIENCE),
        "the user's token": _user(user_key, clock, "anna"),
        "not bound": kube.token("shop", "stranger", AUDIENCE),
    }
    for name, token in refused.items():
        response = await _asker(service, token).ask("POST", "/v1/recall", body)
        assert response.status_code in (401, 403), (name, response.text)
    for name, user in {
        "expired": _user(user_key, clock, "anna", exp=int(clock.now().timestamp()) - 3600),
        "another audience": _user(user_key, clock, "anna", aud="elsewhere"),
        "another issuer": _user(user_key, clock, "anna", iss="https://elsewhere.example"),
        "the agent's own token": good,
        "plain text": "anna",
    }.items():
        response = await _asker(service, good, user).ask("POST", "/v1/recall", body)
        assert response.status_code == 401, (name, response.text)
        (error,) = response.json()["errors"]
        assert error["field"] == "X-Memplane-User"
        assert (error["expected"] == UNEXPIRED_TOKEN) is (name == "expired")


async def test_an_admin_audience_alone_opens_no_admin_route(as_cluster: AsCluster, kube: FakeKubeApi) -> None:
    service = await as_cluster()
    erase = {"subject": {"agent": "kaos://agent/shop/helper"}}
    helper = _asker(service, kube.token("shop", "helper", AUDIENCE))
    await helper.remember("still here")
    for token in (
        kube.token("shop", "helper", ADMIN_AUDIENCE),
        kube.token("shop", "boss", AUDIENCE),
        kube.token("other-namespace", "boss", ADMIN_AUDIENCE),
        kube.token("memplane-system", "operator", OPERATOR_AUDIENCE),
    ):
        for method, path, body in (("POST", "/v1/admin/erase", erase), ("GET", "/v1/admin/list", None)):
            response = await _asker(service, token).ask(method, path, body)
            assert response.status_code in (401, 403), response.text
    assert await helper.texts() == ["still here"]
    boss = _asker(service, kube.token("shop", "boss", ADMIN_AUDIENCE))
    assert [item["text"] for item in (await boss.get("/v1/admin/list"))["items"]] == ["still here"]
    operator = _asker(service, kube.token("memplane-system", "operator", OPERATOR_AUDIENCE))
    assert (await operator.get("/v1/health/report"))["ready"]
    problem(await helper.ask("GET", "/v1/health/report"), 403, "forbidden")
