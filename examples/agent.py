"""A small agent that remembers: recall before each run, flush after it. Its "model" only repeats what it was given.

It binds to its store by name. In a cluster the operator mounts the binding; elsewhere MEMPLANE_ENDPOINT says where the
store is, and without it the laptop's default address is tried.
"""

from __future__ import annotations

from dataclasses import dataclass

from memory_service.client import AgentMemory, MemoryClient, Prelude


@dataclass(frozen=True)
class Reply:
    """What the agent said, and the memory that it had when it said it."""

    text: str
    prelude: Prelude


class Agent:
    """One conversation of an agent."""

    def __init__(self, client: MemoryClient, session_id: str) -> None:
        self._memory = AgentMemory(client, session_id=session_id)

    async def run(self, message: str) -> Reply:
        """Answer a message: recall, think, and keep both turns."""
        prelude = await self._memory.before_run(message)
        text = self._think(message, prelude)
        await self._memory.after_run([{"role": "user", "content": message}, {"role": "assistant", "content": text}])
        return Reply(text, prelude)

    def _think(self, message: str, prelude: Prelude) -> str:
        """Stand in for a chat model: a real agent puts `prelude.digest`, `block` and `window` into its prompt."""
        if message.rstrip().endswith("?"):
            return "Here is what I know about that." if prelude.block else "I know nothing about that."
        return "Noted."
