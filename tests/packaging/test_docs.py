"""The documentation says what is so: derived parts are current, tables agree with the code, links lead somewhere."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import yaml

from memory_operator.crd import conditions
from memory_operator.crd.agent_memory import AgentMemorySpec
from memory_operator.crd.memory_store import MemoryStoreSpec
from memory_operator.crd.model_api import ModelApiSpec
from memory_operator.metrics import Metrics as OperatorMetrics
from memory_service.api.problems import STATUS
from memory_service.client.errors import UnavailableReason
from memory_service.contract import ids, limits
from memory_service.contract.config import ServiceConfig
from memory_service.contract.health import Part, Reason
from memory_service.contract.verbs import Outcome
from memory_service.domain.assembly import NotShown
from memory_service.domain.ranking import LeftOut
from memory_service.domain.scopes import SkipReason
from memory_service.observability.metrics import METRICS
from tests.packaging.pages import blocks

LANGUAGES = {"sh", "bash", "text", "python", "yaml", "json", "stop"}
KINDS_OF_COMMANDS = {"", "service", "cluster", "cluster service", "example"}


@pytest.fixture(scope="module")
def generate(repository: Path) -> ModuleType:
    """The script behind `make docs`."""
    spec = importlib.util.spec_from_file_location("docs_generate", repository / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages(repository: Path) -> list[Path]:
    """Every page: those of docs/ and those at the root."""
    return [*sorted((repository / "docs").rglob("*.md")), *sorted(repository.glob("*.md"))]


def rows(page: Path, heading: str | None = None) -> list[list[str]]:
    """The cells of a page's tables, or of those under one heading; code marks are taken off."""
    text = page.read_text(encoding="utf-8")
    if heading is not None:
        text = text.split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0]
    return rows_of(text)


def rows_of(text: str) -> list[list[str]]:
    """The cells of a text's tables."""
    found = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip().replace("`", "") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in found]


def names(table: Iterable[list[str]], column: int = 0) -> set[str]:
    """The names in one column; a cell may hold several."""
    return {name.strip() for row in table for name in row[column].split(",")}


def test_generated_regions_are_what_the_code_says(generate: ModuleType) -> None:
    stale = [
        page.name
        for page in generate.pages()
        if generate.filled(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")
    ]
    assert stale == [], "run `make docs` and read the diff"


def test_every_generator_is_used_by_a_page(generate: ModuleType) -> None:
    used = {
        name for page in generate.pages() for _, name, _ in generate.REGION.findall(page.read_text(encoding="utf-8"))
    }
    assert used == set(generate.REGIONS)


def test_every_setting_of_the_configuration_is_explained(generate: ModuleType, repository: Path) -> None:
    shown = {row[0] for row in rows(repository / "docs/reference/configuration.md", "Settings")}
    written = {path for path, *_ in generate.settings()}
    assert shown == written
    assert set(generate.SETTING_MEANINGS) <= written
    # Sections whose default is unset are one setting; everything else is spelled out.
    dumped = {".".join(path) for path in _leaves(ServiceConfig().model_dump(mode="json", by_alias=True))}
    assert dumped == written


def _leaves(data: dict[str, object], above: tuple[str, ...] = ()) -> Iterable[tuple[str, ...]]:
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name)


def test_the_page_of_the_kinds_has_every_field_of_the_operators_models(repository: Path) -> None:
    text = (repository / "docs/reference/kinds.md").read_text(encoding="utf-8")
    for kind, spec in (
        ("MemoryStore", MemoryStoreSpec),
        ("AgentMemory", AgentMemorySpec),
        ("ModelAPI", ModelApiSpec),
    ):
        shown = names(rows_of(text.split(f"### {kind}: spec\n", 1)[1].split("\n### ", 1)[0]))
        assert {field.alias or name for name, field in spec.model_fields.items()} <= shown, kind


def test_the_problem_page_has_every_type_with_its_status_and_title(repository: Path) -> None:
    shown = {row[0]: (int(row[1]), row[2]) for row in rows(repository / "docs/reference/problems.md")}
    assert shown == {kind.value: about for kind, about in STATUS.items()}


def test_the_limits_page_has_every_limit_with_its_value(repository: Path) -> None:
    shown = {row[0]: int(row[1]) for row in rows(repository / "docs/reference/limits.md")}
    assert shown == {name: value for name, value in vars(limits).items() if name.isupper()}


