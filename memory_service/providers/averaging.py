"""One vector out of the vectors of a long text's chunks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memory_service.ports.records import Vector

MAX_CHUNKS = 32
"""Chunks of one text that are embedded. The mean of more says little, and each costs time or money."""
SHORTEST = 1e-12
"""Vectors shorter than this have no direction."""


def evenly(count: int, wanted: int) -> list[int]:
    """Return at most `wanted` of the places from 0 to `count` - 1, the first and the last among them."""
    if count <= wanted:
        return list(range(count))
    return [round(place * (count - 1) / (wanted - 1)) for place in range(wanted)]


def unit_mean(vectors: NDArray[np.floating], weights: Sequence[float]) -> Vector | None:
    """Return the weighted mean of unit vectors as a unit vector; None if they cancel out or are not finite."""
    mean = vectors[0].astype(np.float64)
    if len(vectors) > 1:
        mean = np.average(vectors.astype(np.float64), axis=0, weights=np.asarray(weights, dtype=np.float64))
    length = float(np.linalg.norm(mean))
    if not np.isfinite(length) or length < SHORTEST:
        return None
    unit: Vector = (mean / length).astype(np.float32)
    return unit
