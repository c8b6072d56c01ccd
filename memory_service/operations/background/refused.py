"""Texts that a model refuses: they are left out one by one, so that nobody else's work waits for them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from memory_service.errors import ModelRefused
from memory_service.operations.services import Services
from memory_service.ports.records import Vector

logger = logging.getLogger(__name__)


async def vectors_or_none(services: Services, texts: Sequence[str], *, purpose: str) -> Sequence[Vector | None]:
    """Return one vector a text, in order, and None for each that the embedder refuses.

    Raises:
        ModelUnavailable: none of the vectors may be used.
    """
    if not texts:
        return ()
    try:
        return await services.embedder.embed(texts)
    except ModelRefused:
        if len(texts) == 1:
            leave_out(services, purpose)
            return (None,)
    middle = len(texts) // 2
    first = await vectors_or_none(services, texts[:middle], purpose=purpose)
    return [*first, *await vectors_or_none(services, texts[middle:], purpose=purpose)]


def leave_out(services: Services, purpose: str, *, counted: str = "texts_refused") -> None:
    """Note that a text was left out of what a model was asked for."""
    services.meter.count(counted, purpose=purpose)
    logger.warning("a text was left out", extra={"purpose": purpose, "counted": counted})
