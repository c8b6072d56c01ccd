"""A stand-in for the Kubernetes API: TokenReview, JWKS, ConfigMap list and watch, over real HTTPS on loopback.

It runs in a thread of its own, so that it serves tests of both kinds, in-process and against a started service. It is
as strict as the real one where the product leans on it (audiences, resource versions, a Role with resourceNames), and
`faults` makes it fail in ways that the real one cannot be told to.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import json
import ssl
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import jwt
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

ISSUER = "https://kubernetes.default.svc.cluster.local"
_START_SECONDS = 10


@dataclass
class Faults:
    """What goes wrong from now on. Statuses are answered instead of the real answer; None is no fault."""

    review_status: int | None = None
    review_delay_seconds: float = 0.0
    jwks_status: int | None = None
    list_status: int | None = None
    watch_status: int | None = None
    frozen_watches: bool = False


@dataclass(frozen=True)
class SigningKey:
    """A private key with the id under which its public half is published."""

    kid: str
    algorithm: str
    private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

    @property
    def public_jwk(self) -> dict[str, Any]:
        """The public half as a JWK."""
        if isinstance(self.private, rsa.RSAPrivateKey):
            jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.private.public_key()))
        else:
            jwk = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.private.public_key()))
        jwk.pop("key_ops", None)
        return {**jwk, "kid": self.kid, "use": "sig", "alg": self.algorithm}

    @property
    def public_pem(self) -> bytes:
        """The public half as PEM, for forgeries that take it for a shared secret."""
        return self.private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def sign(self, claims: Mapping[str, Any], **header: Any) -> str:
        """Return a JWT."""
        return jwt.encode(dict(claims), self.private, algorithm=self.algorithm, headers={"kid": self.kid, **header})


def make_key(algorithm: str = "RS256", kid: str | None = None) -> SigningKey:
    """Return a new key for an algorithm."""
    private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    if algorithm == "ES256":
        private = ec.generate_private_key(ec.SECP256R1())
    else:
        private = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    return SigningKey(kid or uuid.uuid4().hex, algorithm, private)


@functools.cache
def _first_key() -> SigningKey:
    """One for all servers of a test run: making an RSA key takes longer than most tests."""
    return make_key()


class FakeKubeApi:
    """Enter it to start it. `folder` gets the CA and the service's own token.

    `allowed_names`: the ConfigMaps that the caller's Role names; None allows all. A list or watch without a
    `metadata.name` selector is refused while it is set, as RBAC does it.
    """

    def __init__(self, folder: Path, *, now: Callable[[], datetime] | None = None) -> None:
        self.faults = Faults()
        self.allowed_names: set[str] | None = None
        self.requests: Counter[str] = Counter()
        self.ca_file = str(folder / "ca.crt")
        self.token_file = str(folder / "token")
        self.url = ""
        self._now = now or (lambda: datetime.now(UTC))
        self._keys = [_first_key()]
        self._dead_pods: set[str] = set()
        self._version = 100
        self._oldest = 0
        self._objects: dict[tuple[str, str], dict[str, Any]] = {}
        self._events: list[tuple[int, str, dict[str, Any]]] = []
        self._own_token = uuid.uuid4().hex
        self._lock = threading.RLock()
        self._watches: set[asyncio.Task[Any]] = set()
        self._server_tls = make_certificates(folder)
        Path(self.token_file).write_text(self._own_token, encoding="utf-8")
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="fake-kube-api", daemon=True)
        self._started = threading.Event()
        self._stop = asyncio.Event()

    # Running

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(_START_SECONDS):
            raise RuntimeError("the stand-in API server did not start")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_SECONDS)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._run())
        finally:
            self._loop.close()

    async def _run(self) -> None:
        app = web.Application()
        app.router.add_post("/apis/authentication.k8s.io/v1/tokenreviews", self._review)
        app.router.add_get("/openid/v1/jwks", self._jwks)
        app.router.add_get("/api/v1/namespaces/{namespace}/configmaps", self._config_maps)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._server_tls)
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"https://127.0.0.1:{port}"
        self._started.set()
        await self._stop.wait()
        self._cut_watches()
        await runner.cleanup()
        # A client may be in the middle of its handshake: what is left is ended, and closed before its loop is.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0.05)

    # What tests do to it

    def token(
        self,
        namespace: str,
        service_account: str,
        audience: str | list[str],
        *,
        pod: str = "pod-1",
        lifetime: timedelta = timedelta(hours=1),
        **claims: Any,
    ) -> str:
        """Return a projected token, as the kubelet would mount it; `claims` overrides single claims."""
        now = int(self._now().timestamp())
        body = {
            "iss": ISSUER,
            "sub": f"system:serviceaccount:{namespace}:{service_account}",
            "aud": [audience] if isinstance(audience, str) else audience,
            "exp": now + int(lifetime.total_seconds()),
            "iat": now,
            "nbf": now,
            "jti": uuid.uuid4().hex,
            "kubernetes.io": {
                "namespace": namespace,
                "pod": {"name": pod, "uid": pod},
                "serviceaccount": {"name": service_account, "uid": f"uid-{service_account}"},
            },
            **claims,
        }
        return self.key.sign({name: value for name, value in body.items() if value is not None})

    @property
    def key(self) -> SigningKey:
        """The key that signs now."""
        return self._keys[-1]

    def rotate_key(self, *, forget_old: bool = False, algorithm: str = "RS256") -> SigningKey:
        """Sign with a new key from now on; the old one stays published unless `forget_old`."""
        with self._lock:
            if forget_old:
                self._keys.clear()
            self._keys.append(make_key(algorithm))
            return self.key

    def delete_pod(self, uid: str) -> None:
        """Make tokens of a pod invalid at once."""
        with self._lock:
            self._dead_pods.add(uid)

    def put_config_map(self, namespace: str, name: str, data: Mapping[str, str]) -> None:
        """Create or replace a ConfigMap."""
        with self._lock:
            known = (namespace, name) in self._objects
            self._version += 1
            item = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": namespace, "resourceVersion": str(self._version)},
                "data": dict(data),
            }
            self._objects[namespace, name] = item
            self._events.append((self._version, "MODIFIED" if known else "ADDED", item))
        self._wake()

    def delete_config_map(self, namespace: str, name: str) -> None:
        """Delete a ConfigMap."""
        with self._lock:
            item = self._objects.pop((namespace, name))
            self._version += 1
            metadata = {**item["metadata"], "resourceVersion": str(self._version)}
            self._events.append((self._version, "DELETED", {**item, "metadata": metadata}))
        self._wake()

    def drop_watches(self) -> None:
        """Cut every open watch in the middle of its stream."""
        self._loop.call_soon_threadsafe(self._cut_watches)

    def forget_history(self) -> None:
        """Compact: watches from any version of before get 410."""
        with self._lock:
            self._version += 1
            self._oldest = self._version
            self._events.clear()

    @property
    def open_watches(self) -> int:
        """How many watches are open."""
        return len(self._watches)

    # What it answers

    async def _review(self, request: web.Request) -> web.StreamResponse:
        self._count(request, "review")
        faults = self.faults
        if faults.review_delay_seconds:
            await asyncio.sleep(faults.review_delay_seconds)
        if faults.review_status is not None:
            return _status(faults.review_status)
        if not self._is_known(request):
            return _status(401)
        spec = (await request.json())["spec"]
        status = self._verdict(spec["token"], spec.get("audiences") or [])
        return web.json_response(
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec, "status": status},
            status=201,
        )

    def _verdict(self, token: str, audiences: list[str]) -> dict[str, Any]:
        with self._lock:
            keys = {key.kid: key for key in self._keys}
            dead = set(self._dead_pods)
        try:
            key = keys[jwt.get_unverified_header(token)["kid"]]
            claims = jwt.decode(
                token,
                key.private.public_key(),
                algorithms=[key.algorithm],
                options={"verify_aud": False, "verify_exp": False, "verify_nbf": False, "verify_iat": False},
            )
        except (jwt.PyJWTError, KeyError):
            return {"authenticated": False, "error": "invalid bearer token"}
        good_for = [audience for audience in audiences if audience in claims["aud"]]
        is_alive = claims["kubernetes.io"]["pod"]["uid"] not in dead and claims["exp"] > self._now().timestamp()
        if not good_for or not is_alive:
            return {"authenticated": False, "error": "token is not valid"}
        return {"authenticated": True, "user": {"username": claims["sub"]}, "audiences": good_for}

    async def _jwks(self, request: web.Request) -> web.StreamResponse:
        self._count(request, "jwks")
        if self.faults.jwks_status is not None:
            return _status(self.faults.jwks_status)
        with self._lock:
            return web.json_response({"keys": [key.public_jwk for key in self._keys]})

    async def _config_maps(self, request: web.Request) -> web.StreamResponse:
        is_watch = request.query.get("watch") == "true"
        self._count(request, "watch" if is_watch else "list")
        fault = self.faults.watch_status if is_watch else self.faults.list_status
        if fault is not None:
            return _status(fault)
        if not self._is_known(request):
            return _status(401)
        selector = request.query.get("fieldSelector", "")
        name = selector.removeprefix("metadata.name=") if selector.startswith("metadata.name=") else None
        if self.allowed_names is not None and name not in self.allowed_names:
            return _status(403)
        namespace = request.match_info["namespace"]
        if is_watch:
            return await self._watch(request, namespace, name)
        with self._lock:
            items = [item for (ns, n), item in self._objects.items() if ns == namespace and name in (None, n)]
            metadata = {"resourceVersion": str(self._version)}
            return web.json_response({"kind": "ConfigMapList", "metadata": metadata, "items": items})

    async def _watch(self, request: web.Request, namespace: str, name: str | None) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        since = int(request.query["resourceVersion"])
        if since < self._oldest:
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return response
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        try:
            await asyncio.wait_for(
                self._send_events(response, namespace, name, since), float(request.query.get("timeoutSeconds", "60"))
            )
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if request.transport is not None:
                request.transport.abort()
            raise
        finally:
            self._watches.discard(task)
        return response

    async def _send_events(self, response: web.StreamResponse, namespace: str, name: str | None, since: int) -> None:
        while True:
            changed = self._changed
            with self._lock:
                new = [event for event in self._events if event[0] > since]
            for version, kind, item in new:
                since = version
                metadata = item["metadata"]
                if metadata["namespace"] != namespace or name not in (None, metadata["name"]):
                    continue
                if not self.faults.frozen_watches:
                    await response.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")
            bookmark = {"kind": "ConfigMap", "metadata": {"resourceVersion": str(since)}}
            if new and not self.faults.frozen_watches:
                await response.write(json.dumps({"type": "BOOKMARK", "object": bookmark}).encode() + b"\n")
            await changed.wait()

    def _is_known(self, request: web.Request) -> bool:
        return request.headers.get("Authorization") == f"Bearer {self._own_token}"

    def _count(self, request: web.Request, what: str) -> None:
        with self._lock:
            self.requests[what] += 1

    def _wake(self) -> None:
        def wake() -> None:
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

        self._loop.call_soon_threadsafe(wake)

    def _cut_watches(self) -> None:
        for task in list(self._watches):
            task.cancel()


def _status(code: int) -> web.Response:
    return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}, status=code)


def make_certificates(folder: Path) -> ssl.SSLContext:
    """Write a CA for 127.0.0.1 to `folder/ca.crt` and return the TLS of a server under it."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stand-in CA")])
    start = datetime.fromtimestamp(time.time(), UTC) - timedelta(hours=1)

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + timedelta(days=2))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        )

    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    ca = (
        builder(ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    leaf = (
        builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")]), key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    server = folder / "server.pem"
    server.write_bytes(
        leaf.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server)
    return context
