"""Adapters to models: the built-in embedder, OpenAI-compatible endpoints, and the offline token counter.

Importing this package loads no model, and no library of a model that is not configured.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from memory_service.contract.config import ChatConfig, EmbeddingConfig
from memory_service.ports.models import Clock, TokenCounter
from memory_service.providers.builtin_embedder import BuiltinEmbedder
from memory_service.providers.health import ProviderState
from memory_service.providers.tokens import OfflineTokenCounter

if TYPE_CHECKING:
    from memory_service.providers.openai_chat import OpenAIChat
    from memory_service.providers.openai_embedder import OpenAIEmbedder

__all__ = [
    "BuiltinEmbedder",
    "OfflineTokenCounter",
    "ProviderState",
    "open_chat",
    "open_counter",
    "open_embedder",
]


def open_chat(config: ChatConfig, clock: Clock) -> OpenAIChat | None:
    """Return the configured chat model; None where none is configured. Close it when done."""
    if config.url is None:
        return None
    from memory_service.providers.openai_chat import OpenAIChat

    return OpenAIChat(config, clock)


def open_embedder(config: EmbeddingConfig, counter: TokenCounter, clock: Clock) -> BuiltinEmbedder | OpenAIEmbedder:
    """Return the configured embedding model, or the built-in one. Close it when done."""
    if config.url is None:
        return BuiltinEmbedder(clock, query_timeout=timedelta(seconds=config.query_timeout_seconds))
    from memory_service.providers.openai_embedder import OpenAIEmbedder

    return OpenAIEmbedder(config, counter, clock)


def open_counter() -> OfflineTokenCounter:
    """Return the token counter; it loads its vocabulary on first use."""
    return OfflineTokenCounter()
