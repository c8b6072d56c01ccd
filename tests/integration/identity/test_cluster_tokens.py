"""Who gets in with which token, against a stand-in API server over HTTPS."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import shutil
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from memory_service.contract.config import Revocation, UserIssuer
from memory_service.contract.health import Reason
from memory_service.contract.scopes import Scope
from memory_service.domain.callers import CallerKind, Principal
from memory_service.errors import Forbidden, Misconfigured, Unauthenticated, Unavailable
from memory_service.identity.kube_api import KubeApi, KubeUnavailable
from tests.fakes.identity_world import (
    ADMIN_AUDIENCE,
    AUDIENCE,
    OPERATOR_AUDIENCE,
    USER_AUDIENCE,
    USER_ISSUER,
    World,
    bearer,
    binding,
    who,
)
from tests.fakes.kube_api import ISSUER, make_certificates, make_key


async def test_a_bound_pod_is_the_agent_of_its_binding(world: World) -> None:
    row = binding(scope="user", readScopes=["user", "private"], shareAcrossUsers=True)
    world.kube.put_config_map("shop", "store-bindings-0", {"helper.json": row})
    async with world.authenticator() as authenticator:
        caller = await who(authenticator, world.token())
    assert (caller.kind, caller.agent) == (CallerKind.AGENT, "kaos://agent/shop/helper")
    assert caller.subject == "system:serviceaccount:shop:helper"
    assert caller.pod == "pod-1"
    assert caller.principal is None
    assert caller.policy.scope is Scope.USER
    assert caller.readable == (Scope.USER, Scope.PRIVATE)
    assert caller.policy.share_across_users


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256"])
async def test_the_three_signatures_are_taken(world: World, algorithm: str) -> None:
    world.kube.rotate_key(algorithm=algorithm)
    async with world.authenticator() as authenticator:
        assert (await who(authenticator, world.token())).agent


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _claims(token: str) -> dict[str, Any]:
    body = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims


def _unsigned(world: World) -> str:
    return f"{_part({'alg': 'none', 'kid': world.kube.key.kid})}.{_part(_claims(world.token()))}."


def _signed_with_the_public_key(world: World) -> str:
    head = f"{_part({'alg': 'HS256', 'kid': world.kube.key.kid})}.{_part(_claims(world.token()))}"
    digest = hmac.digest(world.kube.key.public_pem, head.encode(), hashlib.sha256)
    return f"{head}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def _with_changed_claims(world: World) -> str:
    head, _, signature = world.token("other").split(".")
    return f"{head}.{_part(_claims(world.token()))}.{signature}"


FORGERIES: dict[str, Callable[[World], str]] = {
    "unsigned": _unsigned,
    "signed with the public key as a secret": _signed_with_the_public_key,
    "of another key under the same id": lambda w: make_key(kid=w.kube.key.kid).sign(_claims(w.token())),
    "of an unknown key": lambda w: make_key().sign(_claims(w.token())),
    "with changed claims": _with_changed_claims,
    "with a cut signature": lambda w: w.token()[:-8],
    "of another issuer": lambda w: w.token(iss="https://elsewhere.example"),
    "without an issuer": lambda w: w.token(iss=None),
    "expired": lambda w: w.token(lifetime=timedelta(seconds=-31)),
    "without an expiry": lambda w: w.token(exp=None),
    "with an infinite expiry": lambda w: w.token(exp=float("inf")),
    "with an expiry that is text": lambda w: w.token(exp="9999999999"),
    "not valid yet": lambda w: w.token(nbf=w.clock.now().timestamp() + 31),
    "issued in the future": lambda w: w.token(iat=w.clock.now().timestamp() + 31),
    "for the API server": lambda w: w.token(audience=ISSUER),
    "for another store": lambda w: w.token(audience="memplane:shop/other"),
    "for a store whose name begins alike": lambda w: w.token(audience=AUDIENCE + "2"),
    "without an audience": lambda w: w.token(aud=None),
    "with several roles": lambda w: w.token(audience=[AUDIENCE, ADMIN_AUDIENCE]),
    "of a human": lambda w: w.token(sub="anna"),
    "of a ServiceAccount with a colon": lambda w: w.token(sub="system:serviceaccount:shop:x:helper"),
    "with extensions": lambda w: w.kube.key.sign(_claims(w.token()), crit=["x"], x=1),
    "not a token": lambda w: "secret",
    "three empty parts": lambda w: "..",
    "deeply nested": lambda w: f"{_part({'alg': 'RS256'})}.{base64.urlsafe_b64encode(b'[' * 9000).decode()}.AA",
}


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_a_token_that_proves_nothing_is_refused(world: World, forgery: str) -> None:
    async with world.authenticator() as authenticator:
        with pytest.raises(Unauthenticated) as caught:
            await who(authenticator, FORGERIES[forgery](world))
        assert world.kube.requests["review"] == 0
        assert "eyJ" not in str(caught.value)


async def test_clocks_may_differ_by_thirty_seconds(world: World) -> None:
    at = world.clock.now().timestamp()
    async with world.authenticator() as authenticator:
        assert await who(authenticator, world.token(nbf=at + 29, iat=at + 29))


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", "")],
        [("Authorization", "Bearer ")],
        [("Authorization", "Basic YTpi")],
        [("X-Memplane-Agent", "kaos://agent/shop/helper")],
    ],
)
async def test_a_call_without_a_token_is_refused(world: World, headers: list[tuple[str, str]]) -> None:
    async with world.authenticator() as authenticator:
        with pytest.raises(Unauthenticated):
            await authenticator.authenticate(headers)


async def test_two_tokens_in_one_call_are_refused(world: World) -> None:
    async with world.authenticator() as authenticator:
        with pytest.raises(Unauthenticated, match="twice"):
            await authenticator.authenticate(bearer(world.token()) + bearer(world.token("other")))


async def test_no_other_header_changes_who_calls(world: World) -> None:
    forged = [
        ("x-memplane-agent", "kaos://agent/shop/other"),
        ("x-forwarded-user", "boss"),
        ("x-agent-name", "other"),
        ("x-user-id", "anna"),
    ]
    async with world.authenticator() as authenticator:
        plain = await authenticator.authenticate(bearer(world.token()))
        assert await authenticator.authenticate([*forged, *bearer(world.token())]) == plain


async def test_an_unbound_account_is_known_and_forbidden(world: World) -> None:
    async with world.authenticator() as authenticator:
        with pytest.raises(Forbidden, match="shop/stranger"):
            await who(authenticator, world.token("stranger"))
        with pytest.raises(Forbidden, match="of its own"):
            await who(authenticator, world.token("default"))
        with pytest.raises(Forbidden):
            await who(authenticator, world.kube.token("elsewhere", "helper", AUDIENCE))


async def test_an_account_named_default_is_taken_when_a_binding_names_it(world: World) -> None:
    world.kube.put_config_map("shop", "store-bindings-0", {"a.json": binding(serviceAccount="default")})
    async with world.authenticator() as authenticator:
        assert (await who(authenticator, world.token("default"))).agent == "kaos://agent/shop/helper"


# Roles


async def test_an_audience_alone_grants_nothing(world: World) -> None:
    async with world.authenticator() as authenticator:
        for audience, route in ((ADMIN_AUDIENCE, "admin"), (OPERATOR_AUDIENCE, "health")):
            with pytest.raises(Forbidden, match="grants nothing"):
                await who(authenticator, world.token(audience=audience), route)


async def test_a_listed_account_without_the_audience_is_no_admin(world: World) -> None:
    async with world.authenticator() as authenticator:
        with pytest.raises(Forbidden):
            await who(authenticator, world.token("boss"), "admin")


async def test_admin_and_operator_prove_themselves_by_audience_and_list(world: World) -> None:
    async with world.authenticator() as authenticator:
        admin = await who(authenticator, world.token("boss", ADMIN_AUDIENCE), "admin")
        operator_token = world.kube.token("memplane-system", "operator", OPERATOR_AUDIENCE)
        operator = await who(authenticator, operator_token, "health")
        assert (await who(authenticator, world.token("boss", ADMIN_AUDIENCE), "health")).kind is CallerKind.ADMIN
        for token, route in (
            (operator_token, "admin"),
            (operator_token, "agent"),
            (world.token("boss", ADMIN_AUDIENCE), "agent"),
            (world.token(), "admin"),
            (world.token(), "health"),
        ):
            with pytest.raises(Forbidden):
                await who(authenticator, token, route)
    assert (admin.kind, admin.agent, operator.kind) == (CallerKind.ADMIN, "", CallerKind.OPERATOR)


async def test_the_operators_name_in_another_namespace_is_not_the_operator(world: World) -> None:
    async with world.authenticator() as authenticator:
        with pytest.raises(Forbidden):
            await who(authenticator, world.token("operator", OPERATOR_AUDIENCE), "health")


# Revocation


async def test_a_deleted_pods_token_is_refused_once_the_verdict_has_aged(world: World) -> None:
    token = world.token()
    async with world.authenticator() as authenticator:
        await who(authenticator, token)
        world.kube.delete_pod("pod-1")
        world.clock.advance(44)
        await who(authenticator, token)
        assert world.kube.requests["review"] == 1
        world.clock.advance(2)
        with pytest.raises(Unauthenticated, match="its pod is gone"):
            await who(authenticator, token)
        assert await who(authenticator, world.token(pod="pod-2"))


async def test_one_verdict_serves_many_calls_at_once(world: World) -> None:
    token = world.token()
    world.kube.faults.review_delay_seconds = 0.05
    async with world.authenticator() as authenticator:
        callers = await asyncio.gather(*(who(authenticator, token) for _ in range(20)))
    assert len({caller.agent for caller in callers}) == 1
    assert world.kube.requests["review"] == 1


async def test_a_verdict_is_not_remembered_past_the_tokens_expiry(world: World) -> None:
    token = world.token(lifetime=timedelta(seconds=20))
    async with world.authenticator() as authenticator:
        await who(authenticator, token)
        world.clock.advance(21)
        with pytest.raises(Unauthenticated):
            await who(authenticator, token)
    assert world.kube.requests["review"] == 2


async def test_a_refusal_stands_while_the_api_server_is_away(world: World) -> None:
    token = world.token()
    world.kube.delete_pod("pod-1")
    async with world.authenticator() as authenticator:
        with pytest.raises(Unauthenticated):
            await who(authenticator, token)
        world.kube.faults.review_status = 503
        for _ in range(3):
            world.clock.advance(60)
            with pytest.raises(Unauthenticated):
                await who(authenticator, token)


@pytest.mark.parametrize("status", [403, 429, 500, 503])
async def test_without_verdicts_the_local_check_decides_and_the_report_says_so(world: World, status: int) -> None:
    world.kube.faults.review_status = status
    async with world.authenticator() as authenticator:
        assert await who(authenticator, world.token())
        state = authenticator.state()
        assert (state.revocation_available, state.reason) == (False, Reason.REVOCATION_UNAVAILABLE)
        assert state.ready
        for _ in range(5):
            await who(authenticator, world.token())
        assert world.kube.requests["review"] == 1
        with pytest.raises(Unauthenticated):
            await who(authenticator, FORGERIES["of another key under the same id"](world))
        world.kube.faults.review_status = None
        world.clock.advance(6)
        await who(authenticator, world.token())
        assert authenticator.state().revocation_available is True


@pytest.mark.parametrize("status", [403, 503])
async def test_required_revocation_lets_nobody_in_without_a_verdict(world: World, status: int) -> None:
    async with world.authenticator(revocation=Revocation.REQUIRED) as authenticator:
        token = world.token()
        assert await who(authenticator, token)
        world.kube.faults.review_status = status
        world.clock.advance(46)
        for _ in range(2):
            with pytest.raises(Unavailable) as caught:
                await who(authenticator, token)
            assert caught.value.reason == "RevocationUnavailable"
        assert not authenticator.state().ok
        world.kube.faults.review_status = None
        world.clock.advance(6)
        assert await who(authenticator, token)


async def test_a_slow_api_server_costs_one_timeout_and_then_nothing(world: World) -> None:
    world.kube.faults.review_delay_seconds = 30
    async with world.authenticator(timeout_seconds=0.2) as authenticator:
        for _ in range(3):
            assert await who(authenticator, world.token())
    assert world.kube.requests["review"] == 1


async def test_required_revocation_without_an_api_server_is_a_wrong_configuration(world: World) -> None:
    with pytest.raises(Misconfigured, match="kubeApi"):
        async with world.authenticator(
            kube_api=None, revocation=Revocation.REQUIRED, jwks="keys.json", bindings_directory=str(world.folder)
        ):
            pass


# Keys


async def test_a_new_key_of_the_cluster_is_found_by_its_id(world: World) -> None:
    async with world.authenticator() as authenticator:
        await who(authenticator, world.token())
        world.kube.rotate_key()
        world.clock.advance(11)
        assert await who(authenticator, world.token())
        assert world.kube.requests["jwks"] == 2


async def test_unknown_key_ids_cannot_make_the_keys_be_read_all_the_time(world: World) -> None:
    async with world.authenticator() as authenticator:
        await who(authenticator, world.token())
        for _ in range(20):
            with pytest.raises(Unauthenticated):
                await who(authenticator, FORGERIES["of an unknown key"](world))
            world.clock.advance(1)
    assert world.kube.requests["jwks"] <= 3


async def test_a_withdrawn_key_counts_no_longer_than_ten_minutes(world: World) -> None:
    token = world.token()
    async with world.authenticator() as authenticator:
        await who(authenticator, token)
        world.kube.rotate_key(forget_old=True)
        world.clock.advance(601)
        with pytest.raises(Unauthenticated):
            await who(authenticator, token)


async def test_known_keys_stay_in_use_while_their_source_is_away(world: World) -> None:
    async with world.authenticator() as authenticator:
        await who(authenticator, world.token())
        world.kube.faults.jwks_status = 500
        world.clock.advance(3_000)
        assert await who(authenticator, world.token())


async def test_without_any_key_the_answer_is_to_ask_again(world: World) -> None:
    world.kube.faults.jwks_status = 500
    async with world.authenticator() as authenticator:
        with pytest.raises(Unavailable):
            await who(authenticator, world.token())
        world.kube.faults.jwks_status = None
        world.clock.advance(2)
        assert await who(authenticator, world.token())


async def test_a_ca_file_that_breaks_adds_nothing_to_an_outage_of_the_api_server(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    ca_file = Path(world.kube.ca_file)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nowhere = f"https://127.0.0.1:{listener.getsockname()[1]}"
    api = KubeApi(nowhere, token_file=None, ca_file=str(ca_file), timeout_seconds=2, watch_seconds=5)
    for spoil in (lambda: ca_file.write_text("half of a certif"), ca_file.unlink):
        spoil()
        with pytest.raises(KubeUnavailable, match="cannot be reached"):
            await api.jwks()
    assert [record.message for record in caplog.records].count("CA file not usable") == 2
    await api.aclose()


async def test_the_api_server_is_believed_only_under_its_ca(
    world: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    make_certificates(other)
    async with world.authenticator(kube_ca_file=str(other / "ca.crt")) as authenticator:
        with pytest.raises(Unavailable):
            await who(authenticator, world.token())


# Users


async def test_a_users_token_makes_it_the_principal(world: World) -> None:
    async with world.authenticator() as authenticator:
        caller = await who(authenticator, world.token(), user=world.user_token())
    assert caller.principal == Principal(USER_ISSUER, "anna")
    assert caller.agent == "kaos://agent/shop/helper"


@pytest.mark.parametrize("subject", ["*", "kaos:shared", "a&agent_id=b", "%", "anna ", "a#b", "ünï"])
async def test_a_users_name_is_literal(world: World, subject: str) -> None:
    async with world.authenticator() as authenticator:
        caller = await who(authenticator, world.token(), user=world.user_token(subject))
    assert caller.principal == Principal(USER_ISSUER, subject)


BAD_USERS: dict[str, dict[str, Any]] = {
    "of an issuer that is not listed": {"iss": "https://elsewhere.example"},
    "for another audience": {"aud": "other"},
    "expired": {"exp": 1},
    "without an expiry": {"exp": None},
    "without a subject": {"sub": None},
    "with an empty subject": {"sub": ""},
    "with a blank subject": {"sub": "  "},
    "with a NUL": {"sub": "a\x00b"},
    "with a subject of 10 KB": {"sub": "x" * 10_240},
    "with a number as a subject": {"sub": 7},
    "with a list as a subject": {"sub": ["anna"]},
}


@pytest.mark.parametrize("flaw", BAD_USERS)
async def test_a_users_token_that_proves_nothing_refuses_the_call(world: World, flaw: str) -> None:
    async with world.authenticator() as authenticator:
        with pytest.raises(Unauthenticated, match="X-Memplane-User"):
            await who(authenticator, world.token(), user=world.user_token(**BAD_USERS[flaw]))


@pytest.mark.parametrize("text", ["", "anna", "*", "a.b.c", "\xe9.\xe9.\xe9"])
async def test_a_users_name_in_plain_text_refuses_the_call(world: World, text: str) -> None:
    async with world.authenticator() as authenticator:
        with pytest.raises(Unauthenticated):
            await who(authenticator, world.token(), user=text)


async def test_an_agents_own_token_is_no_users_token(world: World) -> None:
    async with world.authenticator() as authenticator:
        with pytest.raises(Unauthenticated):
            await who(authenticator, world.token(), user=world.token())
        with pytest.raises(Unauthenticated):
            await who(authenticator, world.user_token())


async def test_a_users_issuer_may_change_its_keys(world: World) -> None:
    async with world.authenticator() as authenticator:
        await who(authenticator, world.token(), user=world.user_token())
        world.user_key = make_key("RS256")
        world.publish_user_keys(world.user_key)
        world.clock.advance(11)
        assert (await who(authenticator, world.token(), user=world.user_token())).principal


def _private_issuer(world: World, ca_file: Path | None) -> UserIssuer:
    """An issuer whose keys are at a URL under a CA that no system knows."""
    world.user_key = world.kube.key
    return UserIssuer(
        issuer=USER_ISSUER,
        audiences=(USER_AUDIENCE,),
        jwks_url=f"{world.kube.url}/openid/v1/jwks",
        jwks_ca_file=None if ca_file is None else str(ca_file),
    )


async def test_a_users_keys_may_come_from_a_url(world: World) -> None:
    issuer = _private_issuer(world, Path(world.kube.ca_file))
    async with world.authenticator(user_issuers=(issuer,)) as authenticator:
        assert (await who(authenticator, world.token(), user=world.user_token())).principal
        world.kube.faults.jwks_status = 302
        world.clock.advance(601)
        assert (await who(authenticator, world.token(), user=world.user_token())).principal


async def test_an_issuers_own_ca_is_trusted_for_its_keys_alone(world: World) -> None:
    issuer = _private_issuer(world, Path(world.kube.ca_file))
    without = _private_issuer(world, None).model_copy(update={"issuer": "https://other.example"})
    async with world.authenticator(user_issuers=(issuer, without)) as authenticator:
        assert (await who(authenticator, world.token(), user=world.user_token())).principal
        with pytest.raises(Unavailable):
            await who(authenticator, world.token(), user=world.user_token(iss="https://other.example"))


async def test_an_issuers_ca_is_read_again_with_its_keys(
    world: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("other")
    make_certificates(folder)
    issuer = _private_issuer(world, folder / "ca.crt")
    async with world.authenticator(user_issuers=(issuer,)) as authenticator:
        with pytest.raises(Unavailable):
            await who(authenticator, world.token(), user=world.user_token())
        shutil.copy(world.kube.ca_file, folder / "ca.crt")
        world.clock.advance(2)
        assert (await who(authenticator, world.token(), user=world.user_token())).principal


async def test_an_issuers_keys_stay_while_its_ca_cannot_be_read(
    world: World, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    ca_file = tmp_path_factory.mktemp("copy") / "ca.crt"
    shutil.copy(world.kube.ca_file, ca_file)
    async with world.authenticator(user_issuers=(_private_issuer(world, ca_file),)) as authenticator:
        await who(authenticator, world.token(), user=world.user_token())
        ca_file.write_text("half of a certif")
        world.clock.advance(601)
        assert (await who(authenticator, world.token(), user=world.user_token())).principal
    assert any("jwksCaFile" in getattr(record, "error", "") for record in caplog.records)


async def test_another_claim_may_name_the_principal(world: World) -> None:
    issuer = world.settings.user_issuers[0].model_copy(update={"claim": "email"})
    async with world.authenticator(user_issuers=(issuer,)) as authenticator:
        caller = await who(authenticator, world.token(), user=world.user_token(email="anna@example.com"))
        assert caller.principal == Principal(USER_ISSUER, "anna@example.com")
        with pytest.raises(Unauthenticated, match="email"):
            await who(authenticator, world.token(), user=world.user_token())


async def test_a_store_without_issuers_takes_no_users(world: World) -> None:
    async with world.authenticator(user_issuers=()) as authenticator:
        with pytest.raises(Unauthenticated, match="no users"):
            await who(authenticator, world.token(), user=world.user_token())


async def test_a_users_token_on_an_admin_route_adds_nothing(world: World) -> None:
    async with world.authenticator() as authenticator:
        caller = await who(authenticator, world.token("boss", ADMIN_AUDIENCE), "admin", user=world.user_token())
    assert caller.principal is None


async def test_no_token_is_ever_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    token, user = world.token(), world.user_token()
    world.kube.faults.review_status = 500
    async with world.authenticator() as authenticator:
        await who(authenticator, token, user=user)
        with pytest.raises(Unauthenticated):
            await who(authenticator, token + "x")
    logged = "\n".join(str(vars(record)) for record in caplog.records)
    assert token[-40:] not in logged
    assert user[-40:] not in logged
