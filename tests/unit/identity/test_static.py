"""The tokens file: who is in it, and what happens when it changes or breaks."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from memory_service.contract.scopes import FailureMode, Scope, Tools
from memory_service.domain.callers import Caller, CallerKind, Principal
from memory_service.errors import Forbidden, Misconfigured, Unauthenticated
from memory_service.identity.static import StaticAuthenticator, parse_tokens
from tests.fakes.identity_world import Clock, bearer

FILE = """
agents:
  - token: agent-token
    agent: kaos://agent/shop/helper
    scope: user
    readScopes: [user, private]
    tools: all
    failureMode: strict
    shareAcrossUsers: true
  - {token: plain-token, agent: kaos://agent/shop/plain}
users:
  - {token: anna-token, principal: anna}
  - {token: star-token, principal: "*"}
admins:
  - {token: admin-token}
"""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.yaml"
    path.write_text(FILE)
    return path


@asynccontextmanager
async def opened(path: Path, clock: Clock) -> AsyncIterator[StaticAuthenticator]:
    async with StaticAuthenticator(str(path), now=clock.now, monotonic=clock.monotonic) as authenticator:
        yield authenticator


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)


def remove(path: Path) -> None:
    path.unlink()


async def agent(authenticator: StaticAuthenticator, token: str, user: str | None = None) -> Caller:
    return await authenticator.authenticate(bearer(token, user))


async def test_a_token_is_its_agent_with_its_policy(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as authenticator:
        caller = await agent(authenticator, "agent-token", "anna-token")
        plain = await agent(authenticator, "plain-token")
    assert (caller.kind, caller.agent) == (CallerKind.AGENT, "kaos://agent/shop/helper")
    assert caller.principal == Principal("local", "anna")
    assert (caller.policy.scope, caller.readable) == (Scope.USER, (Scope.USER, Scope.PRIVATE))
    assert (caller.policy.tools, caller.policy.failure_mode) == (Tools.ALL, FailureMode.STRICT)
    assert caller.policy.share_across_users
    assert (plain.principal, plain.readable, plain.writable) == (
        None,
        (Scope.PRIVATE,),
        (Scope.PRIVATE, Scope.SESSION),
    )
    assert "-token" not in repr(caller)


async def test_each_token_proves_one_role(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as authenticator:
        admin = await authenticator.authenticate(bearer("admin-token"), (CallerKind.ADMIN,))
        assert admin.kind is CallerKind.ADMIN
        for token, role in (("agent-token", CallerKind.ADMIN), ("admin-token", CallerKind.AGENT)):
            with pytest.raises(Forbidden):
                await authenticator.authenticate(bearer(token), (role,))
        with pytest.raises(Unauthenticated):
            await authenticator.authenticate(bearer("anna-token"))


@pytest.mark.parametrize("user", ["anna", "", "*", "agent-token", "admin-token", "Bearer anna-token", "é"])
async def test_a_user_that_is_not_in_the_file_refuses_the_call(path: Path, clock: Clock, user: str) -> None:
    async with opened(path, clock) as authenticator:
        with pytest.raises(Unauthenticated):
            await agent(authenticator, "agent-token", user)


@pytest.mark.parametrize("token", ["agent-toke", "agent-token2", "AGENT-TOKEN", "*", "%", "agent-token\x00"])
async def test_a_token_is_compared_whole(path: Path, clock: Clock, token: str) -> None:
    async with opened(path, clock) as authenticator:
        with pytest.raises(Unauthenticated):
            await agent(authenticator, token)


async def test_no_header_names_an_agent(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as authenticator:
        headers = [*bearer("plain-token"), ("X-Memplane-Agent", "kaos://agent/shop/helper")]
        assert (await authenticator.authenticate(headers)).agent == "kaos://agent/shop/plain"
        with pytest.raises(Unauthenticated):
            await authenticator.authenticate([("X-Memplane-Agent", "kaos://agent/shop/helper")])


async def test_a_changed_file_counts_after_a_second(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as authenticator:
        rewrite(path, FILE.replace("agent-token", "new-token"))
        clock.advance(1.1)
        assert await agent(authenticator, "new-token")
        with pytest.raises(Unauthenticated):
            await agent(authenticator, "agent-token")


async def test_a_swapped_symlink_counts_as_a_change(path: Path, clock: Clock, tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    async with opened(link, clock) as authenticator:
        other = tmp_path / "other.yaml"
        other.write_text(FILE.replace("agent-token", "new-token"))
        fresh = tmp_path / "fresh"
        fresh.symlink_to(other)
        os.replace(fresh, link)
        clock.advance(1.1)
        assert await agent(authenticator, "new-token")


BROKEN = {
    "not YAML": "agents: [",
    "a list twice": "agents: []\nusers: []\nagents: []\n",
    "empty": "",
    "a list": "- a",
    "an unknown field": FILE + "\nroot: true",
    "an unknown field of an agent": FILE.replace("scope: user", "scope: user\n    admin: true"),
    "an agent without its form": FILE.replace("kaos://agent/shop/helper", "*"),
    "an unknown scope": FILE.replace("scope: user", "scope: everything"),
    "a principal with a NUL": FILE.replace('"*"', '"a\\0b"'),
    "an empty principal": FILE.replace('"*"', '""'),
    "one token twice": FILE.replace("admin-token", "agent-token"),
    "a token with a space": FILE.replace("admin-token", "admin token"),
    "a token with a line break": FILE.replace("admin-token", '"admin\\n"'),
    "code": "agents: !!python/object/apply:os.getcwd []",
    "nesting without end": "[" * 5_000,
}


@pytest.mark.parametrize("flaw", BROKEN)
async def test_a_broken_file_keeps_the_last_good_one_and_is_reported(path: Path, clock: Clock, flaw: str) -> None:
    async with opened(path, clock) as authenticator:
        assert authenticator.state().ok
        rewrite(path, BROKEN[flaw])
        clock.advance(1.1)
        assert await agent(authenticator, "agent-token")
        state = authenticator.state()
        assert (state.ok, state.ready) == (False, True)
        assert state.stale_since == clock.now()
        assert "last good one" in state.message
        assert "admin-token" not in state.message
        rewrite(path, FILE)
        clock.advance(1.1)
        assert await agent(authenticator, "agent-token")
        assert authenticator.state().ok


async def test_a_removed_file_keeps_the_last_good_one(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as authenticator:
        remove(path)
        clock.advance(1.1)
        assert await agent(authenticator, "agent-token")
        assert not authenticator.state().ok


async def test_a_look_without_a_call_reads_the_file_at_most_once_a_second(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as authenticator:
        remove(path)
        clock.advance(0.9)
        await authenticator.refresh()
        assert authenticator.state().ok
        clock.advance(0.2)
        await authenticator.refresh()
        assert not authenticator.state().ok


@pytest.mark.parametrize("flaw", BROKEN)
async def test_a_file_that_is_broken_from_the_start_is_a_wrong_configuration(
    path: Path, clock: Clock, flaw: str
) -> None:
    rewrite(path, BROKEN[flaw])
    with pytest.raises(Misconfigured, match=r"tokens\.yaml"):
        async with opened(path, clock):
            pass


async def test_a_missing_file_is_a_wrong_configuration(tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(Misconfigured, match="cannot be read"):
        async with opened(tmp_path / "none.yaml", clock):
            pass


def test_no_token_shows_in_the_files_repr() -> None:
    assert "-token" not in repr(parse_tokens(FILE.encode()))
