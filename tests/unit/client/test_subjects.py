"""Who an agent is to the outbox on its machine."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from memory_service.client.binding import BindingSource, ProjectedBinding
from memory_service.client.places import outbox_folder
from memory_service.client.subjects import agent_of


def token(subject: str, salt: str = "") -> str:
    claims = json.dumps({"iss": "https://kubernetes.default", "sub": subject, "salt": salt})
    return f"e30.{base64.urlsafe_b64encode(claims.encode()).decode().rstrip('=')}.c2lnbmF0dXJl"


def test_an_agent_is_the_same_under_every_token_of_its_service_account() -> None:
    ada = "system:serviceaccount:team:ada"
    assert agent_of(token(ada, "1"), None, "team") == agent_of(token(ada, "2"), "claimed", "team")
    others = [token("system:serviceaccount:team:news"), "static-ada", "static-news", None]
    assert len({agent_of(other, None, "team") for other in (token(ada), *others)}) == 5
    assert agent_of(token(ada), None, "team") != agent_of(token(ada), None, "other store")


def test_a_static_token_is_known_by_its_hash_and_not_written_down() -> None:
    assert "static-ada" not in agent_of("static-ada", None, None)


def test_a_token_file_that_is_away_for_a_moment_makes_no_other_agent(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("static-ada")
    source = BindingSource("team", explicit=ProjectedBinding(), folder=tmp_path, env={})
    ada = source.agent()
    (tmp_path / "token").unlink()
    assert source.agent() == ada
    (tmp_path / "token").write_text("another")
    assert source.agent() != ada


def test_who_waits_for_a_token_is_neither_who_it_claims_to_be_nor_another_who_waits(tmp_path: Path) -> None:
    def waiting(store: str, file: str, claimed: str) -> BindingSource:
        env = {"MEMPLANE_TOKEN_FILE": str(tmp_path / file), "AGENT_IDENTITY": claimed}
        return BindingSource(store, explicit=ProjectedBinding(), folder=tmp_path / "none", env=env)

    each = [("team", "a", "ada"), ("other", "a", "ada"), ("team", "b", "ada"), ("team", "a", "news")]
    names = {waiting(*one).agent() for one in each}
    assert len(names) == 4
    assert names.isdisjoint(agent_of(None, claimed, store) for store, _, claimed in each)
    ada = waiting("team", "a", "ada")
    assert ada.agent() == ada.unseen_agent() == waiting("team", "a", "ada").agent()
    (tmp_path / "a").write_text("static-ada")
    assert ada.agent() == agent_of("static-ada", None, "team")
    (tmp_path / "a").unlink()
    assert ada.agent() == agent_of("static-ada", None, "team"), "a token that was seen is not unseen again"


def test_a_home_that_cannot_be_searched_is_like_one_that_cannot_be_written(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    (locked / "home").write_text("no folder: looking below it fails as it does without permission")
    assert outbox_folder({"HOME": str(locked / "home")}, "s", None, None).name
