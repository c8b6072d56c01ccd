"""The fixtures of `tests.fakes.identity_world`, for every test of this folder."""

from __future__ import annotations

from tests.fakes.identity_world import _no_ca_of_the_environment, clock, kube, world

__all__ = ["_no_ca_of_the_environment", "clock", "kube", "world"]
