"""Engines: what turns turns into candidate facts. They need a chat model; without one there are episodes only."""

from __future__ import annotations

from memory_service.contract.config import EngineName, ServiceConfig
from memory_service.engines.mem0 import Mem0Engine
from memory_service.engines.native import NativeEngine
from memory_service.ports.models import Chat, Embedder, TokenCounter

__all__ = ["Mem0Engine", "NativeEngine", "open_engine"]


def open_engine(
    config: ServiceConfig, chat: Chat, embedder: Embedder, counter: TokenCounter
) -> Mem0Engine | NativeEngine:
    """Return the configured engine. Close it when done.

    Raises:
        Misconfigured: the engine cannot work with this chat model.
    """
    prompt = config.extraction.system_prompt
    if config.engine is EngineName.NATIVE:
        return NativeEngine(chat, counter, system_prompt=prompt)
    return Mem0Engine(chat, embedder, counter, system_prompt=prompt, concurrency=config.extraction.concurrency)
