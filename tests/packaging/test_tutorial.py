"""The tutorial and the README's quickstart are followed by a reader, command by command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.pages import Reader


@pytest.mark.parametrize("page", ["docs/tutorial/first-agent.md", "README.md"])
def test_a_reader_who_follows_the_page_sees_what_it_says(page: str, repository: Path, tmp_path: Path) -> None:
    with Reader(tmp_path, repository) as reader:
        assert reader.follow(repository / page) > 0


def test_a_reader_notices_a_page_that_is_wrong(repository: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nprintf 'one\\nthree\\n'\n```\n\n```text\none\ntwo\n```\n")
    with (
        Reader(tmp_path / "folder", repository) as reader,
        pytest.raises(AssertionError, match="'two' was not printed"),
    ):
        reader.follow(page)


def test_a_reader_notices_a_command_that_fails(repository: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nexport COLOUR=red\n```\n\n```sh\ntest $COLOUR = red\nfalse\n```\n")
    with Reader(tmp_path / "folder", repository) as reader, pytest.raises(AssertionError, match="line 5: exit code 1"):
        reader.follow(page)


def test_a_reader_with_a_cluster_does_what_is_for_one_and_nothing_else(repository: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\nfalse\n```\n\n```sh cluster\necho default\n```\n\n```text\nown\n```\n\n```sh example\nfalse\n```\n"
    )
    with Reader(tmp_path / "folder", repository, replaced={"default": "own"}) as reader:
        assert reader.follow(page, about="cluster") == 1
