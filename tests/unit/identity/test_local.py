"""The mode `none`: names in plain text, each checked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_service.contract.ids import LOCAL_AGENT
from memory_service.contract.scopes import Scope, Tools
from memory_service.domain import scopes
from memory_service.domain.callers import Caller, CallerKind, Principal
from memory_service.errors import Forbidden, InvalidRequest, Misconfigured, Unauthenticated
from memory_service.identity.local import LocalAuthenticator
from tests.fakes.identity_world import Clock

ALL = {Scope.PRIVATE, Scope.USER, Scope.SHARED, Scope.SESSION}


def local(host: str = "127.0.0.1", allow_unauthenticated: bool = False) -> LocalAuthenticator:
    return LocalAuthenticator(host=host, allow_unauthenticated=allow_unauthenticated, now=Clock().now)


async def call(*headers: tuple[str, str]) -> Caller:
    return await local().authenticate(headers)


async def test_a_caller_without_a_name_is_the_local_agent() -> None:
    caller = await call()
    assert (caller.kind, caller.agent, caller.principal) == (CallerKind.AGENT, LOCAL_AGENT, None)
    assert caller.policy.scope is Scope.PRIVATE
    assert caller.policy.tools is Tools.ALL
    assert set(caller.readable) == set(caller.writable) == ALL
    assert scopes.write_owner(caller).scope is Scope.PRIVATE


async def test_a_caller_names_itself_and_its_user() -> None:
    caller = await call(("X-Memplane-Agent", "kaos://agent/shop/helper"), ("X-Memplane-User", "anna"))
    assert caller.agent == "kaos://agent/shop/helper"
    assert caller.principal == Principal("local", "anna")


@pytest.mark.parametrize("name", ["*", "%", "kaos:shared", "a&agent_id=b", "a b", "a#b", "local#anna"])
async def test_a_users_name_is_literal(name: str) -> None:
    assert (await call(("X-Memplane-User", name))).principal == Principal("local", name)


async def test_a_users_name_is_utf_8() -> None:
    as_servers_read_it = "Änne 安".encode().decode("latin-1")
    assert (await call(("X-Memplane-User", as_servers_read_it))).principal == Principal("local", "Änne 安")
    with pytest.raises(Unauthenticated):
        await call(("X-Memplane-User", "\xc4nne"))


@pytest.mark.parametrize("name", ["", " ", "\t", "a\x00b", "a\nb", "x" * 1_001])
async def test_a_users_name_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await call(("X-Memplane-User", name))
    assert caught.value.errors[0].field == "X-Memplane-User"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "*",
        "kaos:shared",
        "kaos://agent/shop",
        "kaos://agent/shop/",
        "kaos://agent/shop/*",
        "kaos://agent/Shop/helper",
        "kaos://agent/shop/helper\n",
        "kaos://agent/shop/helper/../x",
        "kaos://agent/shop/helper&agent_id=b",
        "kaos://agent/shop/" + "a" * 10_240,
        " kaos://agent/shop/helper",
    ],
)
async def test_an_agents_name_must_match_its_pattern(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await call(("X-Memplane-Agent", name))
    assert caught.value.errors[0].field == "X-Memplane-Agent"


async def test_a_name_that_is_given_twice_is_refused() -> None:
    with pytest.raises(Unauthenticated, match="twice"):
        await call(("X-Memplane-User", "anna"), ("x-memplane-user", "bert"))


@given(st.text(max_size=40), st.text(max_size=40))
async def test_two_names_are_never_one_user(one: str, two: str) -> None:
    try:
        first, second = await call(("X-Memplane-User", one)), await call(("X-Memplane-User", two))
    except (InvalidRequest, Unauthenticated):
        return
    same = scopes.home_owner(first) == scopes.home_owner(second)
    assert same == (first.principal == second.principal)
    if one.isascii() and two.isascii():
        assert same == (one == two)


async def test_on_loopback_the_local_person_is_the_admin() -> None:
    for roles in ((CallerKind.ADMIN,), (CallerKind.OPERATOR, CallerKind.ADMIN)):
        assert (await local().authenticate([], roles)).kind is CallerKind.ADMIN


@pytest.mark.parametrize(("host", "allow"), [("0.0.0.0", True), ("127.0.0.1", True), ("10.0.0.1", True)])
async def test_where_strangers_may_call_nobody_is_admin(host: str, allow: bool) -> None:
    authenticator = local(host, allow)
    assert (await authenticator.authenticate([])).agent == LOCAL_AGENT
    with pytest.raises(Forbidden):
        await authenticator.authenticate([], (CallerKind.ADMIN,))
    with pytest.raises(Forbidden):
        await authenticator.authenticate([], (CallerKind.OPERATOR,))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com", "", "127.0.0.1.example.com"])
def test_it_listens_on_loopback_only_unless_told_otherwise(host: str) -> None:
    with pytest.raises(Misconfigured, match="allowUnauthenticated"):
        local(host)


async def test_it_is_always_ready() -> None:
    async with local() as authenticator:
        assert authenticator.state().ok
