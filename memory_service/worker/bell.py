"""Tells idle tasks of one kind that there may be work: each ring lets one of them look."""

from __future__ import annotations

import asyncio
import contextlib


class Bell:
    """A bell that is heard by one task at a time. Rings that nobody has heard yet are one."""

    def __init__(self) -> None:
        self._rung: asyncio.Queue[None] = asyncio.Queue(1)

    def ring(self) -> None:
        """Let one task look. Whoever finds something rings again, so that the next one looks too."""
        with contextlib.suppress(asyncio.QueueFull):
            self._rung.put_nowait(None)

    async def heard(self) -> None:
        """Return when it is this task's turn to look."""
        await self._rung.get()
