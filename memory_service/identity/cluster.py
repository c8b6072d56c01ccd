"""The mode `cluster`: projected ServiceAccount tokens, checked here and by the API server, and the store's bindings."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import httpx

from memory_service.contract.bindings import Binding, BindingPolicy
from memory_service.contract.config import Revocation
from memory_service.contract.health import Reason
from memory_service.domain.callers import Caller, CallerKind
from memory_service.errors import Forbidden, Misconfigured, Unauthenticated, Unavailable
from memory_service.identity.authenticator import AGENTS, Headers, IdentityState, Monotonic, Now
from memory_service.identity.bindings import BindingsWatch
from memory_service.identity.cluster_settings import ClusterSettings
from memory_service.identity.credentials import read_credentials
from memory_service.identity.keys import Fetch, KeySet, file_keys, url_keys
from memory_service.identity.kube_api import KubeApi
from memory_service.identity.reviews import Reviews
from memory_service.identity.tokens import Claims, check_token
from memory_service.identity.users import Users

_SUBJECT = re.compile(r"system:serviceaccount:([a-z0-9]([a-z0-9-]*[a-z0-9])?):([a-z0-9]([a-z0-9.-]*[a-z0-9])?)")
_POLICY_FIELDS = frozenset(BindingPolicy.model_fields)

FIRST_BINDINGS_SECONDS = 3.0
"""How long a start waits for the bindings; later they come while the service is not ready."""


@dataclass(frozen=True)
class _Account:
    namespace: str
    name: str
    pod: str

    @property
    def subject(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.name}"


class ClusterAuthenticator:
    """Lets in what proves itself twice: by its token's signature, and by the API server's word that it still lives."""

    def __init__(
        self,
        settings: ClusterSettings,
        *,
        now: Now,
        monotonic: Monotonic,
    ) -> None:
        self._settings = settings
        self._now = now
        self._audiences = _audiences(settings)
        self._issuers_client = httpx.AsyncClient(timeout=settings.timeout_seconds)
        self._api = (
            KubeApi(
                settings.kube_api,
                token_file=settings.kube_token_file,
                ca_file=settings.kube_ca_file,
                timeout_seconds=settings.timeout_seconds,
                watch_seconds=settings.watch_seconds,
            )
            if settings.kube_api
            else None
        )
        self._keys = KeySet(self._key_source(), monotonic=monotonic)
        self._reviews = (
            Reviews(self._api, revocation=settings.revocation, now=now, monotonic=monotonic) if self._api else None
        )
        if self._reviews is None and settings.revocation is Revocation.REQUIRED:
            raise Misconfigured(
                "identity.revocation is `required` and no API server is known to ask; set identity.kubeApi",
                reason=Reason.REVOCATION_UNAVAILABLE.value,
            )
        self._users = Users(
            settings.user_issuers,
            client=self._issuers_client,
            timeout_seconds=settings.timeout_seconds,
            now=now,
            monotonic=monotonic,
        )
        is_watchable = self._api and settings.bindings_namespace and settings.bindings_prefix
        if not is_watchable and settings.bindings_directory is None:
            raise Misconfigured(
                "auth mode `cluster` needs the store's bindings; give --bindings DIRECTORY, or set "
                "bindings.namespace and bindings.configMapPrefix",
                reason=Reason.NOT_CONFIGURED.value,
            )
        self._bindings = BindingsWatch(
            self._api,
            namespace=settings.bindings_namespace,
            prefix=settings.bindings_prefix,
            directory=settings.bindings_directory,
            now=now,
        )
        self._ok_key: tuple[bool, Reason] | None = None
        self._ok_since = now()
        self._open = AsyncExitStack()

    def _key_source(self) -> Fetch:
        jwks, api = self._settings.jwks, self._api
        if jwks is not None and not jwks.startswith(("http://", "https://")):
            return file_keys(jwks)
        if api is not None and (jwks is None or jwks.startswith(api.url + "/")):
            # Only the API server itself is shown the service's own token.
            path = "/openid/v1/jwks" if jwks is None else jwks.removeprefix(api.url)

            async def fetch() -> object:
                return await api.jwks(path)

            return fetch
        if jwks is None:
            raise Misconfigured(
                "auth mode `cluster` needs the cluster's keys; set identity.jwks or identity.kubeApi",
                reason="KeysUnavailable",
            )
        return url_keys(jwks, self._issuers_client)

    async def __aenter__(self) -> Self:
        """Start following the bindings."""
        self._open.push_async_callback(self._issuers_client.aclose)
        if self._api is not None:
            self._open.push_async_callback(self._api.aclose)
        self._open.push_async_callback(self._bindings.aclose)
        try:
            await self._bindings.start(FIRST_BINDINGS_SECONDS)
        except BaseException:
            await self._open.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop following, close all connections."""
        await self._open.aclose()

    async def authenticate(self, headers: Headers, roles: Collection[CallerKind] = AGENTS) -> Caller:
        """Return the caller that the token proves.

        The token's audience names the role that it asks for; the binding, or the configured lists, grant it.

        Raises:
            Unauthenticated: no token, or one that is not good here and now.
            Forbidden: a good token whose ServiceAccount has no binding, is not listed, or asks for another role.
            Unavailable: keys, bindings or (where it is required) the API server's word are missing at the moment.
        """
        given = read_credentials(headers)
        if given.bearer is None:
            raise Unauthenticated(
                f"no token; send `Authorization: Bearer <token>` with a projected ServiceAccount token of the "
                f"audience {self._settings.audience!r}"
            )
        claims = await check_token(given.bearer, issuer=self._settings.issuer, keys=self._keys, now=self._now)
        kind, audience = self._role(claims)
        account = _account(claims)
        if self._reviews is not None:
            await self._reviews.check(
                given.bearer, audience=audience, username=account.subject, expires_at=claims.expires_at
            )
        if kind not in roles:
            raise Forbidden(f"a token of the audience {audience!r} may not call this route")
        if kind is not CallerKind.AGENT:
            self._check_listed(kind, account)
            return Caller(kind, account.subject, pod=account.pod)
        binding = self._binding(account)
        principal = await self._users.principal(given.user) if given.user is not None else None
        return Caller(kind, account.subject, binding.agent, principal, _policy(binding), pod=account.pod)

    def _role(self, claims: Claims) -> tuple[CallerKind, str]:
        asked = [(kind, audience) for audience, kind in self._audiences.items() if audience in claims.audiences]
        if not asked:
            raise Unauthenticated(
                f"the token is for another audience; expected {self._settings.audience!r}, the audience of this store"
            )
        if len(asked) > 1:
            raise Unauthenticated(
                "the token has the audiences of several roles; request one token for each role, with one audience"
            )
        return asked[0]

    def _check_listed(self, kind: CallerKind, account: _Account) -> None:
        listed = self._settings.admins
        if kind is CallerKind.OPERATOR:
            listed = (self._settings.operator,) if self._settings.operator else ()
        if not any((ref.namespace, ref.name) == (account.namespace, account.name) for ref in listed):
            where = "identity.operator" if kind is CallerKind.OPERATOR else "identity.admins"
            raise Forbidden(
                f"ServiceAccount {account.namespace}/{account.name} is not in {where}; an audience alone grants nothing"
            )

    def _binding(self, account: _Account) -> Binding:
        binding = self._bindings.current.of(account.namespace, account.name)
        if binding is not None:
            return binding
        if not self._bindings.state().loaded:
            raise Unavailable(
                "the store's bindings are not read yet, so nobody can be let in; ask again later",
                reason=Reason.BINDINGS_STALE.value,
                retry_after=2.0,
            )
        if account.name == "default":
            raise Forbidden(
                f"ServiceAccount {account.namespace}/default stands for every pod that names none and is not bound; "
                "give the agent a ServiceAccount of its own, or name `default` in its AgentMemory"
            )
        raise Forbidden(
            f"no AgentMemory binds ServiceAccount {account.namespace}/{account.name} to this store; "
            "apply one that names the store and this ServiceAccount"
        )

    async def refresh(self) -> None:
        """Do nothing: bindings and verdicts are followed whether anybody calls or not."""

    def state(self) -> IdentityState:
        """Return how current bindings and verdicts are."""
        bindings = self._bindings.state()
        current = self._bindings.current
        revocation = self._reviews.available if self._reviews else False
        ok, reason, message = True, Reason.OK, "; ".join(current.problems[:3])
        if not bindings.loaded:
            ok, reason, message = False, Reason.STARTING, bindings.message
        elif bindings.stale_since is not None:
            ok, reason, message = False, Reason.BINDINGS_STALE, bindings.message
        elif revocation is False:
            ok, reason = self._settings.revocation is Revocation.PREFERRED, Reason.REVOCATION_UNAVAILABLE
            message = "the API server gives no verdicts on tokens; one of a removed pod counts until it expires"
        return IdentityState(
            ok=ok,
            ready=bindings.loaded,
            reason=reason,
            message=message,
            since=self._since(ok, reason),
            stale_since=bindings.stale_since,
            bindings_revision=current.revision if bindings.loaded else "",
            revocation_available=revocation,
            problems=current.problems,
        )

    def _since(self, ok: bool, reason: Reason) -> datetime:
        if (ok, reason) != self._ok_key:
            self._ok_key = (ok, reason)
            self._ok_since = self._now()
        return self._ok_since


