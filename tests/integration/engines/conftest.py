"""Both engines, with a chat model behind a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from memory_service.contract.config import ChatConfig, EmbeddingConfig, EngineName, ExtractionConfig, ServiceConfig
from memory_service.engines import Mem0Engine, NativeEngine, open_engine
from memory_service.providers import OfflineTokenCounter
from memory_service.providers.endpoint import Retrying
from memory_service.providers.openai_chat import OpenAIChat
from memory_service.providers.openai_embedder import OpenAIEmbedder
from tests.fakes.model_server import ModelServer


class Now:
    """The clock of the machine."""

    def now(self) -> datetime:
        """Return the time."""
        return datetime.now(UTC)

    def shift(self) -> timedelta:
        """Return no difference to the system's time."""
        return timedelta(0)


class World:
    """A server, the providers that use it, and engines made of them."""

    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self.counter = OfflineTokenCounter()
        retrying = Retrying(0)
        vectors = EmbeddingConfig(url=server.url, model="hashes", dimensions=server.dimension, timeout_seconds=20)
        self.embedder = OpenAIEmbedder(vectors, self.counter, Now(), retrying=retrying)
        self._chats: list[OpenAIChat] = []
        self._engines: list[Mem0Engine | NativeEngine] = []

    def engine(
        self, name: EngineName, *, context_tokens: int = 16_384, system_prompt: str | None = None
    ) -> Mem0Engine | NativeEngine:
        """Return an engine."""
        config = ChatConfig(url=self.server.url, model="rules", timeout_seconds=20, context_tokens=context_tokens)
        chat = OpenAIChat(config, Now(), retrying=Retrying(0))
        self._chats.append(chat)
        settings = ServiceConfig(engine=name, extraction=ExtractionConfig(system_prompt=system_prompt))
        self._engines.append(open_engine(settings, chat, self.embedder, self.counter))
        return self._engines[-1]

    async def close(self) -> None:
        """Close all that was made."""
        for closable in (*self._engines, *self._chats, self.embedder):
            await closable.close()


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A model endpoint on loopback."""
    with ModelServer() as running:
        yield running


@pytest.fixture
async def world(server: ModelServer) -> AsyncIterator[World]:
    """Everything an engine needs."""
    made = World(server)
    yield made
    await made.close()


@pytest.fixture(params=list(EngineName))
def name(request: pytest.FixtureRequest) -> EngineName:
    """Each engine in turn."""
    return EngineName(request.param)
