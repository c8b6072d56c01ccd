"""The page of benchmarks: a section for each, its plots are there, and its command runs. Nothing is timed here."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs/reference/benchmarks.md").read_text(encoding="utf-8")


def _constant(path: Path, name: str) -> tuple[str, ...]:
    """A tuple of texts at the top of a module that is not imported: importing one may need what only it needs."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [target.id for target in node.targets if isinstance(target, ast.Name)] == [
            name
        ]:
            return tuple(ast.literal_eval(node.value))
    raise AssertionError(f"{path.name} has no {name}")


def test_every_benchmark_has_a_section_and_a_command(page: str, repository: Path) -> None:
    names = _constant(repository / "bench/__main__.py", "BENCHMARKS")
    shown = re.findall(r"^<!-- bench: (\w+) -->$", page, re.MULTILINE)
    assert re.findall(r"^python -m bench (\w+)$", page, re.MULTILINE) == shown
    missing = [line for line in page.splitlines() if line.startswith("Not measured yet: ")]
    assert [name for name in names if name in shown or f"`{name}`" in "".join(missing)] == list(names)
    assert [name for name in names if name in shown] == shown
    for name in names:
        tree = ast.parse((repository / f"bench/{name}.py").read_text(encoding="utf-8"))
        assert "run" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name


def test_a_missed_target_is_marked_and_the_summary_has_every_target(page: str) -> None:
    summary, _, rest = page.partition("## Targets\n")[2].partition("<!-- bench: ")
    row = re.compile(r"^\| .+ [≤≥] .+ \| .+ \| (?:yes|\*\*no\*\*, .+) \|$", re.MULTILINE)
    listed = row.findall(summary)
    assert listed
    assert listed == row.findall(rest)


def test_every_plot_is_there_is_shown_and_holds_no_date(page: str, repository: Path) -> None:
    folder = repository / "docs/reference"
    shown = {name for text in folder.glob("*.md") for name in re.findall(r"\]\(plots/([\w.-]+)\)", text.read_text())}
    assert {path.name for path in (folder / "plots").glob("*")} == shown
    for name in re.findall(r"\]\(plots/([\w.-]+)\)", page):
        text = (folder / "plots" / name).read_text(encoding="utf-8")
        assert "<dc:date>" not in text, name
        assert len(text) < 100_000, name


def test_the_versions_of_peers_on_the_page_are_those_that_are_installed(page: str, repository: Path) -> None:
    source = repository / "bench/peers.py"
    pinned = [*_constant(source, "KAOS"), *_constant(source, "LIBRARIES")]
    if "Not measured yet: " in page and "`throughput`" in page:
        pinned = []
    for requirement in pinned:
        name, _, version = requirement.partition("==")
        if version and name != "chromadb":
            assert f"{name.partition('[')[0]} {version}" in page


def test_make_bench_runs_it(repository: Path) -> None:
    def planned(*options: str) -> str:
        command = ["make", "--no-print-directory", "-n", "-o", ".venv/.bench", "bench", *options]
        return subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True).stdout

    assert "-m bench" in planned()
    assert "-m bench --quick" in planned("QUICK=1")
    assert planned("ONLY=growth").rstrip().endswith("-m bench growth")