def _audiences(settings: ClusterSettings) -> Mapping[str, CallerKind]:
    audiences = {settings.audience: CallerKind.AGENT}
    others = ((settings.admin_audience, CallerKind.ADMIN), (settings.operator_audience, CallerKind.OPERATOR))
    for audience, kind in others:
        if audience is None:
            continue
        if audience in audiences:
            raise Misconfigured(
                f"two roles have the audience {audience!r}; each role needs its own", reason="AudienceInvalid"
            )
        audiences[audience] = kind
    return audiences


def _account(claims: Claims) -> _Account:
    subject = claims.all.get("sub")
    match = _SUBJECT.fullmatch(subject) if isinstance(subject, str) and len(subject) < 400 else None
    if match is None:
        raise Unauthenticated("the token is not a ServiceAccount's")
    return _Account(match[1], match[3], _pod_uid(claims))


def _pod_uid(claims: Claims) -> str:
    kubernetes = claims.all.get("kubernetes.io")
    pod = kubernetes.get("pod") if isinstance(kubernetes, dict) else None
    uid = pod.get("uid") if isinstance(pod, dict) else None
    return uid[:64] if isinstance(uid, str) else ""


def _policy(binding: Binding) -> BindingPolicy:
    return BindingPolicy.model_validate(binding.model_dump(include=set(_POLICY_FIELDS)))
