"""What we lean on inside Mem0 2.2.1. A failure here says what to look at again before the pin is moved."""

from __future__ import annotations

import ast
import inspect
import textwrap
from importlib.metadata import version
from types import ModuleType

import pytest

from memory_service.engines.mem0 import library
from memory_service.engines.mem0.engine import PROMPT_TOKENS
from memory_service.engines.mem0.prompting import CONTEXT_CHARS
from memory_service.providers import OfflineTokenCounter


@pytest.fixture(scope="module")
def parts() -> ModuleType:
    """Our parts, with Mem0 imported the way the service does."""
    library.load()
    from memory_service.engines.mem0 import parts

    return parts


def _assigned(function: object) -> set[str]:
    """Return the names of the attributes that a method sets on itself, those under `if MEM0_TELEMETRY` apart."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))  # type: ignore[arg-type]
    telemetry = [
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and isinstance(branch.test, ast.Name) and branch.test.id == "MEM0_TELEMETRY"
        for node in ast.walk(branch)
    ]
    return {
        target.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and node not in telemetry
        for target in node.targets
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    }


def _called_on(function: object, part: str) -> set[str]:
    """Return the names of the methods that a method calls on `self.<part>`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))  # type: ignore[arg-type]
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == part
        and isinstance(node.value.value, ast.Name)
        and node.value.value.id == "self"
    }


def test_the_pinned_release_is_installed() -> None:
    assert version("mem0ai") == "2.2.1"


def test_every_attribute_that_mem0_sets_is_set_by_us(parts: ModuleType) -> None:
    assert _assigned(parts.Memory.__init__) == _assigned(parts._Memory.__init__)


def test_extraction_asks_its_parts_for_nothing_else(parts: ModuleType) -> None:
    pipeline = parts.Memory._add_to_vector_store
    assert _called_on(pipeline, "vector_store") == {"search", "insert"}
    assert _called_on(pipeline, "llm") == {"generate_response"}
    assert _called_on(pipeline, "embedding_model") == {"embed", "embed_batch"}
    assert _called_on(pipeline, "entity_store") == {"search_batch", "update", "insert"}
    for name in _called_on(pipeline, "db"):
        assert hasattr(parts._NoHistory, name)
    for name in vars(parts.VectorStoreBase):
        if getattr(vars(parts.VectorStoreBase)[name], "__isabstractmethod__", False):
            assert name in vars(parts._Collected)


def test_the_prompt_is_built_from_what_we_give(parts: ModuleType) -> None:
    parameters = inspect.signature(parts.generate_additive_extraction_prompt).parameters
    assert {
        "existing_memories",
        "new_messages",
        "last_k_messages",
        "current_date",
        "timestamp",
        "custom_instructions",
    } <= set(parameters)
    from mem0.configs.prompts import PAST_MESSAGE_TRUNCATION_LIMIT

    assert CONTEXT_CHARS < PAST_MESSAGE_TRUNCATION_LIMIT


def test_the_room_kept_for_mem0s_prompt_is_enough(parts: ModuleType) -> None:
    assert OfflineTokenCounter().count(parts.EXTRACTION_PROMPT) < PROMPT_TOKENS


def test_telemetry_and_downloads_are_off(parts: ModuleType) -> None:
    from mem0.memory import main, telemetry
    from mem0.utils import spacy_models

    assert telemetry.MEM0_TELEMETRY is False
    assert main.MEM0_TELEMETRY is False
    assert telemetry.client_telemetry.posthog is None
    assert spacy_models.get_nlp_full() is None
    assert spacy_models.get_nlp_lemma() is None
    assert "_load_failed_full" in inspect.getsource(spacy_models.get_nlp_full)
    assert "_load_failed_lemma" in inspect.getsource(spacy_models.get_nlp_lemma)


def test_no_other_door_of_our_store_is_open(parts: ModuleType) -> None:
    store = parts._Collected([("k1", {"data": "a"})])
    assert store.search("q", [1.0], filters={"user_id": "*"}) == []
    assert store.search("q", [1.0], filters=None) == []
    assert [row.id for row in store.search("q", [1.0], filters={"user_id": parts.SUBJECT})] == ["k1"]
    for call in (
        lambda: store.delete("k1"),
        lambda: store.update("k1"),
        store.reset,
        store.delete_col,
        store.list_cols,
        store.col_info,
        lambda: store.create_col("a", 1, "cosine"),
    ):
        with pytest.raises(NotImplementedError):
            call()
