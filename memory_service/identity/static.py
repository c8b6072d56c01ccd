"""The mode `static`: bearer tokens in a file, for stores outside of a cluster."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, StringConstraints, ValidationError

from memory_service.contract.base import FileModel
from memory_service.contract.bindings import BindingPolicy
from memory_service.contract.health import Reason
from memory_service.contract.ids import LOCAL_ISSUER, AgentIdentity
from memory_service.contract.limits import MAX_TOKEN_CHARS
from memory_service.contract.problems import GOOD_TOKEN
from memory_service.domain.callers import Caller, CallerKind, Principal
from memory_service.domain.documents import parse_yaml
from memory_service.errors import FieldProblem, Forbidden, Misconfigured, Unauthenticated
from memory_service.identity.authenticator import AGENTS, Headers, IdentityState, Monotonic, Now
from memory_service.identity.credentials import USER_HEADER, principal_flaw, read_credentials

logger = logging.getLogger(__name__)

RELOAD_SECONDS = 1.0
"""How long a change of the file may take to count; the file is read at most that often."""

MAX_FILE_BYTES = 8 * 1024 * 1024


def _no_flaw(name: str) -> str:
    flaw = principal_flaw(name)
    if flaw is not None:
        raise ValueError(f"the principal {flaw}")
    return name


Token = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]+$", max_length=MAX_TOKEN_CHARS), Field(repr=False)]
"""Printable ASCII without spaces: what a header can carry."""


class AgentToken(BindingPolicy):
    """An agent's token and what it may do."""

    token: Token
    agent: AgentIdentity

    @property
    def policy(self) -> BindingPolicy:
        """The policy without the token, so that no Caller carries a secret."""
        return BindingPolicy.model_validate(self.model_dump(exclude={"token", "agent"}))


class UserToken(FileModel):
    """A user's token; the principal is `local#<principal>`."""

    token: Token
    principal: Annotated[str, AfterValidator(_no_flaw)]


class AdminToken(FileModel):
    """An admin's token; `name` is for audits."""

    token: Token
    name: str = "admin"


class TokensFile(FileModel):
    """The whole file."""

    agents: tuple[AgentToken, ...] = ()
    users: tuple[UserToken, ...] = ()
    admins: tuple[AdminToken, ...] = ()


@dataclass(frozen=True)
class _Tokens:
    """The callers of one version of the file, by a keyed digest of their token.

    The key is drawn anew for every version, so how long a look-up takes tells nothing about a stored token.
    """

    key: bytes
    callers: dict[bytes, Caller]
    users: dict[bytes, Principal]

    def digest(self, token: str) -> bytes:
        return hmac.digest(self.key, token.encode("utf-8", "surrogatepass"), "sha256")


