"""The folder tree is part of the design; what is promised about it is checked."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import BaseModel

import memory_service.contract.config
from memory_operator.crd import agent_memory, memory_store, model_api

HEAVY = ("fastapi", "starlette", "uvicorn", "sqlalchemy", "psycopg", "chromadb", "mem0", "kopf", "kubernetes", "numpy")


def fields_of(module: ModuleType) -> set[str]:
    """The fields of every model that a module defines."""
    models = [
        one
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, BaseModel) and one.__module__ == module.__name__
    ]
    return {name for model in models for name in model.model_fields}


def _tracked(repository: Path) -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=repository,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    return [repository / name for name in names if (repository / name).is_file()]


def test_the_folder_operator_never_shadows_the_standard_library(repository: Path) -> None:
    assert not (repository / "operator" / "__init__.py").exists()
    found = subprocess.run(
        [sys.executable, "-c", "import operator; print(operator.__file__)"],
        cwd=repository,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert not found.startswith(str(repository))


@pytest.mark.parametrize("module", ["memory_service.client", "memory_service.contract.config", "memory_service"])
def test_the_client_loads_no_server_package(module: str, repository: Path) -> None:
    code = f"import sys, {module}; print(*sorted(m for m in sys.modules if '.' not in m))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, check=True, capture_output=True, text=True
    ).stdout.split()
    assert not set(loaded) & set(HEAVY)


def test_no_module_is_a_drawer(repository: Path) -> None:
    drawers = {"utils", "helpers", "common", "manager", "misc"}
    found = [path for path in _tracked(repository) if path.suffix == ".py" and path.stem in drawers]
    assert found == []


def test_the_constraints_pin_every_package_and_name_no_index(repository: Path) -> None:
    lines = [line for line in (repository / "constraints.txt").read_text().splitlines() if line.strip()]
    assert lines
    assert [line for line in lines if not re.match(r"^[a-z0-9][a-z0-9._-]*==[^ ]+( ; .+)?$", line)] == []


def test_every_extra_is_in_the_constraints(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    pinned = {line.split("==")[0] for line in (repository / "constraints.txt").read_text().splitlines()}
    asked = [*project["dependencies"], *(name for extra in project["optional-dependencies"].values() for name in extra)]
    names = {re.split(r"[\[<>=!; ]", requirement)[0].lower().replace("_", "-") for requirement in asked}
    assert names - pinned == {"memplane"}


def test_the_licence_is_apache_2(repository: Path) -> None:
    assert "Apache License" in (repository / "LICENSE").read_text()
    assert tomllib.loads((repository / "pyproject.toml").read_text())["project"]["license"] == "Apache-2.0"


def test_no_file_names_a_machine_or_a_package_index(repository: Path) -> None:
    folders = ["/" + name + "/" for name in ("root", "home", "work")]
    words = [*folders, "pypi" + ".org", "proxy.golang" + ".org", "registry.npmjs" + ".org"]
    found = []
    for path in _tracked(repository):
        if path.suffix in {".png", ".svg", ".ico"} or path.name in {"LICENSE", "go.sum"}:
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        found += [f"{path.relative_to(repository)}: {word}" for word in words if word in text]
    assert found == []


def test_tests_never_skip_expect_failure_or_sleep(repository: Path) -> None:
    pattern = re.compile(r"pytest\.(mark\.)?(skip|xfail)|importorskip|\btime\.sleep\(|asyncio\.sleep\((?!0\))")
    found = []
    # What tests lean on may poll for a condition with a limit, and play a slow endpoint; tests may not.
    for path in (repository / "tests").rglob("test_*.py"):
        if path.name == Path(__file__).name:
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if pattern.search(line):
                found.append(f"{path.relative_to(repository)}:{number}: {line.strip()}")
    assert found == []


@pytest.mark.parametrize(
    ("folder", "fields"),
    [
        ("memory_service", fields_of(memory_service.contract.config)),
        (
            "operator/memory_operator",
            fields_of(agent_memory) | fields_of(memory_store) | fields_of(model_api),
        ),
    ],
    ids=["configuration", "custom resources"],
)
def test_every_setting_is_read_by_something(folder: str, fields: set[str], repository: Path) -> None:
    """What a person can set and nothing looks at is a promise that is not kept."""
    read = {
        node.attr
        for path in (repository / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }
    assert len(fields) > 20
    assert fields - read == set()
