"""A stand-in API server, one clock that tests move, and an authenticator in front of both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from memory_service.contract.config import Revocation, ServiceAccountRef, UserIssuer
from memory_service.domain.callers import Caller, CallerKind
from memory_service.identity.cluster import ClusterAuthenticator
from memory_service.identity.cluster_settings import ClusterSettings
from tests.fakes.kube_api import ISSUER, FakeKubeApi, SigningKey, make_key

AUDIENCE = "memplane:shop/store"
ADMIN_AUDIENCE = "memplane-admin:shop/store"
OPERATOR_AUDIENCE = "memplane:operator"
USER_ISSUER = "https://id.example"
USER_AUDIENCE = "shop"
ROLES = {
    "agent": (CallerKind.AGENT,),
    "admin": (CallerKind.ADMIN,),
    "health": (CallerKind.OPERATOR, CallerKind.ADMIN),
}


class Clock:
    """Wall clock and age counter that move only when told to."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
        self.seconds = 1_000.0

    def now(self) -> datetime:
        return self.moment

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)
        self.seconds += seconds


def binding(name: str = "helper", **changed: Any) -> str:
    """Return a row as the operator writes it."""
    row = {
        "agent": f"kaos://agent/shop/{name}",
        "namespace": "shop",
        "serviceAccount": name,
        "createdAt": "2026-01-01T00:00:00Z",
        **changed,
    }
    return json.dumps(row)


def bearer(token: str, user: str | None = None) -> list[tuple[str, str]]:
    headers = [("authorization", f"Bearer {token}")]
    return headers if user is None else [*headers, ("x-memplane-user", user)]


async def eventually(condition: Callable[[], Awaitable[bool]], limit_seconds: float = 5) -> None:
    """Wait for a condition, at most as long as a change may take to count."""
    async with asyncio.timeout(limit_seconds):
        while not await condition():  # noqa: ASYNC110 - many conditions are another process's
            await asyncio.sleep(0.02)


@dataclass
class World:
    """Everything that a test moves, and the way to ask who a token is."""

    kube: FakeKubeApi
    clock: Clock
    settings: ClusterSettings
    user_key: SigningKey
    folder: Path
    opened: list[ClusterAuthenticator] = field(default_factory=list)

    def publish_user_keys(self, *keys: SigningKey) -> None:
        (self.folder / "users.json").write_text(json.dumps({"keys": [key.public_jwk for key in keys]}))

    def user_token(self, subject: object = "anna", **claims: Any) -> str:
        now = int(self.clock.now().timestamp())
        body = {"iss": USER_ISSUER, "sub": subject, "aud": USER_AUDIENCE, "exp": now + 3600, "iat": now, **claims}
        return self.user_key.sign({name: value for name, value in body.items() if value is not None})

    def token(self, service_account: str = "helper", audience: str | list[str] = AUDIENCE, **more: Any) -> str:
        return self.kube.token("shop", service_account, audience, **more)

    @asynccontextmanager
    async def authenticator(self, **changed: Any) -> AsyncIterator[ClusterAuthenticator]:
        authenticator = ClusterAuthenticator(
            replace(self.settings, **changed), now=self.clock.now, monotonic=self.clock.monotonic
        )
        async with authenticator:
            yield authenticator
            await self._watches_stand()

    async def _watches_stand(self) -> None:
        """Give both watches a moment to stand: one that is cancelled in its TLS handshake leaves its socket to the GC.

        A test that refuses watches goes on after the moment.
        """
        for _ in range(25):
            if self.kube.open_watches >= 2:
                return
            await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def _no_ca_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kube(tmp_path: Path, clock: Clock) -> Iterator[FakeKubeApi]:
    with FakeKubeApi(tmp_path, now=clock.now) as server:
        yield server


@pytest.fixture
def world(kube: FakeKubeApi, clock: Clock, tmp_path: Path) -> World:
    kube.put_config_map("shop", "store-bindings-0", {"helper.json": binding()})
    settings = ClusterSettings(
        issuer=ISSUER,
        audience=AUDIENCE,
        admin_audience=ADMIN_AUDIENCE,
        operator_audience=OPERATOR_AUDIENCE,
        operator=ServiceAccountRef(namespace="memplane-system", name="operator"),
        admins=(ServiceAccountRef(namespace="shop", name="boss"),),
        user_issuers=(
            UserIssuer(issuer=USER_ISSUER, audiences=(USER_AUDIENCE,), jwks_file=str(tmp_path / "users.json")),
        ),
        revocation=Revocation.PREFERRED,
        jwks=None,
        kube_api=kube.url,
        kube_ca_file=kube.ca_file,
        kube_token_file=kube.token_file,
        bindings_namespace="shop",
        bindings_prefix="store-bindings",
        bindings_directory=None,
        timeout_seconds=2.0,
        watch_seconds=20.0,
    )
    world = World(kube, clock, settings, make_key("ES256"), tmp_path)
    world.publish_user_keys(world.user_key)
    return world


async def who(authenticator: ClusterAuthenticator, token: str, route: str = "agent", user: str | None = None) -> Caller:
    return await authenticator.authenticate(bearer(token, user), ROLES[route])
