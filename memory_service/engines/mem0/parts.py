"""Mem0 2.2.1 with every part of it that touches the outside replaced by ours.

Mem0 keeps what it is good at: its extraction prompt and pipeline. It reads what it is given, and what it would store is
collected. Import this module through `library.load` only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from mem0 import Memory  # type: ignore[import-untyped]
from mem0.configs.prompts import (  # type: ignore[import-untyped]
    ADDITIVE_EXTRACTION_PROMPT,
    generate_additive_extraction_prompt,
)
from mem0.embeddings.base import EmbeddingBase  # type: ignore[import-untyped]
from mem0.llms.base import LLMBase  # type: ignore[import-untyped]
from mem0.vector_stores.base import VectorStoreBase  # type: ignore[import-untyped]

EXTRACTION_PROMPT: str = ADDITIVE_EXTRACTION_PROMPT
SUBJECT = "subject"
"""The one id that Mem0 is ever given. Owners are no business of Mem0's, so no id can be a wildcard or leave here."""


@dataclass(frozen=True)
class Task:
    """One extraction. `ask` sends system and user prompt to the model and blocks until a readable answer is there."""

    messages: Sequence[dict[str, str]]
    earlier: Sequence[dict[str, str]]
    known: Sequence[tuple[str, dict[str, str]]]
    observation_date: str
    instructions: str
    ask: Callable[[str, str], str]


@dataclass(frozen=True)
class Extracted:
    """A memory that Mem0 would have stored."""

    text: str
    attributed_to: str


def extract(task: Task) -> list[Extracted]:
    """Return what Mem0 makes of a conversation. Blocking."""
    memory = _Memory(task)
    memory.add(list(task.messages), user_id=SUBJECT)
    return memory.vector_store.inserted


class _Memory(Memory):  # type: ignore[misc]
    """Sets the attributes that `Memory.__init__` sets, without opening what it opens; a test compares the two lists."""

    def __init__(self, task: Task) -> None:
        self.config = SimpleNamespace(
            llm=SimpleNamespace(config={}),
            vector_store=SimpleNamespace(provider="memplane", config=SimpleNamespace(collection_name=SUBJECT)),
        )
        self.embedding_model = _NoVectors()
        self.vector_store = _Collected(task.known)
        self.llm = _Asking(task)
        self.db = _NoHistory(task.earlier)
        self.collection_name = SUBJECT
        self.api_version = "v1.1"
        self.custom_instructions = task.instructions
        self.reranker = None
        self._entity_store = _Collected(())


class _Asking(LLMBase):  # type: ignore[misc]
    """Asks our chat model. The prompt is Mem0's, built anew with the day of the conversation instead of today."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def generate_response(
        self, messages: list[dict[str, str]], tools: Any = None, tool_choice: str = "auto", **_: Any
    ) -> str:
        task = self._task
        prompt = generate_additive_extraction_prompt(
            existing_memories=[{"id": str(i), "text": row["data"]} for i, (_, row) in enumerate(task.known)],
            new_messages="".join(f"{message['role']}: {message['content']}\n" for message in task.messages),
            last_k_messages=list(task.earlier),
            current_date=task.observation_date,
            timestamp=task.observation_date,
            custom_instructions=task.instructions,
        )
        return task.ask(messages[0]["content"], prompt)


class _NoVectors(EmbeddingBase):  # type: ignore[misc]
    """Stands where an embedding model would. Candidates are embedded once, after merging; Mem0 needs no vectors."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(embedding_dims=1)

    def embed(self, text: str, memory_action: Any = None) -> list[float]:
        return [1.0]


@dataclass(frozen=True)
class _Row:
    id: str
    payload: dict[str, str]
    score: float = 1.0


@dataclass
class _Collected(VectorStoreBase):  # type: ignore[misc]
    """Reads the facts that the call was given and collects what Mem0 inserts. Every other door is shut."""

    known: Sequence[tuple[str, dict[str, str]]]
    inserted: list[Extracted] = field(default_factory=list)

    def search(self, query: Any, vectors: Any, top_k: int = 5, filters: dict[str, Any] | None = None) -> list[_Row]:
        return [_Row(ref, row) for ref, row in self.known] if filters == {"user_id": SUBJECT} else []

    def insert(self, vectors: Any, payloads: Any = None, ids: Any = None) -> None:
        for payload in payloads:
            self.inserted.append(Extracted(payload["data"], payload.get("attributed_to", "user")))

    def list(self, filters: Any = None, top_k: Any = None) -> Any:
        return [[]]

    def get(self, vector_id: Any) -> None:
        return None

    def create_col(self, name: Any, vector_size: Any, distance: Any) -> None:
        raise _shut("create_col")

    def update(self, vector_id: Any, vector: Any = None, payload: Any = None) -> None:
        raise _shut("update")

    def delete(self, vector_id: Any) -> None:
        raise _shut("delete")

    def list_cols(self) -> None:
        raise _shut("list_cols")

    def delete_col(self) -> None:
        raise _shut("delete_col")

    def col_info(self) -> None:
        raise _shut("col_info")

    def reset(self) -> None:
        raise _shut("reset")


class _NoHistory:
    """Stands where Mem0 keeps a history file: gives the earlier turns of this session alone, and keeps nothing."""

    def __init__(self, earlier: Sequence[dict[str, str]]) -> None:
        self._earlier = list(earlier)

    def get_last_messages(self, session_scope: str, limit: int = 10) -> list[dict[str, str]]:
        return self._earlier[-limit:]

    def save_messages(self, messages: Any, session_scope: str) -> None:
        """Keep nothing."""

    def add_history(self, *_: Any, **__: Any) -> None:
        """Keep nothing."""

    def batch_add_history(self, records: Any) -> None:
        """Keep nothing."""

    def get_history(self, memory_id: str) -> list[Any]:
        return []

    def reset(self) -> None:
        """Keep nothing."""

    def close(self) -> None:
        """Hold nothing."""


def _shut(name: str) -> NotImplementedError:
    return NotImplementedError(f"Mem0 called {name!r} of the vector store, which extraction does not need")
