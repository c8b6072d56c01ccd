"""Scopes, and what a binding lets an agent do with them."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """Which owner key a long-term operation uses."""

    PRIVATE = "private"
    USER = "user"
    SHARED = "shared"
    SESSION = "session"


class Tools(StrEnum):
    """Which memory tools a model may be given: `read` is search_memory, `write` is save_memory."""

    READ = "read"
    WRITE = "write"
    ALL = "all"


class FailureMode(StrEnum):
    """What a client does about an outage: `soft` goes on without memory, `strict` raises on write and forget."""

    SOFT = "soft"
    STRICT = "strict"


class Tier(StrEnum):
    """The parts of memory that a recall may include."""

    SHORT_TERM = "short_term"
    MEDIUM_TERM = "medium_term"
    LONG_TERM = "long_term"


class Kind(StrEnum):
    """The kinds of long-term item. `episode` is a turn found again verbatim, the others are facts."""

    SEMANTIC = "semantic"
    EPISODIC = "episodic"
    PROCEDURAL = "procedural"
    PREFERENCE = "preference"
    EPISODE = "episode"


class FactKind(StrEnum):
    """The kinds of fact."""

    SEMANTIC = "semantic"
    EPISODIC = "episodic"
    PROCEDURAL = "procedural"
    PREFERENCE = "preference"
