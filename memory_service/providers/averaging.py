"""One vector out of the vectors of a text's chunks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memory_service.ports.records import Vector

SHORTEST = 1e-12
"""Vectors shorter than this have no direction."""


def unit_mean(vectors: NDArray[np.floating], weights: Sequence[float]) -> Vector | None:
    """Return the weighted mean of unit vectors as a unit vector; None if they cancel out or are not finite."""
    mean = np.average(vectors.astype(np.float64), axis=0, weights=np.asarray(weights, dtype=np.float64))
    length = float(np.linalg.norm(mean))
    if not np.isfinite(length) or length < SHORTEST:
        return None
    unit: Vector = (mean / length).astype(np.float32)
    return unit
