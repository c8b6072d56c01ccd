"""The outbox on disk."""

from __future__ import annotations

import base64
import json
import multiprocessing
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from memory_service.client.entries import NOBODY, lane_of
from memory_service.client.errors import InvalidRequest, OutboxFull, OutboxUnusable
from memory_service.client.outbox import Outbox
from memory_service.contract.problems import Problem

REFUSAL = Problem(type="https://memplane.dev/problems/forbidden", title="no", status=403, detail="no")


def put(outbox: Outbox, key: str, session: str | None = "s1", text: str = "hello", **more: Any) -> int:
    return outbox.put(
        verb="write",
        body={"session_id": session, "turns": [{"role": "user", "content": text}]},
        idempotency_key=key,
        session_id=session,
        **more,
    )


def drain(outbox: Outbox) -> list[str]:
    keys, after = [], 0
    while (entry := outbox.next_waiting(after)) is not None:
        keys.append(entry.idempotency_key)
        after = entry.id
    return keys


def test_entries_outlive_the_object_that_put_them(tmp_path: Path) -> None:
    put(Outbox(tmp_path / "box"), "k1", user="ada", generation="g7")
    entry = Outbox(tmp_path / "box").next_waiting()
    assert entry is not None
    assert (entry.idempotency_key, entry.user, entry.generation, entry.session_id) == ("k1", "ada", "g7", "s1")
    assert entry.body["turns"][0]["content"] == "hello"


