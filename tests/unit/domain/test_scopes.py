"""Which owner a call reads, writes and erases, case by case and for any id at all."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_service.contract.bindings import BindingPolicy
from memory_service.contract.ids import SESSION_PATTERN
from memory_service.contract.scopes import Scope
from memory_service.contract.sessions import ErasureSubject
from memory_service.contract.verbs import RecallMode
from memory_service.domain import generations, scopes
from memory_service.domain.callers import Caller, CallerKind, Principal
from memory_service.domain.owners import (
    AgentErasure,
    AgentPairs,
    Owner,
    PairErasure,
    PrincipalErasure,
    PrincipalPairs,
    SessionErasure,
    agent_mark,
)
from memory_service.domain.scopes import SkipReason
from memory_service.errors import Forbidden, InvalidRequest, ScopeUnresolved

AGENT = "kaos://agent/shop/helper"
OTHER_AGENT = "kaos://agent/shop/other"
ANNA = Principal("https://id.example", "anna")
BERT = Principal("https://id.example", "bert")
ALL = (Scope.PRIVATE, Scope.USER, Scope.SHARED, Scope.SESSION)
NASTY = ["*", " ", "\t", "kaos:shared", "\x00", "x" * 10_240, "a&agent_id=b", "%", "_", "", "a\n", "é", "../a", "'--"]


def agent(
    principal: Principal | None = None,
    *,
    scope: Scope = Scope.PRIVATE,
    read: tuple[Scope, ...] = (),
    share: bool = False,
    identity: str = AGENT,
    write: tuple[Scope, ...] = (),
) -> Caller:
    policy = BindingPolicy(scope=scope, read_scopes=read, share_across_users=share)
    return Caller(CallerKind.AGENT, identity, identity, principal, policy, write_scopes=write)


ADMIN = Caller(CallerKind.ADMIN, "local")
OPERATOR = Caller(CallerKind.OPERATOR, "operator")


# Writing


@pytest.mark.parametrize(
    ("caller", "scope", "expected"),
    [
        (agent(), None, Owner(Scope.PRIVATE, AGENT)),
        (agent(ANNA), None, Owner(Scope.PRIVATE, AGENT, ANNA.hash)),
        (agent(ANNA, scope=Scope.USER), None, Owner(Scope.USER, principal=ANNA.hash)),
        (agent(ANNA, scope=Scope.SHARED), None, Owner(Scope.SHARED)),
        (agent(scope=Scope.SHARED), Scope.SHARED, Owner(Scope.SHARED)),
        (agent(), Scope.SESSION, Owner(Scope.SESSION, AGENT, "", "s1")),
        (agent(ANNA, scope=Scope.SHARED), Scope.SESSION, Owner(Scope.SESSION, AGENT, ANNA.hash, "s1")),
        (agent(ANNA, scope=Scope.SESSION), None, Owner(Scope.SESSION, AGENT, ANNA.hash, "s1")),
        (agent(ANNA, write=ALL), Scope.USER, Owner(Scope.USER, principal=ANNA.hash)),
    ],
)
def test_a_write_goes_to_the_owner_of_its_scope(caller: Caller, scope: Scope | None, expected: Owner) -> None:
    assert scopes.write_owner(caller, scope, "s1") == expected
    in_workspace = scopes.write_owner(caller, scope, "s1", "w1")
    assert in_workspace.workspace == "w1"
    assert in_workspace != expected


@pytest.mark.parametrize(("own", "asked"), [(own, asked) for own in ALL for asked in ALL])
def test_a_body_may_name_only_the_bindings_own_scope_or_the_session(own: Scope, asked: Scope) -> None:
    caller = agent(ANNA, scope=own, read=ALL)
    if asked in (own, Scope.SESSION):
        assert scopes.write_owner(caller, asked, "s1").scope is asked
    else:
        with pytest.raises(Forbidden, match="not writable"):
            scopes.write_owner(caller, asked, "s1")


def test_user_scope_without_a_principal_is_unresolved() -> None:
    with pytest.raises(ScopeUnresolved) as caught:
        scopes.write_owner(agent(scope=Scope.USER))
    assert caught.value.errors[0].field == "X-Memplane-User"


def test_session_scope_without_a_session_is_unresolved() -> None:
    with pytest.raises(ScopeUnresolved) as caught:
        scopes.write_owner(agent(), Scope.SESSION)
    assert caught.value.errors[0].field == "session_id"


@pytest.mark.parametrize("caller", [ADMIN, OPERATOR])
def test_only_agents_own_memory(caller: Caller) -> None:
    for refused in (
        lambda: scopes.write_owner(caller),
        lambda: scopes.home_owner(caller),
        lambda: scopes.read_plan(caller),
        lambda: scopes.forget_erasure(caller),
        lambda: scopes.generation_owners(caller),
        lambda: scopes.session_owner(caller, "s1"),
    ):
        with pytest.raises(Forbidden):
            refused()


def test_two_agents_and_two_users_with_one_session_id_have_four_sessions() -> None:
    callers = [agent(who, identity=identity) for who in (ANNA, BERT) for identity in (AGENT, OTHER_AGENT)]
    assert len({scopes.session_owner(caller, "s1") for caller in callers}) == 4


@pytest.mark.parametrize("scope", ALL)
@pytest.mark.parametrize("workspace", [None, "w1"])
def test_facts_that_are_extracted_later_go_where_the_call_would_have_put_them(
    scope: Scope, workspace: str | None
) -> None:
    caller = agent(ANNA, scope=scope)
    session = scopes.session_owner(caller, "s1", workspace)
    assert scopes.fact_owner(session, scope) == scopes.write_owner(caller, None, "s1", workspace)


def test_a_session_without_a_principal_has_no_user_to_give_facts_to() -> None:
    with pytest.raises(ScopeUnresolved):
        scopes.fact_owner(scopes.session_owner(agent(), "s1"), Scope.USER)


# Reading


def test_a_private_read_of_a_user_sees_its_own_pair_and_the_pair_without_a_principal() -> None:
    (read,) = scopes.read_plan(agent(ANNA)).reads
    assert read.facts == (Owner(Scope.PRIVATE, AGENT, ANNA.hash), Owner(Scope.PRIVATE, AGENT))
    assert read.episodes == read.facts


def test_a_private_read_without_a_principal_sees_no_users_pair() -> None:
    (read,) = scopes.read_plan(agent()).reads
    assert read.facts == (Owner(Scope.PRIVATE, AGENT),)


def test_a_lifted_fence_reads_all_pairs_of_the_same_agent() -> None:
    (read,) = scopes.read_plan(agent(ANNA, share=True), workspace="w1").reads
    assert read.facts == (AgentPairs(AGENT, "w1"), AgentPairs(AGENT))
    assert read.episodes == read.facts


def test_a_user_read_finds_the_users_facts_and_what_it_said_to_any_agent() -> None:
    (read,) = scopes.read_plan(agent(ANNA, scope=Scope.USER)).reads
    assert read.facts == (Owner(Scope.USER, principal=ANNA.hash),)
    assert read.episodes == (PrincipalPairs(ANNA.hash),)


def test_a_shared_read_never_finds_episodes() -> None:
    (read,) = scopes.read_plan(agent(ANNA, scope=Scope.SHARED, share=True)).reads
    assert read.facts == (Owner(Scope.SHARED),)
    assert read.episodes == ()


def test_a_session_read_looks_at_that_session_alone() -> None:
    (read,) = scopes.read_plan(agent(ANNA, scope=Scope.SESSION), session_id="s1").reads
    assert read.facts == read.episodes == (Owner(Scope.SESSION, AGENT, ANNA.hash, "s1"),)


@pytest.mark.parametrize("scope", ALL)
def test_a_read_that_names_a_workspace_sees_it_and_the_unpartitioned_part(scope: Scope) -> None:
    caller = agent(ANNA, scope=scope)
    (named,) = scopes.read_plan(caller, session_id="s1", workspace="w1").reads
    (unnamed,) = scopes.read_plan(caller, session_id="s1").reads
    assert {query.workspace for query in named.facts} == {"w1", ""}
    assert {query.workspace for query in unnamed.facts} == {""}
    parts = [{query.workspace for query in read.episodes} for read in (named, unnamed)]
    assert parts == ([set(), set()] if scope is Scope.SHARED else [{"w1", ""}, {""}])


@pytest.mark.parametrize("asked", [s for n in range(1, 5) for s in itertools.combinations(ALL, n)])
@pytest.mark.parametrize("readable", [(Scope.PRIVATE,), (Scope.USER, Scope.SHARED), ALL])
def test_a_read_stays_within_the_read_scopes(readable: tuple[Scope, ...], asked: tuple[Scope, ...]) -> None:
    caller = agent(ANNA, scope=readable[0], read=readable)
    if set(asked) <= set(readable):
        plan = scopes.read_plan(caller, asked, "s1")
        assert tuple(read.scope for read in plan.reads) == asked
    else:
        with pytest.raises(Forbidden, match="not readable"):
            scopes.read_plan(caller, asked, "s1")


def test_defaults_without_an_owner_are_left_out_and_named() -> None:
    plan = scopes.read_plan(agent(read=ALL))
    assert [read.scope for read in plan.reads] == [Scope.PRIVATE, Scope.SHARED]
    assert {skipped.scope: skipped.reason for skipped in plan.skipped} == {
        Scope.USER: SkipReason.PRINCIPAL_MISSING,
        Scope.SESSION: SkipReason.SESSION_MISSING,
    }


def test_a_scope_without_an_owner_that_was_asked_for_is_unresolved() -> None:
    for scope in (Scope.USER, Scope.SESSION):
        with pytest.raises(ScopeUnresolved):
            scopes.read_plan(agent(read=ALL), (Scope.PRIVATE, scope))


def test_a_read_whose_every_default_has_no_owner_is_unresolved() -> None:
    with pytest.raises(ScopeUnresolved):
        scopes.read_plan(agent(scope=Scope.USER))
    with pytest.raises(ScopeUnresolved):
        scopes.read_plan(agent(read=(Scope.USER, Scope.SESSION)))


def test_no_scope_at_all_is_a_wrong_request_and_not_every_scope() -> None:
    with pytest.raises(InvalidRequest):
        scopes.read_plan(agent(ANNA, read=ALL), ())


@pytest.mark.parametrize(
    ("mode", "asked", "expected"),
    [
        (RecallMode.INHERIT, None, ALL),
        (RecallMode.INHERIT, (Scope.SHARED,), (Scope.SHARED,)),
        (RecallMode.REPLACE, (Scope.SHARED,), (Scope.SHARED,)),
        (RecallMode.APPEND, (Scope.SHARED,), (Scope.PRIVATE, Scope.SHARED)),
        (RecallMode.APPEND, (Scope.PRIVATE,), (Scope.PRIVATE,)),
        (RecallMode.APPEND, None, ALL),
        (RecallMode.DISABLE, None, ()),
        (RecallMode.DISABLE, ALL, ()),
    ],
)
def test_each_mode_gives_its_union(
    mode: RecallMode, asked: tuple[Scope, ...] | None, expected: tuple[Scope, ...]
) -> None:
    plan = scopes.read_plan(agent(ANNA, read=ALL), asked, "s1", mode=mode)
    assert tuple(read.scope for read in plan.reads) == expected


# By id


@pytest.mark.parametrize(
    ("caller", "owner", "reads", "changes"),
    [
        (agent(ANNA), Owner(Scope.PRIVATE, AGENT, ANNA.hash), True, True),
        (agent(ANNA), Owner(Scope.PRIVATE, AGENT), True, False),
        (agent(ANNA), Owner(Scope.PRIVATE, AGENT, BERT.hash), False, False),
        (agent(), Owner(Scope.PRIVATE, AGENT, ANNA.hash), False, False),
        (agent(ANNA, share=True), Owner(Scope.PRIVATE, AGENT, BERT.hash), True, False),
        (agent(ANNA, share=True), Owner(Scope.PRIVATE, OTHER_AGENT, ANNA.hash), False, False),
        (agent(ANNA), Owner(Scope.PRIVATE, AGENT, ANNA.hash, workspace="w"), True, True),
        (agent(ANNA), Owner(Scope.USER, principal=ANNA.hash), False, False),
        (agent(ANNA, scope=Scope.USER), Owner(Scope.USER, principal=ANNA.hash), True, True),
        (agent(ANNA, scope=Scope.USER), Owner(Scope.USER, principal=BERT.hash), False, False),
        (agent(scope=Scope.USER), Owner(Scope.USER), False, False),
        (agent(ANNA, read=ALL), Owner(Scope.USER, principal=ANNA.hash), True, False),
        (agent(), Owner(Scope.SESSION, AGENT, "", "s1"), True, True),
        (agent(ANNA, read=ALL), Owner(Scope.SESSION, AGENT, BERT.hash, "s1"), False, False),
        (agent(ANNA, read=ALL), Owner(Scope.SESSION, OTHER_AGENT, ANNA.hash, "s1"), False, False),
        (agent(read=ALL), Owner(Scope.SHARED), True, False),
        (agent(), Owner(Scope.SHARED), False, False),
        (ADMIN, Owner(Scope.PRIVATE, AGENT, ANNA.hash), True, True),
        (OPERATOR, Owner(Scope.PRIVATE, AGENT, ANNA.hash), False, False),
    ],
)
def test_a_row_found_by_id_obeys_the_same_keys(caller: Caller, owner: Owner, reads: bool, changes: bool) -> None:
    assert (scopes.may_read(caller, owner), scopes.may_change(caller, owner)) == (reads, changes)


def test_a_writer_may_change_its_own_shared_facts_only() -> None:
    writer = agent(scope=Scope.SHARED)
    assert scopes.may_change(writer, Owner(Scope.SHARED), written_by=AGENT)
    assert not scopes.may_change(writer, Owner(Scope.SHARED), written_by=OTHER_AGENT)
    assert not scopes.may_change(writer, Owner(Scope.SHARED), written_by="")
    assert scopes.may_read(writer, Owner(Scope.SHARED), written_by=OTHER_AGENT)


def test_sessions_jobs_and_receipts_belong_to_the_exact_pair() -> None:
    assert scopes.owns(agent(ANNA, scope=Scope.SHARED), Owner(Scope.PRIVATE, AGENT, ANNA.hash))
    assert not scopes.owns(agent(ANNA, share=True), Owner(Scope.PRIVATE, AGENT))
    assert not scopes.owns(agent(ANNA), Owner(Scope.SHARED))
    assert scopes.owns(ADMIN, Owner(Scope.PRIVATE, AGENT))


# Erasing


@pytest.mark.parametrize(
    ("caller", "scope", "session_id", "expected"),
    [
        (agent(ANNA), None, None, PairErasure(AGENT, ANNA.hash)),
        (agent(), Scope.PRIVATE, None, PairErasure(AGENT, "")),
        (agent(ANNA), Scope.SESSION, "s1", SessionErasure(AGENT, ANNA.hash, "s1")),
        (agent(ANNA, scope=Scope.USER), None, None, PrincipalErasure(ANNA.hash)),
        (agent(ANNA, scope=Scope.SHARED), Scope.SESSION, "s1", SessionErasure(AGENT, ANNA.hash, "s1")),
    ],
)
def test_forget_covers_its_scope(caller: Caller, scope: Scope | None, session_id: str | None, expected: object) -> None:
    assert scopes.forget_erasure(caller, scope, session_id) == expected


@pytest.mark.parametrize(
    ("caller", "scope", "session_id", "error"),
    [
        (agent(scope=Scope.SHARED), None, None, Forbidden),
        (agent(ANNA, write=ALL), Scope.SHARED, None, Forbidden),
        (agent(ANNA), Scope.USER, None, Forbidden),
        (agent(ANNA, scope=Scope.USER), Scope.PRIVATE, None, Forbidden),
        (agent(scope=Scope.USER), None, None, ScopeUnresolved),
        (agent(), Scope.SESSION, None, ScopeUnresolved),
        (agent(), None, "s1", InvalidRequest),
        (agent(), Scope.PRIVATE, "s1", InvalidRequest),
        (agent(), Scope.SESSION, "*", InvalidRequest),
    ],
)
def test_forget_refuses_what_is_not_the_callers(
    caller: Caller, scope: Scope | None, session_id: str | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        scopes.forget_erasure(caller, scope, session_id)


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (ErasureSubject(principal=ANNA.display), PrincipalErasure(ANNA.hash)),
        (ErasureSubject(agent=AGENT), AgentErasure(AGENT)),
        (ErasureSubject(agent=AGENT, session="s1"), SessionErasure(AGENT, "", "s1")),
        (
            ErasureSubject(agent=AGENT, session="s1", principal=ANNA.display),
            SessionErasure(AGENT, ANNA.hash, "s1"),
        ),
    ],
)
def test_an_admin_erases_by_subject(subject: ErasureSubject, expected: object) -> None:
    assert scopes.subject_erasure(ADMIN, subject) == expected
    with pytest.raises(Forbidden):
        scopes.subject_erasure(agent(ANNA), subject)


def test_a_subject_may_hold_the_mark_that_parts_it_from_its_issuer() -> None:
    principal = Principal("local", "a#b")
    assert scopes.subject_erasure(ADMIN, ErasureSubject(principal=principal.display)) == PrincipalErasure(
        principal.hash
    )


def test_every_erasure_that_covers_a_call_moves_an_owner_of_its_generation() -> None:
    owners = set(scopes.generation_owners(agent(ANNA), "s1"))
    for erasure in (
        PairErasure(AGENT, ANNA.hash),
        PrincipalErasure(ANNA.hash),
        AgentErasure(AGENT),
        SessionErasure(AGENT, ANNA.hash, "s1"),
    ):
        assert set(erasure.marks) & owners
    for foreign in (
        PairErasure(AGENT, ""),
        PairErasure(AGENT, BERT.hash),
        PrincipalErasure(BERT.hash),
        AgentErasure(OTHER_AGENT),
        SessionErasure(AGENT, ANNA.hash, "s2"),
        SessionErasure(AGENT, "", "s1"),
    ):
        assert not set(foreign.marks) & owners


# Any id at all

free_text = st.one_of(
    st.sampled_from(NASTY), st.text(max_size=60), st.binary(max_size=20).map(lambda b: b.decode("latin-1"))
)
principals = st.one_of(st.none(), st.builds(Principal, free_text, free_text))
labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
identities = st.builds("kaos://agent/{}/{}".format, labels, labels)
callers = st.builds(
    agent, principals, scope=st.sampled_from(ALL), read=st.just(ALL), identity=identities, share=st.booleans()
)
sessions = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,20}", fullmatch=True)


def key(caller: Caller) -> tuple[object, ...]:
    return (caller.agent, caller.principal)


@given(callers, callers, sessions, sessions)
def test_no_two_callers_have_one_pair_or_one_session(one: Caller, two: Caller, first: str, second: str) -> None:
    assert (scopes.home_owner(one) == scopes.home_owner(two)) == (key(one) == key(two))
    same = key(one) == key(two) and first == second
    assert (scopes.session_owner(one, first) == scopes.session_owner(two, second)) == same
    hashes = {generations.owner_hash(scopes.home_owner(caller)) for caller in (one, two)}
    assert (len(hashes) == 1) == (key(one) == key(two))


@given(callers, callers, sessions)
def test_no_plan_reaches_a_pair_of_another_agent_or_a_fenced_user(one: Caller, two: Caller, session_id: str) -> None:
    plan = scopes.read_plan(one, None, session_id)
    foreign = scopes.home_owner(two)
    for read in plan.reads:
        assert Scope.SHARED is not read.scope or not read.episodes
        for query in (*read.facts, *read.episodes):
            match query:
                case Owner(scope=Scope.PRIVATE):
                    assert query.agent == one.agent
                    assert query.principal in ("", one.principal_hash)
                    is_mine = foreign.agent == one.agent and foreign.principal in ("", one.principal_hash)
                    assert query != foreign or is_mine
                case AgentPairs():
                    assert query.agent == one.agent
                    assert one.policy.share_across_users
                case PrincipalPairs():
                    assert one.principal is not None
                    assert query.principal == one.principal_hash
                case Owner(scope=Scope.USER):
                    assert query.principal == one.principal_hash != ""
                case Owner(scope=Scope.SESSION):
                    assert query == scopes.session_owner(one, session_id)
                case Owner():
                    assert query == Owner(Scope.SHARED)


@given(free_text.filter(lambda text: not text.isascii() or not text.isalnum()), callers)
def test_an_id_is_refused_or_taken_literally(text: str, caller: Caller) -> None:
    is_id = re.fullmatch(SESSION_PATTERN, text) is not None and not text.endswith("\n")
    attempts: tuple[Callable[[], str], ...] = (
        lambda: scopes.session_owner(caller, text).session,
        lambda: scopes.home_owner(caller, text).workspace,
        lambda: scopes.read_plan(caller, (Scope.SHARED,), text, text).reads[0].facts[0].workspace,
    )
    for attempt in attempts:
        if is_id:
            assert attempt() == text
        else:
            with pytest.raises(InvalidRequest):
                attempt()


@pytest.mark.parametrize("text", NASTY)
def test_a_principal_named_like_a_wildcard_is_one_literal_principal(text: str) -> None:
    owner = scopes.home_owner(agent(Principal("local", text)))
    assert owner != scopes.home_owner(agent())
    assert owner != Owner(Scope.SHARED)
    assert len(owner.principal) == 64
    assert set(owner.principal) <= set("0123456789abcdef")


def test_the_parts_of_a_principal_cannot_be_shifted_into_each_other() -> None:
    assert Principal("a", "bc").hash != Principal("ab", "c").hash
    assert Principal("a#b", "c").hash != Principal("a", "b#c").hash


def test_the_mark_of_an_agent_is_nobodys_session() -> None:
    with pytest.raises(InvalidRequest):
        scopes.session_owner(agent(), "")
    assert agent_mark(AGENT) != scopes.home_owner(agent())
