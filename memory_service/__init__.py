"""Memplane's memory service. This module imports nothing, so that the client stays light."""

__version__ = "0.1.0"
