"""The command line itself: help, exit codes, and what `check` prints."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from memory_service.cli import main, output
from memory_service.cli.main import cli
from memory_service.cli.memory import objects
from memory_service.errors import FolderLocked, StorageUnavailable

VARIABLES = re.compile("MEMPLANE_|AGENT_IDENTITY")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if VARIABLES.match(name):
            monkeypatch.delenv(name)


def run(*arguments: str, **options: Any) -> Any:
    return CliRunner().invoke(cli, arguments, **options)


def test_help_loads_neither_the_service_nor_the_client() -> None:
    heavy = ("httpx", "pydantic", "fastapi", "chromadb", "rich", "yaml", "memory_service.client")
    code = (
        "import sys\nfrom memory_service.cli.main import cli\n"
        "try: cli(['--help'])\nexcept SystemExit: pass\n"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", list(main._COMMANDS))
def test_each_command_explains_itself_as_the_overview_says(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.short_help == main._COMMANDS[name].does
    result = run(name, "--help")
    assert result.exit_code == 0
    assert "Usage: " in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["recall"],
        ["write", "s1"],
        ["write", "s1", "text", "--role", "pope"],
        ["recall", "q", "--user", "a", "--user-token-file", "f"],
        ["serve", "--port", "many"],
        ["serve", "--port", "70000"],
        ["check", "--config", "/nowhere/m.yaml"],
        ["import", "/nowhere/export.jsonl"],
        ["admin", "erase"],
        ["admin", "erase", "--principal", "kim", "--yes"],
        ["recall", "q", "--score-floor", "nan"],
        ["recall", "q", "--timeout", "inf"],
        ["remember", "text", "--importance", "inf"],
        ["facts", "patch", "f1", "--importance", "nan"],
        ["receipt", "r1", "--wait", "nan"],
    ],
)
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_check_prints_every_setting_with_its_source_and_no_secret(tmp_path: Path) -> None:
    config = tmp_path / "memplane.yaml"
    config.write_text("server:\n  port: 9000\nidentity:\n  tokensFile: /nowhere/tokens\n")
    env = {"MEMPLANE_DSN": "postgresql://ada:s3cret@h/d", "MEMPLANE_PORT": "tcp://10.0.0.1:1"}
    result = run("check", "--config", str(config), "--json", env=env)
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["settings"]["server.port"] == {"value": 9000, "source": str(config)}
    assert found["settings"]["storage.dsn"] == {"value": "postgresql://ada:***@h/d", "source": "MEMPLANE_DSN"}
    assert found["settings"]["storage.type"] == {"value": "external", "source": "MEMPLANE_DSN"}
    assert found["ignored"] == ["MEMPLANE_PORT"]
    assert "/nowhere/tokens" in found["missing_files"][0]
    assert "s3cret" not in result.output
    table = run("check", "--config", str(config), env=env)
    assert re.search(r"server\.port\s+9000", table.stdout)
    assert "s3cret" not in table.output


@pytest.mark.parametrize("text", ["server: [", "- a\n- b\n", "just words", "\x00", "1: 2"])
def test_a_file_that_is_no_configuration_is_refused_with_a_sentence(text: str, tmp_path: Path) -> None:
    config = tmp_path / "memplane.yaml"
    config.write_text(text)
    result = run("check", "--config", str(config))
    assert result.exit_code == 2
    assert "error: " in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "text",
    ["storage:\n  dsn: [s3cret\n", "storage:\n  dsn: s3cret: x\n", "a: *s3cret\n", "a: !s3cret x\n", "a: 's3cret"],
)
def test_a_file_that_is_no_yaml_is_not_repeated_on_the_screen(text: str, tmp_path: Path) -> None:
    config = tmp_path / "memplane.yaml"
    config.write_text(text)
    result = run("check", "--config", str(config))
    assert (result.exit_code, "s3cret" in result.output) == (2, False)
    assert "at line " in result.stderr


@pytest.mark.parametrize(
    "text", ["storage:\n  dataDir: a\nstorage:\n  dataDir: b\n", "storage: {dataDir: a, dataDir: b}\n"]
)
def test_a_setting_that_a_file_has_twice_is_refused(text: str, tmp_path: Path) -> None:
    config = tmp_path / "memplane.yaml"
    config.write_text(text)
    result = run("check", "--config", str(config))
    assert result.exit_code == 2
    assert "the same key twice at line " in result.stderr


def memplane(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in a shell, where $memplane is the program."""
    env = {"PATH": os.environ["PATH"], "memplane": f"{sys.executable} -m memory_service.cli", **variables}
    return subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_json_document_is_one_in_every_encoding(encoding: str) -> None:
    model = "mod\xebll \U0001f600"
    variables = {"MEMPLANE_CHAT_MODEL": model, "MEMPLANE_CHAT_URL": "http://u", "PYTHONIOENCODING": encoding}
    done = memplane("$memplane check --json", **variables)
    assert json.loads(done.stdout)["settings"]["models.chat.model"]["value"] == model


