"""The commands that talk to a service, against one over a real socket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from memory_service.cli import transfer
from memory_service.cli.main import cli
from tests.fakes.memory_server import NOW, MemoryServer, Received, answer, item, problem

ID = "00000000-0000-0000-0000-000000000001"
SESSION = {
    "session_id": "s1",
    "created_at": NOW,
    "last_write_at": NOW,
    "last_seq": 2,
    "turns": 1,
    "tokens": 3,
    "digest_version": 0,
}
TURN = {"seq": 1, "role": "user", "content": "hello", "said_at": NOW, "tokens": 1}
JOB = {"id": ID, "kind": "fold", "state": "dead", "attempts": 5, "created_at": NOW, "run_at": NOW, "error": "Boom: no"}
RECEIPT = {"receipt_id": ID, "status": "erased", "erased": {"turns": 2}}
ACTED = {"session_id": "s1", "jobs": [ID], "scheduled": True}
FACT = item("Ada lives in Oslo.")
DIAGNOSTICS = {
    "version": "0",
    "backend": "local",
    "schema_version": 1,
    "counts": {"turns": 4},
    "facts_by_scope": {},
    "jobs_by_state": {},
    "bytes_on_disk": 1,
    "embedding_model": "m",
    "dimension": 3,
}
ROUTES: dict[str, Any] = {
    "POST /v1/list": {"items": [FACT], "next_cursor": None},
    "GET /v1/facts": {"items": [FACT], "next_cursor": "more"},
    f"GET /v1/facts/{ID}": FACT,
    f"PATCH /v1/facts/{ID}": FACT,
    f"DELETE /v1/facts/{ID}": RECEIPT,
    f"GET /v1/facts/{ID}/history": {"id": ID, "entries": [{"at": NOW, "event": "added", "text": "t", "actor": "a"}]},
    f"POST /v1/facts/{ID}/supersede": FACT,
    "GET /v1/sessions": {"sessions": [SESSION]},
    "GET /v1/sessions/s1": {"session": SESSION, "window": [TURN], "digests": []},
    "GET /v1/sessions/s1/turns": {"turns": [TURN], "next_after": None},
    "POST /v1/sessions/s1/end": ACTED,
    "POST /v1/sessions/s1/compact": {**ACTED, "jobs": [], "busy": True},
    "POST /v1/sessions/s1/flush": ACTED,
    "GET /v1/jobs": {"jobs": [JOB]},
    f"GET /v1/jobs/{ID}": JOB,
    f"POST /v1/jobs/{ID}/retry": {**JOB, "state": "queued"},
    f"GET /v1/receipts/{ID}": {**RECEIPT, "erased_at": NOW},
    "POST /v1/admin/erase": RECEIPT,
    "GET /v1/admin/list": {"items": [FACT]},
    "GET /v1/admin/diagnostics": DIAGNOSTICS,
    "POST /v1/admin/jobs/replay": {"replayed": 3},
}
COMMANDS = [
    (["write", "s1", "hello", "there"], "stored 2 turn(s) in s1: 1, 2"),
    (["recall", "Oslo", "--session", "s1", "--explain"], "Oslo"),
    (["recall", "Oslo", "--block"], "<block>"),
    (["remember", "Ada lives in Oslo.", "--key", "home", "--tag", "a", "--tag", "b"], f"added: {ID}"),
    (["list", "--all"], "Ada lives in Oslo."),
    (["forget", "--session", "s1", "--yes"], "erased: 2 turns"),
    (["receipt", ID], "erased turns"),
    (["facts", "list"], "Ada lives in Oslo."),
    (["facts", "get", ID], "Ada lives in Oslo."),
    (["facts", "patch", ID, "--text", "new"], "Ada lives in Oslo."),
    (["facts", "supersede", ID, "new"], "Ada lives in Oslo."),
    (["facts", "delete", ID, "--yes"], f"erased: {ID}"),
    (["facts", "history", ID], "added"),
    (["sessions", "list"], "s1"),
    (["sessions", "show", "s1"], "hello"),
    (["sessions", "show", "s1", "--turns"], "hello"),
    (["sessions", "end", "s1"], f"scheduled: {ID}"),
    (["sessions", "compact", "s1"], "busy"),
    (["sessions", "flush", "s1"], "scheduled"),
    (["jobs", "list", "--state", "dead"], "Boom: no"),
    (["jobs", "show", ID], "Boom: no"),
    (["jobs", "retry", ID], "queued"),
    (["admin", "erase", "--principal", "local#ada", "--yes"], f"receipt {ID}"),
    (["admin", "list", "--all"], "Ada lives in Oslo."),
    (["admin", "diagnostics"], "rows: turns"),
    (["admin", "replay"], "3 job(s)"),
]


@pytest.fixture(autouse=True)
def _environment(server: MemoryServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("MEMPLANE_") or name == "AGENT_IDENTITY":
            monkeypatch.delenv(name)
    monkeypatch.setenv("MEMPLANE_ENDPOINT", server.url)
    monkeypatch.setenv("MEMPLANE_BINDING_DIR", str(tmp_path / "none"))
    server.routes = dict(ROUTES)


def run(*arguments: str, **options: Any) -> Any:
    return CliRunner().invoke(cli, arguments, **options)


@pytest.mark.parametrize(
    ("arguments", "words"), COMMANDS, ids=[" ".join(a[:2]) + str(n) for n, (a, _) in enumerate(COMMANDS)]
)
def test_each_command_prints_a_table_and_with_json_a_document(arguments: list[str], words: str) -> None:
    table = run(*arguments)
    assert table.exit_code == 0, table.output
    assert words in table.stdout
    document = run(*arguments, "--json")
    assert document.exit_code == 0, document.output
    json.loads(document.stdout)


@pytest.mark.parametrize("arguments", [command for command, _ in COMMANDS], ids=lambda a: " ".join(a[:2]))
def test_exit_codes_tell_refused_from_unavailable(arguments: list[str], server: MemoryServer) -> None:
    server.always = problem(403, "forbidden", "the binding does not allow it")
    refused = run(*arguments)
    assert refused.exit_code == 1
    assert "the binding does not allow it" in refused.stderr
    server.always = problem(503, "unavailable", "no database")
    gone = run(*arguments, "--timeout", "0.5")
    assert gone.exit_code == 3
    assert "unavailable" in gone.stderr


def test_nothing_is_left_in_an_outbox_by_the_command_line(server: MemoryServer, tmp_path: Path) -> None:
    server.always = problem(503, "unavailable")
    env = {"XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    assert run("write", "s1", "hello", "--timeout", "0.5", env=env).exit_code == 3
    assert list(tmp_path.iterdir()) == []


def test_an_erasure_asks_first(server: MemoryServer) -> None:
    assert run("forget", "--session", "s1", input="n\n").exit_code == 1
    assert run("admin", "erase", "--principal", "local#ada", input="n\n").exit_code == 1
    assert run("facts", "delete", ID, input="n\n").exit_code == 1
    assert server.requests == []
    assert run("forget", "--session", "s1", input="y\n").exit_code == 0


def test_tokens_come_from_files_and_names_from_flags(server: MemoryServer, tmp_path: Path) -> None:
    (tmp_path / "agent").write_text("agent-token\n")
    (tmp_path / "user").write_text("user-token\n")
    run("recall", "q", "--token-file", str(tmp_path / "agent"), "--user-token-file", str(tmp_path / "user"))
    run("recall", "q", "--agent", "kaos://agent/local/a", "--user", "ada")
    first, second = server.requests
    assert (first.headers["authorization"], first.headers["x-memplane-user"]) == ("Bearer agent-token", "user-token")
    assert second.headers["x-memplane-agent"] == "kaos://agent/local/a"
    assert second.headers["x-memplane-user"] == "ada"


@pytest.mark.parametrize("option", ["--token-file", "--user-token-file"])
@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff"])
def test_a_token_file_without_a_token_stops_a_call_that_would_be_somebody_elses(
    content: bytes | None, option: str, server: MemoryServer, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    refused = run("remember", "Ada lives in Oslo.", option, str(file))
    assert (refused.exit_code, server.requests) == (2, [])
    assert f"{option} {str(file)!r}" in refused.stderr


def test_a_recall_that_finds_no_service_says_where_it_looked(server: MemoryServer) -> None:
    server.always = problem(503, "unavailable", "no database")
    gone = run("recall", "q", "--timeout", "0.5")
    assert gone.exit_code == 3
    assert server.url in gone.stderr


def test_a_wrong_line_of_facts_is_told_what_a_fact_looks_like() -> None:
    wrong = run("facts", "batch", "-", input="[1]\n")
    assert wrong.exit_code == 2
    assert "a fact such as" in wrong.stderr
    assert "no facts" in run("facts", "batch", "-", input="\n").stderr


def test_turns_come_from_a_file_or_from_standard_input(server: MemoryServer, tmp_path: Path) -> None:
    lines = '{"role": "user", "content": "one"}\n\n{"role": "assistant", "content": "two"}\n'
    (tmp_path / "turns.jsonl").write_text(lines)
    assert run("write", "s1", "--turns", str(tmp_path / "turns.jsonl")).exit_code == 0
    assert run("write", "s2", "--turns", "-", input=lines).exit_code == 0
    assert server.texts("s1") == server.texts("s2") == ["one", "two"]
    wrong = run("write", "s1", "--turns", "-", input='{"role": "user"\n')
    assert wrong.exit_code == 2
    assert "line 1" in wrong.stderr


@pytest.mark.parametrize("encoding", ["ascii:surrogateescape", "latin-1"])
def test_turns_from_standard_input_are_utf_8_in_every_locale(encoding: str, server: MemoryServer) -> None:
    said = "Zo\xeb \U0001f600"
    subprocess.run(
        [sys.executable, "-m", "memory_service.cli", "write", "s1", "--turns", "-"],
        input=json.dumps({"role": "user", "content": said}, ensure_ascii=False).encode(),
        env={**os.environ, "PYTHONIOENCODING": encoding},
        check=True,
        capture_output=True,
    )
    assert server.texts("s1") == [said]


class Store:
    """The admin routes of a store of numbered lines, on both ends."""

    def __init__(self, lines: int) -> None:
        self.lines = [{"kind": "turn", "number": number, "text": "ü" * 10} for number in range(lines)]
        self.imported: list[dict[str, Any]] = []
        self.fail_at: int | None = None
        self.pages = 0

    def act(self, server: MemoryServer, connection: Any, request: Received) -> None:
        self.pages += 1
        if self.fail_at is not None and self.pages > self.fail_at:
            answer(503, None)(server, connection, request)
            return
        if request.method == "GET":
            query = dict(part.split("=") for part in request.path.partition("?")[2].split("&"))
            start, limit = int(query.get("cursor", "0")), int(query["limit"])
            end = start + limit
            body: Any = {
                "lines": self.lines[start:end],
                "next_cursor": str(end) if end < len(self.lines) else None,
            }
        else:
            fresh = [line for line in request.body["lines"] if line not in self.imported]
            self.imported += fresh
            body = {"imported": len(fresh), "skipped": len(request.body["lines"]) - len(fresh), "tombstoned": 0}
        answer(200, body)(server, connection, request)


@pytest.mark.parametrize("group", ["sessions", "jobs"])
def test_lists_show_the_workspace_that_is_named(group: str, server: MemoryServer) -> None:
    server.routes[f"GET /v1/{group}"] = {group: []}
    assert run(group, "list", "--workspace", "repo", "--server", server.url).exit_code == 0
    assert server.requests[-1].path == f"/v1/{group}?workspace=repo"


def test_a_turn_may_hold_every_letter_that_json_takes_as_it_is(server: MemoryServer, tmp_path: Path) -> None:
    said = "one\u2028two\u2029three\x85four"
    file = tmp_path / "turns.jsonl"
    line = json.dumps({"role": "user", "content": said}, ensure_ascii=False)
    file.write_bytes(f"{line}\r\n\n{line}".encode())
    assert run("write", "s1", "--turns", str(file), "--server", server.url).exit_code == 0
    assert server.texts("s1") == [said, said]


def test_an_interrupted_export_goes_on_where_it_stopped(server: MemoryServer, tmp_path: Path) -> None:
    store = Store(1_800)
    server.always = store.act
    file = tmp_path / "out.jsonl"
    store.fail_at = 2
    assert run("export", str(file)).exit_code == 3
    assert not file.exists()
    with (tmp_path / "out.jsonl.part").open("ab") as out:
        out.write(b'{"half a li')  # what a crash between two states leaves
    store.fail_at = None
    store.pages = 0
    assert run("export", str(file)).exit_code == 0
    assert store.pages == 2
    assert [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] == store.lines
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    assert file.stat().st_mode & 0o077 == 0
    assert run("export", str(file)).exit_code == 2


@pytest.mark.parametrize("pages", [0, 2])
def test_an_earlier_export_stays_until_a_new_one_is_whole(pages: int, server: MemoryServer, tmp_path: Path) -> None:
    store = Store(1_800)
    server.always = store.act
    file = tmp_path / "out.jsonl"
    file.write_text("an earlier export\n")
    store.fail_at = pages
    assert run("export", str(file), "--restart").exit_code == 3
    assert file.read_text() == "an earlier export\n"
    assert len(list(tmp_path.iterdir())) == (1 if pages == 0 else 3)
    store.fail_at = None
    assert run("export", str(file), *(["--restart"] if pages == 0 else [])).exit_code == 0
    assert [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] == store.lines
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_an_export_from_a_store_that_is_away_leaves_nothing_and_can_be_repeated(
    server: MemoryServer, tmp_path: Path
) -> None:
    store = Store(3)
    server.always = store.act
    file = tmp_path / "out.jsonl"
    store.fail_at = 0
    assert run("export", str(file)).exit_code == 3
    assert list(tmp_path.iterdir()) == []
    store.fail_at = None
    assert run("export", str(file)).exit_code == 0
    assert len(file.read_text(encoding="utf-8").splitlines()) == 3


def test_an_export_replaces_what_a_link_names_and_nothing_but_files(server: MemoryServer, tmp_path: Path) -> None:
    server.always = Store(3).act
    place = tmp_path / "place"
    place.mkdir()
    (place / "out.jsonl").write_text("an earlier export\n")
    link = tmp_path / "link.jsonl"
    link.symlink_to(place / "out.jsonl")
    assert run("export", str(link), "--restart").exit_code == 0
    assert link.is_symlink()
    assert len((place / "out.jsonl").read_text(encoding="utf-8").splitlines()) == 3
    for other in (str(place), "/dev/null"):
        refused = run("export", other, "--restart")
        assert (refused.exit_code, "is not a file" in refused.stderr) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.jsonl", "place"]


def test_an_interrupted_import_goes_on_where_it_stopped(server: MemoryServer, tmp_path: Path) -> None:
    store = Store(1_800)
    server.always = store.act
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in store.lines))
    store.fail_at = 2
    assert run("import", str(file)).exit_code == 3
    assert len(store.imported) == 2 * transfer.PAGE_LINES
    store.fail_at = None
    store.pages = 0
    done = run("import", str(file), "--json")
    assert json.loads(done.stdout) == {
        "lines": 1_800,
        "imported": 1_800,
        "skipped": 0,
        "tombstoned": 0,
        "left_out": 0,
        "erased": 0,
        "receipts": [],
        "file": str(file),
    }
    assert store.pages == 2
    assert store.imported == store.lines
    again = json.loads(run("import", str(file), "--json").stdout)
    assert (again["imported"], again["skipped"]) == (0, 1_800)


@pytest.mark.parametrize("change", ["another store", "another file", "no mark"])
def test_an_interrupted_import_goes_on_with_its_own_store_and_file_alone(
    change: str, server: MemoryServer, tmp_path: Path
) -> None:
    first, second = Store(1_800), Store(1_800)
    server.always = first.act
    file, state = tmp_path / "in.jsonl", tmp_path / "in.jsonl.state"
    file.write_text("".join(json.dumps(line) + "\n" for line in first.lines))
    first.fail_at = 1
    assert run("import", str(file)).exit_code == 3
    with MemoryServer() as other:
        other.always = second.act
        where = ["--server", other.url] if change == "another store" else []
        if change == "another file":
            file.write_text("".join(json.dumps({**line, "text": "other"}) + "\n" for line in first.lines))
        if change == "no mark":
            state.write_text(json.dumps({"what": "import", "bytes": 10}))
        first.fail_at = None
        before = len(first.imported)
        refused = run("import", str(file), *where)
        assert (refused.exit_code, len(first.imported), second.imported) == (2, before, [])
        assert "--restart" in refused.stderr
        assert run("import", str(file), "--restart", *where).exit_code == 0
        assert len((second if where else first).imported) >= 1_800


def test_an_interrupted_export_goes_on_with_its_own_store_alone(server: MemoryServer, tmp_path: Path) -> None:
    store = Store(1_800)
    server.always = store.act
    file = tmp_path / "out.jsonl"
    store.fail_at = 2
    assert run("export", str(file)).exit_code == 3
    with MemoryServer() as other:
        refused = run("export", str(file), "--server", other.url)
        assert (refused.exit_code, other.requests) == (2, [])
        assert server.url in refused.stderr


def test_a_file_that_cannot_be_written_is_a_sentence(server: MemoryServer, tmp_path: Path) -> None:
    server.always = Store(1).act
    refused = run("export", str(tmp_path / "nowhere" / "out.jsonl"))
    assert refused.exit_code == 2
    assert "cannot be used" in refused.stderr


def test_a_line_that_is_none_stops_an_import_with_its_number(server: MemoryServer, tmp_path: Path) -> None:
    store = Store(0)
    server.always = store.act
    file = tmp_path / "in.jsonl"
    file.write_text('{"a": 1}\n[1]\n')
    wrong = run("import", str(file))
    assert wrong.exit_code == 2
    assert "line 2" in wrong.stderr
    assert "nothing of the file is stored" in wrong.stderr


@pytest.mark.parametrize("flaw", ["[1]", '{"seq": ', '{"seq": "wrong"}'])
def test_a_wrong_line_is_named_by_its_place_in_the_file_and_with_what_is_stored(
    flaw: str, server: MemoryServer, tmp_path: Path
) -> None:
    store = Store(1_100)

    def act(server: MemoryServer, connection: Any, request: Received) -> None:
        for number, line in enumerate(request.body["lines"]):
            if "seq" in line:
                detail = f"`lines.{number}.seq` is wrong; nothing was stored"
                errors = [{"field": f"lines.{number}.seq", "expected": "a whole number"}]
                refusal = {"type": ".../invalid-request", "title": "t", "status": 422, "detail": detail}
                answer(422, {**refusal, "errors": errors})(server, connection, request)
                return
        store.act(server, connection, request)

    server.always = act
    file = tmp_path / "in.jsonl"
    lines = [json.dumps(line) for line in store.lines]
    # 500 lines of the store and a blank one are behind when the wrong one is met, as the 643rd of the file.
    file.write_text("\n".join([*lines[:500], "", *lines[500:640], " ", flaw, *lines[640:]]) + "\n")
    store.fail_at = 1
    assert run("import", str(file)).exit_code != 0
    store.fail_at = None
    wrong = run("import", str(file))
    assert wrong.exit_code == (1 if flaw.startswith('{"seq": "') else 2)
    assert "line 643" in wrong.stderr
    assert "its first 500 line(s) are stored, none after them" in wrong.stderr
    assert "nothing was stored" not in wrong.stderr
    assert len(store.imported) == 500
    file.write_text("".join(f"{line}\n" for line in lines))
    assert run("import", str(file), "--restart").exit_code == 0
    assert store.imported == store.lines


def test_a_wrong_line_is_named_by_its_place_without_a_service_too(tmp_path: Path) -> None:
    folder, file = str(tmp_path / "store"), tmp_path / "in.jsonl"
    file.write_text('\n{"type": "principal", "hash": "h", "display": "d", "created_at": 1}\n{"type": "turn"}\n')
    wrong = run("import", str(file), "--data-dir", folder)
    assert wrong.exit_code == 1
    assert "line 3, agent" in wrong.stderr
    assert "nothing of the file is stored" in wrong.stderr


def test_a_server_and_storage_flags_together_are_refused(tmp_path: Path, server: MemoryServer) -> None:
    both = run("export", str(tmp_path / "out"), "--server", server.url, "--data-dir", str(tmp_path))
    assert both.exit_code == 2
    assert "not both" in both.stderr


def test_an_export_makes_no_store_where_there_is_none(tmp_path: Path) -> None:
    refused = run("export", str(tmp_path / "out.jsonl"), "--data-dir", str(tmp_path / "typo"))
    assert refused.exit_code == 1
    assert "typo" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_not_being_served_is_exported_without_a_service(tmp_path: Path) -> None:
    folder, file = str(tmp_path / "store"), tmp_path / "out.jsonl"
    assert run("migrate", "--data-dir", folder).exit_code == 0
    done = run("export", str(file), "--data-dir", folder, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"lines": len(file.read_text().splitlines()), "file": str(file)}
    assert run("import", str(file), "--data-dir", folder).exit_code == 0
