"""What every operation is given: the ports, composed once by `bootstrap`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from memory_service.contract.config import ServiceConfig
from memory_service.operations.pace import Pace
from memory_service.operations.turnstile import Turnstile
from memory_service.ports.models import Chat, Clock, Embedder, Engine, TokenCounter
from memory_service.ports.process import Meter, Steps
from memory_service.ports.storage import Storage


@dataclass(frozen=True)
class Services:
    """The composed service. `chat` and `engine` are None where no chat model is configured: episodes only.

    `wake` tells the worker of this process that a job was enqueued; it may be called from any thread.
    """

    config: ServiceConfig
    storage: Storage
    embedder: Embedder
    chat: Chat | None
    engine: Engine | None
    counter: TokenCounter
    clock: Clock
    meter: Meter
    steps: Steps
    wake: Callable[[], None]
    turnstile: Turnstile = field(default_factory=Turnstile)
    purges: Pace = field(default_factory=Pace)
