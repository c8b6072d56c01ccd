"""Tokens are counted offline, and every text is text."""

from __future__ import annotations

import pytest
import quicktok
from hypothesis import given
from hypothesis import strategies as st

from memory_service.engines import batches
from memory_service.providers import openai_embedder
from memory_service.providers.tokens import OfflineTokenCounter

COUNTER = OfflineTokenCounter()
ANY_TEXT = st.text(st.characters(), max_size=200)  # Surrogates included.


@pytest.mark.parametrize("encoding", ["o200k_base", "o200k_harmony", "cl100k_base", "llama3", "qwen3"])
def test_special_token_spellings_are_counted_as_text(encoding: str) -> None:
    for special in sorted(quicktok.get_encoding(encoding).special_tokens_set):
        assert COUNTER.count(special) > 1
        assert COUNTER.cut(f"a {special} b", 10_000) == f"a {special} b"


def test_counts_are_those_of_the_o200k_vocabulary() -> None:
    assert COUNTER.count("") == 0
    assert COUNTER.count("hello world") == 2
    assert COUNTER.count("hello <|endoftext|> there") == 9


@given(ANY_TEXT, st.integers(min_value=-1, max_value=60))
def test_a_cut_is_a_prefix_that_counts_at_most_what_was_asked_for(text: str, most: int) -> None:
    cut = COUNTER.cut(text, most)
    assert text.startswith(cut)
    assert COUNTER.count(cut) <= max(0, most)


@given(ANY_TEXT)
def test_a_text_that_fits_is_not_cut(text: str) -> None:
    assert COUNTER.cut(text, COUNTER.count(text)) == text


@given(st.text("ab \n\t'1é漢👩\u200d", max_size=80), st.integers(min_value=1, max_value=20))
def test_a_cut_leaves_out_little_of_what_would_fit(text: str, most: int) -> None:
    """It may end a token early, where a character spans two tokens; never more than a handful."""
    cut = COUNTER.cut(text, most)
    assert cut == text or COUNTER.count(cut) >= most - 4


@pytest.mark.parametrize("text", ["a", " ", "\n", "漢", "ab1 ", "<|endoftext|>", "\U0001f469\u200d"])
def test_a_megabyte_of_anything_is_counted_and_cut(text: str) -> None:
    big = text * (1_000_000 // len(text))
    tokens = COUNTER.count(big)
    assert tokens > 0
    cut = COUNTER.cut(big, 1_000)
    assert 0 < COUNTER.count(cut) <= 1_000
    assert COUNTER.cut(big, tokens) == big
    assert len(COUNTER.cut(big, tokens // 2)) < len(big)


def test_no_token_covers_more_characters_than_windows_of_a_long_text_allow_for() -> None:
    longest = max(len(token) for token in quicktok.get_encoding("o200k_base").token_byte_values())
    assert longest <= openai_embedder.LONGEST_TOKEN_CHARS == batches.LONGEST_TOKEN_CHARS


def test_a_lone_surrogate_is_counted_and_never_quoted_in_an_error() -> None:
    assert COUNTER.count("a\ud800b") == COUNTER.count("a\ufffdb")
    assert COUNTER.cut("a\ud800b", 100) == "a\ud800b"
