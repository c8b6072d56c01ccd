"""One builder per verb: what is asked, and the model of its answer. No I/O, no clock, no configuration.

A module for each noun of the client, `memory` for the verbs without one. What we send is checked as strictly as the
service does, in `bodies`; `turns` gives each turn its id.
"""

from memory_service.client.requests import admin, facts, health, jobs, receipts, sessions
from memory_service.client.requests.memory import forget, list_items, recall, remember, write

__all__ = [
    "admin",
    "facts",
    "forget",
    "health",
    "jobs",
    "list_items",
    "recall",
    "receipts",
    "remember",
    "sessions",
    "write",
]
