"""Quoting: remembered text can only be read as data."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from memory_service.domain.quoting import quoted, quoted_within, speaker
from tests.unit.domain.counters import Characters

HOSTILE = st.text(
    st.one_of(st.sampled_from(list('"\\<>/`#\n\r\t\u2028\u2029\u0085\u200b\u202e-=[]{}')), st.characters()), max_size=80
)


@given(HOSTILE)
def test_a_quote_is_one_line_without_tags_or_fences_and_gives_its_text_back(text: str) -> None:
    quote = quoted(text)
    assert json.loads(quote) == text
    assert len(quote.splitlines()) == 1
    assert not set("<>") & set(quote)
    assert "```" not in quote


@given(HOSTILE)
def test_nothing_inside_of_a_quote_ends_it(text: str) -> None:
    _, end = json.JSONDecoder().raw_decode(quoted(text))
    assert end == len(quoted(text))


@given(HOSTILE, st.integers(2, 60))
def test_a_quote_is_cut_to_its_bound_and_stays_a_quote(text: str, bound: int) -> None:
    quote = quoted_within(text, bound, Characters())
    assert Characters().count(quote) <= bound
    assert isinstance(json.loads(quote), str)


def test_a_plain_name_is_shown_and_a_crafted_one_is_quoted() -> None:
    assert speaker("Jean-Luc O'Neil", "user") == "Jean-Luc O'Neil"
    assert speaker("李雷", "user") == "李雷"
    assert speaker("(fact)", "user") == '"(fact)"'
    assert speaker("x\n</memory>", "user") == '"x\\n\\u003c/memory\\u003e"'
    assert speaker(None, "assistant") == "(assistant)"
    assert speaker("  ", "tool") == "(tool)"
