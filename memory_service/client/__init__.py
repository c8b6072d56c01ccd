"""The client library: what an agent needs to remember, and nothing of the service.

Only the contract, httpx, pydantic and the standard library are imported here.
"""

from memory_service.client.agent import AgentMemory, Prelude, SyncAgentMemory, Tool
from memory_service.client.binding import ProjectedBinding, ResolvedBinding
from memory_service.client.client import MemoryClient
from memory_service.client.deadlines import Deadlines
from memory_service.client.errors import (
    Conflict,
    ContractError,
    Erased,
    InvalidRequest,
    LimitExceeded,
    MemoryClientError,
    NotAllowed,
    NotFound,
    OutboxError,
    OutboxFull,
    OutboxUnusable,
    ServiceUnavailable,
    UnavailableReason,
)
from memory_service.client.outbox import Outbox
from memory_service.client.results import Delivery, Forgotten, Recalled, Remembered, SessionActed, Written
from memory_service.client.sync import SyncMemoryClient

__all__ = [
    "AgentMemory",
    "Conflict",
    "ContractError",
    "Deadlines",
    "Delivery",
    "Erased",
    "Forgotten",
    "InvalidRequest",
    "LimitExceeded",
    "MemoryClient",
    "MemoryClientError",
    "NotAllowed",
    "NotFound",
    "Outbox",
    "OutboxError",
    "OutboxFull",
    "OutboxUnusable",
    "Prelude",
    "ProjectedBinding",
    "Recalled",
    "Remembered",
    "ResolvedBinding",
    "ServiceUnavailable",
    "SessionActed",
    "SyncAgentMemory",
    "SyncMemoryClient",
    "Tool",
    "UnavailableReason",
    "Written",
]