def test_putting_the_same_key_again_keeps_one_entry(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    assert put(outbox, "k1") == put(outbox, "k1")
    assert outbox.waiting() == 1


def test_one_key_of_two_users_or_two_verbs_is_two_entries(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    entries = [put(outbox, "k1", user="ada"), put(outbox, "k1", user="bob"), put(outbox, "k1")]
    fact = {"text": "Ada likes tea"}
    entries.append(outbox.put(verb="remember", body=fact, idempotency_key="k1", user="ada"))
    assert len(set(entries)) == outbox.waiting() == 4


def test_a_key_with_another_body_is_refused_and_the_first_one_waits_on(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    put(outbox, "k1", text="one")
    for other in ({"text": "two"}, {"text": "one", "session": "s2"}):
        with pytest.raises(InvalidRequest, match="another request with this key"):
            put(outbox, "k1", **other)
    entry = outbox.next_waiting()
    assert entry is not None
    assert (entry.body["turns"][0]["content"], outbox.waiting()) == ("one", 1)


def test_a_repeat_of_what_was_set_aside_waits_again(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    outbox.set_aside(put(outbox, "k1"), REFUSAL)
    put(outbox, "k1")
    assert (drain(outbox), outbox.refused()) == (["k1"], ())


def test_what_an_older_version_left_is_carried_over(tmp_path: Path) -> None:
    old = (
        "CREATE TABLE entries (id INTEGER PRIMARY KEY AUTOINCREMENT, lane TEXT NOT NULL, session_id TEXT, user TEXT,"
        " verb TEXT NOT NULL, body TEXT NOT NULL, generation TEXT, idempotency_key TEXT NOT NULL UNIQUE,"
        " has_own_key INTEGER NOT NULL, queued_at REAL NOT NULL, size INTEGER NOT NULL,"
        " attempts INTEGER NOT NULL DEFAULT 0, state TEXT NOT NULL DEFAULT 'waiting', problem TEXT)"
    )
    db = sqlite3.connect(tmp_path / "outbox.sqlite3")
    with closing(db), db:
        db.execute(old)
        db.execute("CREATE INDEX entries_by_state ON entries (state, lane, id)")
        db.execute("CREATE TABLE counts (name TEXT PRIMARY KEY, value INTEGER NOT NULL)")
        for number, user in enumerate(("ada", None), start=1):
            values = (number, f'["{user}", "s1"]', "s1", user, "write", '{"n":1}', f"k{number}", 1_000.0)
            db.execute(
                "INSERT INTO entries (id, lane, session_id, user, verb, body, idempotency_key, has_own_key, queued_at,"
                " size) VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?, 7)",
                values,
            )
        db.execute("UPDATE entries SET state = 'refused', problem = ? WHERE id = 2", (REFUSAL.model_dump_json(),))
        db.execute("PRAGMA user_version = 1")
    outbox = Outbox(tmp_path)
    assert outbox.lanes("ada's agent") == ()
    entry = outbox.next_waiting(lane=lane_of("ada", "s1"))
    assert entry is not None
    assert entry.agent == NOBODY, "it did not say whose it is, so nobody delivers it unasked"
    assert (entry.id, entry.idempotency_key, entry.body, entry.queued_at) == (1, "k1", {"n": 1}, 1_000.0)
    assert [kept.problem for kept in outbox.refused()] == [REFUSAL]
    assert put(outbox, "k1", user="bob") == 3


def test_a_file_that_another_user_has_put_there_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(Outbox(tmp_path), "k1")
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(OutboxUnusable, match="belongs to another user"):
        put(Outbox(tmp_path), "k2")
    monkeypatch.undo()
    assert drain(Outbox(tmp_path)) == ["k1"]


def test_a_user_has_one_lane_under_every_token_of_an_issuer(tmp_path: Path) -> None:
    def token(subject: object, issuer: str = "https://id.example", salt: str = "") -> str:
        claims = base64.urlsafe_b64encode(json.dumps({"iss": issuer, "sub": subject, "salt": salt}).encode())
        return f"e30.{claims.decode().rstrip('=')}.c2lnbmF0dXJl"

    lanes = {lane_of(token("ada", salt=salt), "s1") for salt in ("", "x", "xx", "xxx")}
    assert len(lanes) == 1
    others = [token("bob"), token("ada", "https://other.example"), token(7), "ada", "a.b.c", "e30.ÿ.x", None]
    assert len(lanes | {lane_of(other, "s1") for other in others}) == 1 + len(others)


def test_a_full_outbox_says_so_and_keeps_what_it_had(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, max_entries=2)
    put(outbox, "k1")
    put(outbox, "k2")
    with pytest.raises(OutboxFull, match="holds 2 entries"):
        put(outbox, "k3")
    assert drain(outbox) == ["k1", "k2"]
    assert outbox.counts()["overflowed"] == 1


def test_bytes_are_bounded_too(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, max_bytes=1_000)
    with pytest.raises(OutboxFull):
        put(outbox, "k1", text="x" * 1_000)
    assert outbox.waiting() == 0


def test_what_was_refused_is_kept_visible_and_can_be_tried_again(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    entry = put(outbox, "k1")
    put(outbox, "k2")
    outbox.set_aside(entry, REFUSAL)
    assert drain(outbox) == ["k2"]
    (kept,) = outbox.refused()
    assert kept.problem == REFUSAL
    assert outbox.counts()["refused"] == 1
    assert outbox.retry_refused() == 1
    assert drain(outbox) == ["k1", "k2"]


def test_a_lane_is_one_user_and_one_session(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    put(outbox, "k1", session="s1", user="ada")
    put(outbox, "k2", session="s1", user="bob")
    put(outbox, "k3", session="s2", user="ada")
    assert outbox.waiting(lane_of("ada", "s1")) == 1
    assert lane_of("a", "b") != lane_of("a,b", None) != lane_of(None, "a,b")


def test_discarding_a_session_spares_other_sessions_users_and_later_entries(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    put(outbox, "k1", session="s1", user="ada")
    put(outbox, "k2", session="s1", user="bob")
    put(outbox, "k3", session="s2", user="ada")
    last = outbox.last_id()
    put(outbox, "k4", session="s1", user="ada")
    assert outbox.discard(user="ada", session_id="s1", up_to=last) == 1
    assert drain(outbox) == ["k2", "k3", "k4"]
    assert outbox.discard(user="ada", every_session=True) == 2
    assert drain(outbox) == ["k2"]


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "box")
    put(outbox, "k1")
    lock = outbox.try_lock("lane")
    assert lock is not None
    lock.close()
    assert stat.S_IMODE((tmp_path / "box").stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "box").iterdir()}
    assert set(modes.values()) == {0o600}, modes


def test_a_delivered_entry_leaves_no_bytes_on_the_disk(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    entries = [put(outbox, f"k{number}", text=f"unmistakable-{number} " * 500) for number in range(8)]
    for entry in entries:
        outbox.delivered(entry)
    left = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"unmistakable" not in left


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OutboxUnusable, match="MEMPLANE_OUTBOX_DIR"):
        put(Outbox(tmp_path / "file" / "box"), "k1")


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "box")
    lock = outbox.try_lock("lane")
    assert lock is not None
    lock.close()
    (path,) = outbox.folder.iterdir()
    path.replace(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutboxUnusable):
        outbox.try_lock("lane")


def test_an_outbox_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    put(outbox, "k1")
    db = sqlite3.connect(tmp_path / "outbox.sqlite3")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(OutboxUnusable, match="newer version"):
        outbox.waiting()


def test_one_holder_at_a_time_may_deliver_a_lane_and_others_deliver_other_lanes(tmp_path: Path) -> None:
    first, second = Outbox(tmp_path), Outbox(tmp_path)
    mine = first.try_lock("lane 1")
    assert mine is not None
    assert second.try_lock("lane 1") is None
    with closing(mine):
        other = second.try_lock("lane 2")
        assert other is not None
        other.close()
    theirs = second.try_lock("lane 1")
    assert theirs is not None
    theirs.close()


def _hold(folder: str, ready: Any) -> None:
    lock = Outbox(folder).try_lock("lane")
    assert lock is not None
    ready.send(True)
    ready.recv()


def test_the_right_to_deliver_dies_with_its_process(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_hold, args=(os.fspath(tmp_path), theirs))
    process.start()
    assert ours.recv()
    assert Outbox(tmp_path).try_lock("lane") is None
    process.kill()
    process.join()
    lock = Outbox(tmp_path).try_lock("lane")
    assert lock is not None
    lock.close()
    ours.close()
    theirs.close()


def _fill(folder: str, name: str) -> None:
    outbox = Outbox(folder)
    for number in range(20):
        put(outbox, f"{name}-{number}", session=name)


def test_several_processes_fill_one_outbox_without_losing_an_entry(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_fill, args=(os.fspath(tmp_path), name)) for name in ("a", "b")]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    keys = drain(Outbox(tmp_path))
    assert sorted(keys) == sorted(f"{name}-{number}" for name in "ab" for number in range(20))
    assert [key for key in keys if key.startswith("a")] == [f"a-{number}" for number in range(20)]


def test_an_entry_says_whose_it_is_and_no_other_agent_is_shown_its_lane(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    for agent in ("ada", "news"):
        put(outbox, "k1", agent=agent, text=f"said to {agent}")
    assert outbox.lanes("ada") == (lane_of(None, "s1", "ada"),)
    entry = outbox.next_waiting(lane=outbox.lanes("ada")[0])
    assert entry is not None
    assert (entry.agent, entry.body["turns"][0]["content"]) == ("ada", "said to ada")
    assert (outbox.waiting(agent="ada"), outbox.waiting()) == (1, 2)
    assert outbox.discard(session_id="s1", agent="ada") == 1
    assert outbox.lanes("ada") == ()


def test_what_is_adopted_keeps_its_order_in_its_new_lane(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    put(outbox, "k1")
    put(outbox, "k2", agent="old token")
    put(outbox, "k3", agent="ada")
    put(outbox, "k3", agent="old token")
    assert outbox.lanes("ada") == (lane_of(None, "s1", "ada"),)
    assert outbox.adopt("ada") == 2
    assert outbox.waiting(lane=lane_of(None, "s1", "ada")) == 3
    assert outbox.waiting() == 4, "a key that the agent has used itself is left where it is"


def test_what_is_taken_over_of_one_leaves_all_others_theirs(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    for number, agent in enumerate(("unseen", "news", NOBODY)):
        put(outbox, f"k{number}", agent=agent)
    assert outbox.adopt("ada", of="unseen") == 1
    assert outbox.adopt("ada", of="unseen") == 0
    assert [outbox.waiting(agent=agent) for agent in ("ada", "unseen", "news", NOBODY)] == [1, 0, 1, 1]


def test_what_was_set_aside_is_deleted_after_a_month_and_not_before(tmp_path: Path) -> None:
    now = [1_000.0]
    outbox = Outbox(tmp_path, wall=lambda: now[0])
    entry = put(outbox, "k1", text="unmistakable")
    now[0] += 90 * 86_400
    outbox.set_aside(entry, REFUSAL)
    now[0] += 29 * 86_400
    assert outbox.drop_expired() == 0
    now[0] += 2 * 86_400
    assert outbox.drop_expired() == 1
    assert (outbox.refused(), outbox.counts()["expired"]) == ((), 1)
    assert b"unmistakable" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_a_damaged_entry_is_set_aside_and_those_behind_it_come(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path)
    put(outbox, "k1")
    put(outbox, "k2")
    with closing(sqlite3.connect(tmp_path / "outbox.sqlite3")) as db, db:
        db.execute("UPDATE entries SET body = substr(body, 1, 9) WHERE idempotency_key = 'k1'")
    assert drain(outbox) == ["k2"]
    (kept,) = outbox.refused()
    assert kept.problem is not None
    assert (kept.idempotency_key, kept.problem.title, kept.body) == ("k1", "Unreadable", {})


def test_a_folder_that_this_user_may_not_search_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "lstat", refuse)
    for look in (Outbox(tmp_path).waiting, Outbox(tmp_path).refused, Outbox(tmp_path).counts):
        with pytest.raises(OutboxUnusable, match="MEMPLANE_OUTBOX_DIR"):
            look()


def test_a_text_that_no_disk_can_hold_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(OutboxUnusable):
        put(Outbox(tmp_path), "k1", user="k\udcff")


def test_a_folder_named_relatively_stays_the_same_when_the_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    outbox = Outbox("box")
    put(outbox, "k1")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert outbox.waiting() == 1


class OutboxMachine(RuleBasedStateMachine):
    """The outbox against a list in memory."""

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.outbox = Outbox(self.folder.name, max_entries=6)
        self.waiting: list[tuple[int, str]] = []
        self.refused: list[tuple[int, str]] = []
        self.number = 0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    @rule(session=st.sampled_from(["s1", "s2"]), text=st.text(max_size=40))
    def put_one(self, session: str, text: str) -> None:
        self.number += 1
        key = f"k{self.number}"
        if len(self.waiting) + len(self.refused) >= 6:
            with pytest.raises(OutboxFull):
                put(self.outbox, key, session=session, text=text)
        else:
            self.waiting.append((put(self.outbox, key, session=session, text=text), key))

    @precondition(lambda self: self.waiting)
    @rule(how=st.sampled_from(["delivered", "erased", "refused", "twice"]), which=st.integers(0, 5))
    def settle(self, how: str, which: int) -> None:
        entry = self.waiting.pop(which % len(self.waiting))
        match how:
            case "delivered":
                self.outbox.delivered(entry[0])
            case "erased":
                self.outbox.drop_erased(entry[0])
            case "twice":
                self.outbox.delivered(entry[0])
                self.outbox.delivered(entry[0])
                self.outbox.set_aside(entry[0], REFUSAL)
            case "refused":
                self.outbox.set_aside(entry[0], REFUSAL)
                self.refused = sorted([*self.refused, entry])

    @rule()
    def retry(self) -> None:
        assert self.outbox.retry_refused() == len(self.refused)
        self.waiting, self.refused = sorted(self.waiting + self.refused), []

    @rule()
    def open_again(self) -> None:
        self.outbox = Outbox(self.folder.name, max_entries=6)

    @invariant()
    def holds_exactly_what_was_put_and_not_settled(self) -> None:
        if hasattr(self, "outbox"):
            assert drain(self.outbox) == [key for _, key in self.waiting]
            assert [entry.idempotency_key for entry in self.outbox.refused()] == [key for _, key in self.refused]


OutboxMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=20)
TestOutboxKeepsWhatWasPut = OutboxMachine.TestCase


def test_a_lock_that_is_asked_for_again_is_still_held_against_other_processes(tmp_path: Path) -> None:
    """A process that closes a file gives back all locks that it has on it."""
    outbox = Outbox(tmp_path)
    lock = outbox.try_lock("lane")
    assert lock is not None
    assert outbox.try_lock("lane") is None
    code = (
        "import pathlib, sys; from memory_service.client.outbox import Outbox;"
        "print(Outbox(pathlib.Path(sys.argv[1])).try_lock('lane'))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    other = subprocess.run(command, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == "None"
    lock.close()
