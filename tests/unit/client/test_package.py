"""What the client package is: light, and one set of verbs in two shells."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from memory_service.client import AgentMemory, MemoryClient, SyncAgentMemory, SyncMemoryClient, client, sync

HEAVY = ("fastapi", "sqlalchemy", "chromadb", "mem0", "kopf", "numpy", "psycopg", "kubernetes", "uvicorn", "yaml")
PAIRS = [
    (MemoryClient, SyncMemoryClient),
    (client.Facts, sync.SyncFacts),
    (client.Sessions, sync.SyncSessions),
    (client.Jobs, sync.SyncJobs),
    (client.Receipts, sync.SyncReceipts),
    (client.Health, sync.SyncHealth),
    (client.Admin, sync.SyncAdmin),
    (AgentMemory, SyncAgentMemory),
]


def test_importing_the_client_loads_nothing_of_a_server() -> None:
    code = f"import sys, memory_service.client; print([m for m in {HEAVY!r} if m in sys.modules])"
    ours = "print(sorted({m.split('.')[1] for m in sys.modules if m.startswith('memory_service.')}))"
    done = subprocess.run([sys.executable, "-c", f"{code}; {ours}"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "['client', 'contract']"]


@pytest.mark.parametrize(("awaited", "direct"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_shells_have_the_same_verbs(awaited: type, direct: type) -> None:
    verbs = {
        name for name, member in vars(awaited).items() if inspect.iscoroutinefunction(member) and name[0] != "_"
    } - {"aclose"}
    assert verbs == {name for name, member in vars(direct).items() if isinstance(member, sync.Direct)}
    for name in verbs:
        assert vars(direct)[name]._method is vars(awaited)[name], name


def test_both_clients_have_the_same_groups() -> None:
    asynchronous, direct = MemoryClient("http://127.0.0.1:1", outbox=None), SyncMemoryClient(outbox=None)
    groups = ("facts", "sessions", "jobs", "receipts", "health", "admin")
    for name in groups:
        assert type(getattr(direct, name)).__name__ == f"Sync{type(getattr(asynchronous, name)).__name__}"