@pytest.mark.parametrize("command", ["check", "check --json"])
@pytest.mark.parametrize(
    ("redirection", "code", "words"),
    [(">&-", 0, ""), (">/dev/full", 1, "cannot be printed"), ("| true; exit ${PIPESTATUS[1]}", 0, "")],
)
def test_an_answer_that_cannot_be_printed_ends_without_a_traceback(
    command: str, redirection: str, code: int, words: str
) -> None:
    done = memplane(f"$memplane {command} {redirection}")
    assert done.returncode == code
    assert words in done.stderr
    assert ("Traceback" in done.stderr, "Exception ignored" in done.stderr) == (False, False)


SERVICE = {
    "serve": ("memory_service.process.serve", "run"),
    "work": ("memory_service.process.work", "run"),
    "migrate": ("memory_service.bootstrap", "migrate"),
}


def stand_in(monkeypatch: pytest.MonkeyPatch, command: str, act: Any) -> None:
    module, function = SERVICE[command]
    fake = types.ModuleType(module)
    setattr(fake, function, act)
    monkeypatch.setitem(sys.modules, module, fake)


@pytest.mark.parametrize("command", list(SERVICE))
def test_commands_of_a_service_get_the_layered_configuration(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    stand_in(monkeypatch, command, seen.append)
    assert run(command, "--data-dir", "/d", "--lock-wait", "3").exit_code == 0
    assert seen[0].storage.data_dir == "/d"
    assert seen[0].storage.lock_wait_seconds == 3


def test_a_key_that_came_as_a_variable_is_a_private_file_while_the_service_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, str]] = []

    def serve(config: Any) -> None:
        path = config.models.chat.api_key_file
        seen.append((path, Path(path).read_text(encoding="utf-8")))
        seen.append((path, Path(path).read_text(encoding="utf-8")))

    stand_in(monkeypatch, "serve", serve)
    assert run("serve", env={"MEMPLANE_CHAT_API_KEY": "s3cret"}).exit_code == 0
    assert [key for _, key in seen] == ["s3cret", "s3cret"]
    assert not Path(seen[0][0]).exists() or Path(seen[0][0]).read_bytes() != b"s3cret"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FolderLocked("another process serves '/d'; stop it", reason="WaitingForLock"), 1),
        (StorageUnavailable("no database answers", reason="StorageUnreachable"), 3),
    ],
)
def test_a_service_that_cannot_start_says_why_in_one_sentence(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(config: Any) -> None:
        raise error

    stand_in(monkeypatch, "migrate", fail)
    result = run("migrate")
    assert result.exit_code == code
    assert str(error) in result.stderr
    assert "Traceback" not in result.output


def test_remembered_text_cannot_style_or_move_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("text",), [("[red]not red[/red] \x1b[2J\u202e\ud800",)])
    shown = capsys.readouterr().out
    assert "[red]not red[/red]" in shown
    assert "\x1b" not in shown
    assert "\\u001b[2J\\u202e\\ud800" in shown


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((), "everything at the binding's own scope"),
        (("--scope", "user"), "everything at the scope 'user'"),
        (("--session", "s1"), "the session 's1'"),
    ],
)
def test_forget_asks_about_what_it_would_erase(arguments: tuple[str, ...], what: str) -> None:
    asked = run("forget", *arguments, input="n\n")
    assert asked.exit_code == 1
    assert f"Erase {what}? It cannot be brought back." in asked.output


@pytest.mark.parametrize("line", ["[" * 100_000, "9" * 5_000, "{", '"\\ud800"', "\ufeff{}", "[]", "7"])
def test_a_file_of_turns_that_no_parser_reads_is_refused_by_its_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    path.write_text(f'{{"role": "user"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(click.UsageError, match="line 2"):
        objects(str(path), "turn", '{"role": "user"}')
