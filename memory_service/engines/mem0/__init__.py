"""Mem0 as an engine. Importing this package does not import `mem0`; the first extraction does."""

from __future__ import annotations

from memory_service.engines.mem0.engine import Mem0Engine

__all__ = ["Mem0Engine"]
