"""The tutorial and the README's quickstart are followed by a reader, command by command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.pages import Reader, difference


@pytest.mark.parametrize("page", ["docs/tutorial/first-agent.md", "README.md"])
def test_a_reader_who_follows_the_page_sees_what_it_says(page: str, repository: Path, tmp_path: Path) -> None:
    with Reader(tmp_path, repository) as reader:
        assert reader.follow(repository / page) > 0


@pytest.mark.parametrize(
    ("printed", "shown", "wrong"),
    [
        ("one\ntwo\n", "one\ntwo", None),
        ("  a     b\n\n  1     2\n", "a b\n1 2", None),
        ("added: 8d01\n", "added: …", None),
        ("added\n", "added…", None),
        ("one\ntwo\nthree\n", "one\n…", None),
        ("one\ntwo\nthree\n", "…\nthree", None),
        ("one\ntwo\nthree\n", "…\ntwo\n…", None),
        ("one\n", "…\none\n…", None),
        ("a\nb\na\nc\n", "…\na\nc", None),
        ("one\ntwo\n", "one", "'two' was printed too"),
        ("one\ntwo\n", "two", "'two' was not printed"),
        ("one\n", "one\n…\ntwo", "'two' was not printed"),
        ("one\ntwo\nthree\n", "…\ntwo", "'two' was not printed"),
        ("nothing was added, error\n", "added", "'added' was not printed"),
        ("not applied\n", "applied…", "'applied…' was not printed"),
        ("one two\n", "onetwo", "'onetwo' was not printed"),
    ],
)
def test_a_page_shows_every_line_that_is_printed_and_marks_what_varies(
    printed: str, shown: str, wrong: str | None
) -> None:
    assert difference(printed, shown) == wrong


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
