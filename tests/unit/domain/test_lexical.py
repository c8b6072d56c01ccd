"""Words: which stems are stored and looked for, and which texts they and the vectors are made from."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_service.contract.turns import Role
from memory_service.domain import lexical
from memory_service.domain.lexical import query_terms, terms

MAY = datetime(2023, 5, 7, 9, 30, tzinfo=UTC)


def test_words_are_folded_stemmed_and_freed_of_function_words_in_their_order() -> None:
    assert terms("The DOGS were running, and the dog runs!") == ("dog", "run", "dog", "run")


def test_possessives_and_typographic_apostrophes_meet_the_plain_word() -> None:
    assert terms("John's") == terms("John’s") == terms("john") == ("john",)


@pytest.mark.parametrize("written", ["7 May 2023", "May 7th, 2023", "07 may 2023"])
def test_a_date_is_found_however_its_day_is_written(written: str) -> None:
    assert set(terms(written)) == {"7", "may", "2023"}


def test_numbers_stay_and_long_ones_keep_their_zeros() -> None:
    assert terms("order 00042 costs 3.50") == ("order", "00042", "cost", "3", "50")


def test_accents_of_latin_words_do_not_hide_them() -> None:
    assert terms("café résumé naïve") == terms("cafe resume naive")


def test_full_width_letters_are_the_letters() -> None:
    assert terms("ＢＥＲＬＩＮ") == ("berlin",)


def test_words_of_scripts_with_marks_stay_whole() -> None:
    assert terms("हिन्दी भाषा") == ("हिन्दी", "भाषा")


def test_a_run_of_cjk_text_becomes_pairs_and_each_ideograph_alone_can_be_asked_for() -> None:
    stored = terms("東京に行った")
    assert {"東京", "京に", "に行", "東", "京", "行"} <= set(stored)
    assert set(query_terms("東京")) == {"東京"}
    assert query_terms("猫") == ("猫",)
    assert "猫" in terms("黒猫がいる")


def test_cjk_text_inside_of_latin_text_is_found_by_both() -> None:
    assert set(query_terms("Shibuya渋谷station")) <= set(terms("we met at Shibuya渋谷station"))


def test_identifiers_fall_into_their_words() -> None:
    assert terms("user_id=https://example.org/a-b") == ("user", "id", "https", "exampl", "org", "b")


def test_a_query_of_function_words_alone_has_no_terms() -> None:
    assert query_terms("who are you and what was that?") == ()


def test_a_query_names_each_stem_once_in_order_of_appearance() -> None:
    assert query_terms("hiking trips, a hike, trip") == ("hike", "trip")


@given(st.text(max_size=300))
def test_any_text_has_terms_and_none_of_them_is_empty_or_long(text: str) -> None:
    found = terms(text)
    assert all(found)
    assert all(len(term) <= 3 * lexical.MAX_WORD_CHARS for term in found)
    assert terms(text) == found


@given(st.text(max_size=200))
def test_every_query_term_is_among_the_terms_of_the_same_text(text: str) -> None:
    assert set(query_terms(text)) <= set(terms(text))


@pytest.mark.parametrize(
    "text",
    [
        "word " * 200_000,
        "a" * 1_000_000,
        "東" * 1_000_000,
        "a'" * 500_000,
        "é" * 1_000_000,
        "'" * 1_000_000,
        "a\u0300" * 500_000,
    ],
    ids=["words", "one word", "cjk", "apostrophes", "accents", "only apostrophes", "marks"],
)
def test_a_megabyte_of_anything_is_split_in_seconds(text: str) -> None:
    begin = time.thread_time()
    terms(text)
    assert time.thread_time() - begin < 10


def test_threads_that_stem_together_get_what_one_alone_gets() -> None:
    words = [
        f"{stem}{ending}" for stem in ("nation", "walk", "gener", "hop") for ending in ("ing", "s", "ed", "al", "ly")
    ]
    alone = [terms(word + str(number)) for number in range(40) for word in words]
    together: list[list[tuple[str, ...]]] = []

    def run() -> None:
        lexical._stem.cache_clear()
        together.append([terms(word + str(number)) for number in range(40) for word in words])

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(result == alone for result in together)


def test_a_turn_is_found_by_its_speaker_and_its_date() -> None:
    found = set(terms(lexical.turn_index_text("Caroline", Role.USER, MAY, "I went to the lake.")))
    assert set(query_terms("Caroline lake 7 May 2023")) <= found


def test_an_unnamed_user_adds_no_speaker_and_other_roles_add_theirs() -> None:
    assert lexical.turn_index_text(None, Role.USER, MAY, "Hi there") == "Hi there (7 May 2023)"
    assert lexical.turn_index_text(None, Role.ASSISTANT, MAY, "Hi there").startswith("assistant: ")


def test_content_is_what_a_turn_says_even_if_it_has_parts() -> None:
    assert lexical.turn_text("said", [{"type": "text", "text": "other"}]) == "said"


def test_a_turn_of_parts_says_its_texts_captions_and_results_but_no_arguments_links_or_keys() -> None:
    parts: list[Mapping[str, Any]] = [
        {"type": "text", "text": "Look at this"},
        {"type": "image", "url": "https://secret.example/x.png", "alt": "a red boat"},
        {"type": "tool_call", "id": "1", "name": "find_ferry", "arguments": {"harbour": "argumentative"}},
        {"type": "tool_result", "id": "1", "content": {"departures": ["noon", 14, True, None, {"deep": "pier nine"}]}},
        {"type": "tool_result", "id": "2", "content": '{"wrapped": "inner words"}'},
    ]
    said = lexical.turn_text(None, parts)
    for word in ("Look at this", "a red boat", "find_ferry", "noon", "14", "pier nine", "inner words"):
        assert word in said
    for word in ("secret", "argumentative", "departures", "wrapped", "{"):
        assert word not in said


def test_tool_payloads_never_reach_the_vector() -> None:
    parts: list[Mapping[str, Any]] = [
        {"type": "text", "text": "The ferry leaves at noon."},
        {"type": "tool_call", "id": "1", "name": "find_ferry", "arguments": {}},
        {"type": "tool_result", "id": "1", "content": "raw payload"},
    ]
    embedded = lexical.turn_embedding_text("Ada", Role.ASSISTANT, MAY, None, parts)
    assert embedded == "Ada: The ferry leaves at noon."
    assert lexical.turn_embedding_text(None, Role.TOOL, MAY, "result text", None) == ""
    assert lexical.turn_embedding_text(None, Role.USER, MAY, json.dumps({"a": [1, 2]}), None) == ""
    assert lexical.turn_embedding_text(None, Role.USER, MAY, " ", None) == ""


def test_text_in_braces_that_is_no_json_is_still_text() -> None:
    assert lexical.turn_embedding_text(None, Role.USER, MAY, "{hello}", None) == "{hello}"


def test_a_fact_is_found_by_the_labels_it_was_filed_under() -> None:
    text = lexical.fact_index_text("Drinks it black.", key="coffee.style", category="preference", tags=["kitchen"])
    assert set(query_terms("coffee style preference kitchen")) <= set(terms(text))
    assert lexical.fact_index_text("Plain.") == "Plain."
