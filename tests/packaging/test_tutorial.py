"""The tutorial and the README's quickstart are followed by a reader, command by command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.pages import Reader


@pytest.mark.parametrize("page", ["docs/tutorial/first-agent.md", "README.md"])
def test_a_reader_who_follows_the_page_sees_what_it_says(page: str, repository: Path, tmp_path: Path) -> None:
    with Reader(tmp_path, repository) as reader:
        assert reader.follow(repository / page) > 0
