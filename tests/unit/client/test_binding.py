"""Where a client finds its store, and what its binding says."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_service.client import MemoryClient
from memory_service.client.binding import BindingSource, ProjectedBinding, from_environment, from_files, resolve
from memory_service.client.errors import InvalidRequest
from memory_service.client.places import outbox_folder
from memory_service.contract.scopes import FailureMode, Scope, Tools

NOTHING = ProjectedBinding()
DOCUMENT = {
    "store": "team",
    "namespace": "prod",
    "endpoint": "http://from-folder:1",
    "failureMode": "strict",
    "scope": "user",
    "readScopes": ["user", "private"],
    "tools": "all",
    "tokenBudget": 500,
    "rollingSummary": False,
    "somethingNewer": 1,
}
FILES = {"team.json": json.dumps(DOCUMENT)}
ENV = {
    "MEMPLANE_ENDPOINT": "http://from-env:1/",
    "MEMPLANE_FAILURE_MODE": "soft",
    "AGENT_IDENTITY": "kaos://agent/ns/a",
}


def endpoint(**places: object) -> tuple[str, str]:
    given = {"explicit": NOTHING, "files": {}, "env": {}, "pod_namespace": None} | places
    found = resolve("team", **given)  # type: ignore[arg-type]
    return found.endpoint, found.endpoint_source


def test_the_first_place_that_names_an_endpoint_wins() -> None:
    explicit = ProjectedBinding(endpoint="http://mine:1")
    assert endpoint(explicit=explicit, files=FILES, env=ENV, pod_namespace="x") == ("http://mine:1", "argument")
    assert endpoint(files=FILES, env=ENV, pod_namespace="x") == ("http://from-folder:1", "binding folder")
    assert endpoint(env=ENV, pod_namespace="x") == ("http://from-env:1", "MEMPLANE_ENDPOINT")
    assert endpoint(pod_namespace="x") == ("http://team-memory.x.svc:8800", "service name")
    assert endpoint() == ("http://127.0.0.1:8800", "default")


def test_the_namespace_comes_from_the_identity_when_nothing_names_it() -> None:
    assert endpoint(env={"AGENT_IDENTITY": "kaos://agent/ns/a"})[0] == "http://team-memory.ns.svc:8800"
    assert endpoint(env={"AGENT_IDENTITY": "kaos://agent/local/default"})[1] == "default"


def test_the_folder_says_what_the_agent_may_do() -> None:
    found = resolve("team", explicit=NOTHING, files=FILES, env=ENV, pod_namespace=None)
    assert found.failure_mode is FailureMode.STRICT
    assert found.scope is Scope.USER
    assert found.read_scopes == (Scope.USER, Scope.PRIVATE)
    assert found.tools is Tools.ALL
    assert (found.token_budget, found.rolling_summary) == (500, False)


def test_variables_of_a_templated_agent_say_the_same() -> None:
    env = {
        "MEMPLANE_SCOPE": "shared",
        "MEMPLANE_READ_SCOPES": "shared, private",
        "MEMPLANE_TOOLS": "read",
        "MEMPLANE_FAILURE_MODE": "strict",
        "MEMPLANE_TOKEN_BUDGET": "99",
        "MEMPLANE_ROLLING_SUMMARY": "false",
    }
    found = resolve(None, explicit=NOTHING, files={}, env=env, pod_namespace=None)
    assert found.read_scopes == (Scope.SHARED, Scope.PRIVATE)
    assert (found.token_budget, found.rolling_summary, found.failure_mode) == (99, False, FailureMode.STRICT)


def test_a_variable_that_cannot_be_used_is_named() -> None:
    with pytest.raises(InvalidRequest, match="MEMPLANE_FAILURE_MODE"):
        resolve(None, explicit=NOTHING, files={}, env={"MEMPLANE_FAILURE_MODE": "hard"}, pod_namespace=None)


def test_several_stores_need_a_name_and_the_name_chooses() -> None:
    files = FILES | {"other.json": json.dumps({"endpoint": "http://other:1"})}
    assert resolve("other", explicit=NOTHING, files=files, env={}, pod_namespace=None).endpoint == "http://other:1"
    with pytest.raises(InvalidRequest, match="name one"):
        resolve(None, explicit=NOTHING, files=files, env={}, pod_namespace=None)


def test_a_projected_authority_belongs_to_its_binding() -> None:
    files = FILES | {"ca.crt": "PEM"}
    assert resolve("team", explicit=NOTHING, files=files, env={}, pod_namespace=None).ca == "PEM"
    assert resolve("else", explicit=NOTHING, files=files, env={}, pod_namespace=None).ca is None


def test_a_folder_that_appears_later_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "memplane"
    source = BindingSource("team", explicit=NOTHING, folder=folder, env={}, namespace_file=str(tmp_path / "none"))
    assert source.current().endpoint_source == "default"
    assert source.token() is None
    folder.mkdir()
    (folder / "team.json").write_text(json.dumps(DOCUMENT))
    (folder / "token").write_text("t1\n")
    assert source.current().endpoint == "http://from-folder:1"
    assert source.token() == "t1"


def test_a_token_is_read_again_when_its_link_is_swapped(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"v{number}").mkdir()
        (tmp_path / f"v{number}" / "token").write_text(f"token-{number}")
    os.symlink("v1", tmp_path / "..data")
    os.symlink("..data/token", tmp_path / "token")
    source = BindingSource(None, explicit=NOTHING, folder=tmp_path, env={})
    assert source.token() == "token-1"
    os.symlink("v2", tmp_path / "..new")
    os.replace(tmp_path / "..new", tmp_path / "..data")
    assert source.token() == "token-2"


def test_a_binding_that_turns_into_nonsense_leaves_the_last_one_in_force(tmp_path: Path) -> None:
    (tmp_path / "team.json").write_text(json.dumps(DOCUMENT))
    source = BindingSource("team", explicit=NOTHING, folder=tmp_path, env={})
    assert source.current().endpoint == "http://from-folder:1"
    (tmp_path / "team.json").write_text("{ half a docu")
    assert source.current().endpoint == "http://from-folder:1"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, "9" * 5_000, "\ufeff{}", '{"scope": "all"}'])
def test_a_document_that_is_no_binding_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match="binding"):
        from_files({"team.json": text}, None)


@given(
    st.dictionaries(
        st.sampled_from(["MEMPLANE_SCOPE", "MEMPLANE_TOOLS", "MEMPLANE_TOKEN_BUDGET", "MEMPLANE_READ_SCOPES"]),
        st.text(max_size=20) | st.sampled_from(["private", "user,shared", "all", "100", "9" * 5_000, "\udcff"]),
    )
)
def test_whatever_variables_say_they_are_a_binding_or_refused_by_name(env: dict[str, str]) -> None:
    try:
        found: ProjectedBinding | InvalidRequest = from_environment(env)
    except InvalidRequest as refused:
        found = refused
    if isinstance(found, InvalidRequest):
        assert {error.field for error in found.problem.errors} <= env.keys()
    else:
        assert found.scope is None or found.scope.value == env["MEMPLANE_SCOPE"]


def test_a_client_can_be_made_for_an_address_that_is_no_text(tmp_path: Path) -> None:
    assert outbox_folder({"HOME": str(tmp_path)}, None, "http://a\udcff", None).name


@pytest.mark.parametrize("loss", ["folder", "document", "bytes"])
def test_a_binding_that_goes_away_leaves_the_last_one_in_force(loss: str, tmp_path: Path) -> None:
    folder = tmp_path / "binding"
    folder.mkdir()
    (folder / "team.json").write_text(json.dumps(DOCUMENT))
    (folder / "else.json").write_text(json.dumps({"store": "else", "endpoint": "http://else:1"}))
    source = BindingSource("team", explicit=NOTHING, folder=folder, env={})
    before = source.current()
    if loss == "folder":
        folder.rename(tmp_path / "away")
    elif loss == "document":
        (folder / "team.json").unlink()
    else:
        (folder / "team.json").write_bytes(b"\xff")
    assert source.current() == before
    folder.mkdir(exist_ok=True)
    (folder / "team.json").write_text(json.dumps(DOCUMENT | {"endpoint": "http://mended:1"}))
    assert source.current().endpoint == "http://mended:1"


async def test_a_client_binds_by_store_name(tmp_path: Path) -> None:
    (tmp_path / "team.json").write_text(json.dumps(DOCUMENT))
    async with MemoryClient.bind("team", binding_folder=tmp_path, env={}) as client:
        assert client.binding.endpoint == "http://from-folder:1"
        assert client.binding.store == "team"


def test_two_agents_never_share_an_outbox(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    folders = set()
    for agent in ("kaos://agent/a/one", "kaos://agent/a/two"):
        for store in ("s1", "s2"):
            client = MemoryClient.bind(store, agent=agent, env=env, binding_folder=tmp_path / "none")
            assert client.outbox is not None
            folders.add(client.outbox.folder)
    assert len(folders) == 4
    assert all(tmp_path in folder.parents for folder in folders)


def token_for(audience: str | list[str]) -> str:
    """What a ServiceAccount token is like, as far as a client reads it."""
    claims = base64.urlsafe_b64encode(json.dumps({"aud": audience}).encode()).decode().rstrip("=")
    return f"e30.{claims}.e30"


def foreign(folder: Path, projected: str, **places: str) -> bool:
    (folder / "token").write_text(projected)
    (folder / "binding.json").write_text(json.dumps(DOCUMENT | {"audience": "memplane:prod/team"}))
    source = BindingSource(None, explicit=NOTHING, folder=folder, env={}, **places)  # type: ignore[arg-type]
    return source.is_foreign(source.token(), source.current())


def test_a_projected_token_for_another_store_is_known(tmp_path: Path) -> None:
    assert foreign(tmp_path, token_for("memplane:prod/other"))
    assert foreign(tmp_path, token_for(["memplane:prod/other", "x"]))
    assert not foreign(tmp_path, token_for("memplane:prod/team"))
    assert not foreign(tmp_path, token_for(["x", "memplane:prod/team"]))


def test_a_token_that_says_nothing_or_that_somebody_chose_is_used(tmp_path: Path) -> None:
    assert not foreign(tmp_path, "a-static-token")
    assert not foreign(tmp_path, token_for([]))
    admin = token_for("memplane-admin:prod/team")
    (tmp_path / "admin").write_text(admin)
    assert not foreign(tmp_path, token_for("memplane:prod/other"), token=admin)
    assert not foreign(tmp_path, token_for("memplane:prod/other"), token_file=str(tmp_path / "admin"))


@pytest.mark.parametrize("content", [None, "", " \n", b"\xff"])
def test_a_token_file_that_was_named_and_has_no_token_is_refused_when_the_client_is_made(
    tmp_path: Path, content: str | bytes | None
) -> None:
    path = tmp_path / "agent-token"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidRequest, match=r"`token_file` '.*agent-token'.*name one, or leave it out") as refused:
        MemoryClient(token_file=path, env={})
    assert [error.field for error in refused.value.problem.errors] == ["token_file"]


def test_a_token_file_that_goes_away_later_ends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "agent-token"
    path.write_text("t")
    source = BindingSource(None, explicit=NOTHING, env={}, folder=tmp_path, token_file=path)
    assert source.token() == "t"
    path.unlink()
    assert source.token() is None
    path.write_text("new")
    assert source.token() == "new"


def test_stores_that_are_named_by_their_address_are_not_taken_for_one(tmp_path: Path) -> None:
    def of(endpoint: str) -> str:
        return BindingSource(None, explicit=ProjectedBinding(endpoint=endpoint), folder=tmp_path, env={}).agent()

    assert of("http://127.0.0.1:1") == of("http://127.0.0.1:1")
    assert of("http://127.0.0.1:2") != of("http://127.0.0.1:1")