class StaticAuthenticator:
    """Looks tokens up in a file that may change at any time; a broken file keeps the last good one and is reported."""

    def __init__(self, path: str, *, now: Now, monotonic: Monotonic) -> None:
        self._path = Path(path)
        self._now = now
        self._monotonic = monotonic
        self._tokens: _Tokens | None = None
        self._seen = b""
        self._checked_at = float("-inf")
        self._reading = asyncio.Lock()
        self._state = IdentityState(
            ok=False, ready=False, reason=Reason.STARTING, message="the tokens file is not read yet", since=now()
        )

    async def __aenter__(self) -> Self:
        """Read the file.

        Raises:
            Misconfigured: the file is missing or broken, so nobody could be let in.
        """
        await self.refresh()
        if self._tokens is None:
            raise Misconfigured(self._state.message, reason=self._state.reason.value)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Forget the tokens."""
        self._tokens = None

    async def authenticate(self, headers: Headers, roles: Collection[CallerKind] = AGENTS) -> Caller:
        """Return the caller that the file gives this token.

        Raises:
            Unauthenticated: no token, or one that is not in the file.
            Forbidden: the token is of another role than the route takes.
        """
        given = read_credentials(headers)
        await self.refresh()
        tokens = self._tokens
        if tokens is None:
            raise Unauthenticated("no tokens are loaded; call again when the service is ready")
        if given.bearer is None:
            raise Unauthenticated("no token; send `Authorization: Bearer <token>` with one of the tokens file")
        caller = tokens.callers.get(tokens.digest(given.bearer))
        if caller is None:
            raise Unauthenticated("the token in Authorization is not in the tokens file, or no longer")
        if caller.kind not in roles:
            raise Forbidden(f"{caller.subject!r} is of the role {caller.kind.value!r}, which may not call this route")
        if given.user is None or caller.kind is not CallerKind.AGENT:
            return caller
        principal = tokens.users.get(tokens.digest(given.user))
        if principal is None:
            raise Unauthenticated(
                f"the token in {USER_HEADER} is not among `users` of the tokens file, or no longer",
                [FieldProblem(USER_HEADER, GOOD_TOKEN)],
            )
        return Caller(caller.kind, caller.subject, caller.agent, principal, caller.policy)

    def state(self) -> IdentityState:
        """Return whether the file in use is the file on disk."""
        return self._state

    async def refresh(self) -> None:
        """Read the file, unless it was read a moment ago."""
        if self._monotonic() - self._checked_at < RELOAD_SECONDS:
            return
        async with self._reading:
            if self._monotonic() - self._checked_at < RELOAD_SECONDS:
                return
            try:
                data = await asyncio.to_thread(self._read)
                self._take(data)
            except OSError as error:
                self._report(f"the tokens file {str(self._path)!r} cannot be read: {error.strerror or 'error'}")
            except ValueError as error:
                self._report(f"the tokens file {str(self._path)!r} is broken: {error}")
            self._checked_at = self._monotonic()

    def _read(self) -> bytes:
        with self._path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"it has more than {MAX_FILE_BYTES} bytes")
        return data

    def _take(self, data: bytes) -> None:
        digest = hashlib.sha256(data).digest()
        if digest == self._seen and self._state.ok:
            return
        parsed = parse_tokens(data)
        self._tokens = _index(parsed)
        self._seen = digest
        self._state = IdentityState(ok=True, ready=True, reason=Reason.OK, message="", since=self._now())
        logger.info("tokens file loaded", extra={"agents": len(parsed.agents), "users": len(parsed.users)})

    def _report(self, message: str) -> None:
        if self._state.message == message:
            return
        kept = self._tokens is not None
        now = self._now()
        self._state = IdentityState(
            ok=False,
            ready=kept,
            reason=Reason.BINDINGS_STALE if kept else Reason.SECRET_MISSING,
            message=message + ("; the last good one stays in use" if kept else "; nobody can be let in"),
            since=now if self._state.ok else self._state.since,
            stale_since=(now if self._state.ok else self._state.stale_since) if kept else None,
        )
        logger.warning("tokens file not usable", extra={"reason": self._state.reason.value})


def parse_tokens(data: bytes) -> TokensFile:
    """Return the tokens of a file.

    Raises:
        ValueError: it is not YAML, has another shape, or gives one token twice. No token is in the message.
    """
    document = parse_yaml(data)
    if document is None:
        raise ValueError("it is empty")
    try:
        parsed = TokensFile.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise ValueError(f"{where}: {first['msg']}") from None
    seen: dict[str, str] = {}
    entries: dict[str, Sequence[AgentToken | UserToken | AdminToken]] = {
        "agents": parsed.agents,
        "users": parsed.users,
        "admins": parsed.admins,
    }
    for kind, tokens in entries.items():
        for number, entry in enumerate(tokens):
            place = f"{kind}.{number}"
            if entry.token in seen:
                raise ValueError(f"{place} has the same token as {seen[entry.token]}; a token proves one thing only")
            seen[entry.token] = place
    return parsed


def _index(parsed: TokensFile) -> _Tokens:
    tokens = _Tokens(secrets.token_bytes(32), {}, {})
    for agent in parsed.agents:
        caller = Caller(CallerKind.AGENT, agent.agent, agent.agent, policy=agent.policy)
        tokens.callers[tokens.digest(agent.token)] = caller
    for admin in parsed.admins:
        tokens.callers[tokens.digest(admin.token)] = Caller(CallerKind.ADMIN, f"{LOCAL_ISSUER}#{admin.name}")
    for user in parsed.users:
        tokens.users[tokens.digest(user.token)] = Principal(LOCAL_ISSUER, user.principal)
    return tokens
