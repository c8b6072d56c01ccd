"""Every how-to page is followed by a reader, block by block."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from mem0 import Memory
from mem0.configs.base import MemoryItem

from tests.fakes.model_server import ModelServer
from tests.packaging.pages import Reader

PAGES = Path("docs/how-to")
ALONE = (
    "write-an-agent",
    "degraded-answers",
    "erase-a-person",
    "export-and-import",
    "static-tokens",
    "tls",
    "from-another-memory",
    "backup-and-restore",
    "observe",
    "upgrade",
)


@pytest.mark.parametrize("page", ALONE)
def test_a_reader_who_follows_the_page_sees_what_it_says(page: str, repository: Path, tmp_path: Path) -> None:
    with Reader(tmp_path, repository) as reader:
        assert reader.follow(repository / PAGES / f"{page}.md") > 0


def test_a_reader_with_a_database_switches_to_postgres(repository: Path, tmp_path: Path, database: str) -> None:
    with Reader(tmp_path, repository, {"MEMPLANE_DSN": database}) as reader:
        assert reader.follow(repository / PAGES / "postgres.md") > 0


def test_a_reader_with_a_chat_model_has_facts_extracted(repository: Path, tmp_path: Path, model: ModelServer) -> None:
    with Reader(tmp_path, repository, replaced={"http://127.0.0.1:8900/v1": model.url}) as reader:
        assert reader.follow(repository / PAGES / "chat-model.md") > 0


def test_a_reader_of_the_configuration_page_can_check_a_file(repository: Path, tmp_path: Path) -> None:
    with Reader(tmp_path, repository, {"MEMPLANE_PORT": ""}) as reader:
        assert reader.follow(repository / "docs/reference/configuration.md") > 0


def test_mem0_gives_the_fields_that_the_page_reads() -> None:
    assert {"id", "memory", "created_at", "updated_at", "metadata"} <= set(MemoryItem.model_fields)
    assert {"filters", "top_k"} <= set(inspect.signature(Memory.get_all).parameters)


IN_A_CLUSTER = {
    "install-operator",
    "first-store",
    "bind-an-agent",
    "users-on-kubernetes",
    "admin-on-kubernetes",
    "local-to-external",
    "alerts",
}
"""Pages for a cluster: followed by e2e/test_pages.py where a block says so, and compared with the code by the rest."""


def test_every_how_to_page_is_followed_or_needs_a_cluster(repository: Path) -> None:
    followed = {*ALONE, "postgres", "chat-model"}
    assert {page.stem for page in (repository / PAGES).glob("*.md")} == followed | IN_A_CLUSTER