def test_the_id_page_has_every_pattern(repository: Path) -> None:
    text = (repository / "docs/reference/ids.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"`(\^[^`]+\$)`", text))
    assert shown == {value for name, value in vars(ids).items() if name.endswith("_PATTERN")}
    assert ids.LOCAL_AGENT in text
    assert f"`{ids.LOCAL_ISSUER}`" in text


def test_the_reason_page_has_every_outcome(repository: Path) -> None:
    shown = names(rows(repository / "docs/reference/reasons.md", "Outcomes of a recall"))
    assert shown == {outcome.value for outcome in Outcome}


def test_the_reason_page_has_every_reason_of_a_part(repository: Path) -> None:
    page = repository / "docs/reference/reasons.md"
    assert names(rows(page, "Parts of a service")) == {reason.value for reason in Reason}
    for part in Part:
        assert f"`{part.value}`" in page.read_text(encoding="utf-8")


def test_the_condition_page_has_every_type_and_every_reason(repository: Path) -> None:
    page = repository / "docs/reference/conditions.md"
    assert names(rows(page, "Types")) == {kind.value for kind in conditions.ConditionType}
    assert names(rows(page, "Reasons")) == {reason.value for reason in conditions.Reason}


def test_the_reason_page_has_every_reason_of_degraded(repository: Path) -> None:
    shown = rows(repository / "docs/reference/reasons.md", "`degraded`")
    parts, reasons = [row for row in shown if len(row) == 3], [row for row in shown if len(row) == 2]
    assert names(reasons) == {reason.value for reason in UnavailableReason}
    assert {reason.value for reason in SkipReason} <= names(parts, 1)
    cut = {row[0] for row in parts}
    assert cut == {"scope:user", "scope:session", "short_term", "embedding", "storage", "service", "outbox"}


def test_the_reason_page_has_every_reason_of_omitted(repository: Path) -> None:
    shown = names(rows(repository / "docs/reference/reasons.md", "`omitted`"))
    ranked, assembled = (get_args(_annotation(owner)) for owner in (LeftOut, NotShown))
    assert shown == {*ranked, *assembled}


def _annotation(owner: type) -> object:
    import typing

    return typing.get_type_hints(owner)["reason"]


def test_every_metric_of_the_page_is_counted_somewhere(repository: Path) -> None:
    code = [file.read_text() for file in (repository / "memory_service").rglob("*.py") if file.name != "metrics.py"]
    metrics = {metric.name for metric in METRICS}
    named = {name for text in code for name in metrics if f'"{name}"' in text}
    assert named == metrics


def test_the_metric_page_names_only_metrics_that_exist(repository: Path) -> None:
    text = (repository / "docs/reference/metrics.md").read_text(encoding="utf-8")
    known = {f"memplane_{metric.name}{'_total' if metric.kind == 'counter' else ''}" for metric in METRICS}
    assert set(re.findall(r"memplane_[a-z_]+", text)) == known


def test_metrics_in_other_pages_exist(repository: Path) -> None:
    known = {f"memplane_{metric.name}{'_total' if metric.kind == 'counter' else ''}" for metric in METRICS}
    known |= set(re.findall(r"^# TYPE (\S+)", OperatorMetrics().text().decode(), re.MULTILINE))
    known |= {f"{name}{part}" for name in known for part in ("_bucket", "_sum", "_count")}
    for page in pages(repository):
        said = set(re.findall(r"`(memplane_[a-z_]+)`", page.read_text(encoding="utf-8")))
        # In commands and queries too; a schema that is made for a store has digits or is cut off.
        for block in blocks(page):
            said |= set(re.findall(r"\bmemplane_(?:[a-z]+_)*[a-z]+\b(?![…0-9])", block.body))
        assert said <= known | NOT_METRICS, f"{page.name}: {said - known}"


NOT_METRICS = {"memplane_test"}
"""What begins like a metric in a command and is none."""


def commands_of(page: Path) -> Iterator[str]:
    """Yield what a page shows after the name of the command, in blocks and in sentences, here and in pods."""
    lines = [line.strip() for block in blocks(page) for line in block.body.splitlines()]
    lines += re.findall(r"`(memplane [^`]+)`", page.read_text(encoding="utf-8"))
    for line in lines:
        if line.startswith(("helm ", "kubectl ")):
            # A release has the name of the command; in a pod it comes after two dashes.
            yield from re.findall(r" -- memplane ([^|\"]+)", line)
        elif not line.startswith(("#", '"', "-")):
            yield from re.findall(r"(?:^|[(|&;]\s*|=\S+\s)memplane ((?:[^|)\"]|\"[^\"]*\")+)", line)


def wrong_in(words: str, known: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a command as a page shows it, or None."""
    said = re.sub(r"\"[^\"]*\"", "", words)
    used = set(re.findall(r"(?<=\s)--[a-z-]+", said))
    name = next((one for one in known if words.startswith(f"{one} ") or words.strip() == one), None)
    if name is None:
        groups = {one.split()[0] for one in known if " " in one}
        is_group = said.split() == said.split()[:1] and said.split()[0] in groups
        return None if is_group else "there is no such command"
    options = {option for one in known[name].params for option in (*one.opts, *one.secondary_opts)}
    return f"no options {sorted(used - options)}" if used - options else None


def test_commands_and_options_in_the_pages_exist(generate: ModuleType, repository: Path) -> None:
    known = dict(generate.commands())
    wrong = [
        f"{page.name}: memplane {words}: {why}"
        for page in pages(repository)
        for words in commands_of(page)
        if (why := wrong_in(words, known))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "line",
    [
        "memplane admin frobnicate",
        "memplane sessions vanish --all",
        "memplane recall x --nope",
        "kubectl exec deploy/x -- memplane nonsense --gone",
    ],
)
def test_a_command_that_there_is_not_is_found_wherever_it_stands(
    line: str, generate: ModuleType, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"1. First:\n\n   ```sh example\n   {line}\n   ```\n")
    known = dict(generate.commands())
    assert [wrong_in(words, known) is not None for words in commands_of(page)] == [True]


def test_variables_in_the_pages_are_read_by_the_code(repository: Path) -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (repository / "memory_service").rglob("*.py"))
    tests = "".join(
        (repository / name).read_text("utf-8") for name in ("tests/fakes/postgres.py", "e2e/cluster/fixtures.py")
    )
    for page in pages(repository):
        for name in set(re.findall(r"\bMEMPLANE_[A-Z_]*[A-Z]\b", page.read_text(encoding="utf-8"))):
            assert name in code or name in tests, f"{page.name}: {name}"


def test_settings_in_the_pages_exist(generate: ModuleType, repository: Path) -> None:
    """Settings of a service, or fields of a kind's spec: some sections have both, under names of their own."""
    known = {path for path, *_ in generate.settings()}
    for kind in generate.KINDS:
        spec = generate.definition(kind)["properties"]["spec"]
        known |= {path.replace("[]", "") for path, *_ in generate.fields(spec)}
    sections = {path.split(".")[0] for path in known}
    for page in pages(repository):
        for name in set(
            re.findall(r"`([a-z][A-Za-z]+(?:\.[a-z][A-Za-z]+)+)(?:: [a-z0-9]+)?`", page.read_text(encoding="utf-8"))
        ):
            if name.split(".")[0] in sections and not name.endswith((".py", ".md", ".yaml", ".json")):
                above = {".".join(path.split(".")[:size]) for path in known for size in range(1, 5)}
                assert name in known | above, f"{page.name}: {name}"


def test_configuration_files_in_the_pages_are_configurations(repository: Path) -> None:
    for page in pages(repository):
        for block in blocks(page):
            if block.language == "yaml" and block.about == "memplane.yaml":
                ServiceConfig.model_validate(yaml.safe_load(block.body))


def test_every_block_says_what_it_is(repository: Path) -> None:
    for page in pages(repository):
        found = blocks(page)
        if "decisions" in page.parts or page.name == "CONTRIBUTING.md":
            continue
        for block in found:
            place = f"{page.name}, line {block.line}"
            assert block.language in LANGUAGES, f"{place}: {block.language!r}"
            if block.language == "sh":
                assert block.about in KINDS_OF_COMMANDS, f"{place}: {block.about!r}"
            if block.language == "python":
                assert block.about, f"{place}: name the file, so that it is run"
                ast.parse(block.body)


def test_every_link_leads_somewhere(repository: Path) -> None:
    broken = []
    for page in pages(repository):
        text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if target.startswith("https://"):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or (anchor and file.suffix == ".md" and anchor not in _anchors(file)):
                broken.append(f"{page.relative_to(repository)}: {target}")
    assert broken == []


def _anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_page_is_reached_from_the_index(repository: Path) -> None:
    docs = repository / "docs"
    linked = set(re.findall(r"\]\(([^)#\s]+)", (docs / "README.md").read_text(encoding="utf-8")))
    written = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    by_folder = ("decisions/", "how-to/runbooks/")  # the alerts' page leads to the runbooks
    assert {page for page in written if not page.startswith(by_folder)} - linked == {"README.md"}


def test_the_read_me_names_every_promise_of_the_guarantees(repository: Path) -> None:
    guarantees = (repository / "docs/explanation/guarantees.md").read_text(encoding="utf-8")
    read_me = (repository / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\d)\. ", guarantees, re.MULTILINE)
    assert headings == list("1234567")
    assert [found for found in re.findall(r"guarantees\.md#(\d)-", read_me)] == headings


def test_the_targets_that_the_pages_name_can_be_made(repository: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (repository / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in pages(repository):
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"`make ([a-z0-9-]+)`", text)) | set(
            re.findall(r"^make ([a-z0-9-]+)", text, re.MULTILINE)
        )
        assert named <= targets, page.name


def test_the_docs_target_writes_the_pages(repository: Path) -> None:
    planned = subprocess.run(
        ["make", "-n", "-o", ".venv/.dev", "docs"], cwd=repository, check=True, capture_output=True, text=True
    ).stdout
    assert "docs/generate.py" in planned
