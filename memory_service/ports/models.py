"""Model endpoints, tokens and engines as the operations see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from memory_service.contract.scopes import FactKind
from memory_service.contract.turns import Role
from memory_service.ports.records import Vector


@dataclass(frozen=True)
class ModelUsage:
    """Tokens that a call used, as the endpoint reports them (0 where it does not)."""

    input_tokens: int = 0
    output_tokens: int = 0


class Embedder(Protocol):
    """Text to unit vectors."""

    model: str
    """Name and version; part of the schema's identity."""
    dimension: int

    async def embed(self, texts: Sequence[str], *, urgent: bool = False) -> Sequence[Vector]:
        """Return one unit vector a text; a long text is cut into chunks. `urgent`: somebody waits for it.

        Raises:
            ModelRefused: the model answers, and does not take one of these texts.
            ModelUnavailable: none of the vectors may be used (no answer, wrong count, wrong dimension).
        """

    async def embed_query(self, text: str) -> Vector:
        """Return the vector of a query, within the query timeout; one asked for a moment ago may be kept."""

    def forget_queries(self) -> None:
        """Drop kept vectors: something was erased."""


@dataclass(frozen=True)
class Message:
    """One message of a chat request."""

    role: str
    content: str


@dataclass(frozen=True)
class Completion:
    """An answer without the thinking before it. `truncated`: the model ran into its output limit; it is not whole."""

    text: str
    usage: ModelUsage
    truncated: bool = False


class Chat(Protocol):
    """A chat model."""

    @property
    def model(self) -> str:
        """The model's name."""

    @property
    def context_tokens(self) -> int:
        """Tokens that a request and its answer may have together."""

    async def complete(self, messages: Sequence[Message], *, max_tokens: int, json_object: bool = False) -> Completion:
        """Return the answer.

        Raises:
            ModelRefused: the model answers, and does not take these messages.
            ModelUnavailable: it did not answer after its retries, or refused the key.
        """


class TokenCounter(Protocol):
    """Counts tokens offline; every text is text, special-token spellings included."""

    def count(self, text: str) -> int:
        """Return the number of tokens."""

    def cut(self, text: str, max_tokens: int) -> str:
        """Return the longest prefix of at most `max_tokens` tokens, on a character border."""


class Clock(Protocol):
    """Time. The product's clock has no shift; the test entry point reads one from a file."""

    def now(self) -> datetime:
        """Return the current time in UTC."""

    def shift(self) -> timedelta:
        """Return how far this clock is from the system's: added to the database's own time in SQL."""


@dataclass(frozen=True)
class SaidTurn:
    """A turn as an engine sees it."""

    seq: int
    role: Role
    text: str
    name: str | None
    said_at: datetime


@dataclass(frozen=True)
class KnownFact:
    """A fact that an engine may compare with, by a short reference of this call (never an owner's id)."""

    ref: str
    text: str


@dataclass(frozen=True)
class Candidate:
    """A fact that an engine proposes. It names no owner and no scope; `updates` refers to a KnownFact's `ref`."""

    text: str
    kind: FactKind = FactKind.SEMANTIC
    seqs: tuple[int, ...] = ()
    category: str | None = None
    importance: float | None = None
    updates: str | None = None
    contradicts: bool = False


class UnparseableAnswer(Exception):
    """The model's answer is not what was asked for: a failed job, never "nothing to remember"."""


class Truncated(UnparseableAnswer):
    """The model ran into its output limit: the answer is not whole."""


class Engine(Protocol):
    """Turns turns into candidate facts."""

    async def extract(
        self,
        turns: Sequence[SaidTurn],
        *,
        context: Sequence[SaidTurn],
        known: Sequence[KnownFact],
        max_facts: int | None = None,
    ) -> Sequence[Candidate]:
        """Return what is worth knowing later from `turns`; `context` are earlier turns that explain them.

        Raises:
            ModelRefused: the model does not take one of these texts.
            ModelUnavailable: try again later.
            UnparseableAnswer: the answer could not be used; the job failed.
        """
