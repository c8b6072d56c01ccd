"""Models whose answers are known beforehand: a chat model that says what `upkeep` says, and vectors of hashes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

import numpy as np

from memory_service.ports.models import Completion, Message, ModelUsage
from memory_service.ports.records import Vector
from memory_service.providers.health import ProviderState, StateRecorder
from tests.fakes.stores import MovableClock
from tests.faults.walk.statements import stated, subject
from tests.faults.walk.upkeep import notes

DIMENSIONS = 64

_TURN = re.compile(r'^(?:(\d+) )?\d{4}-\d\d-\d\d \d\d:\d\d [^"]*?: (".*")$', re.MULTILINE)


class HashEmbedder:
    """Vectors that tell texts apart and know nothing about them, but what one thing they are about."""

    model = "hash-of-text"
    dimension = DIMENSIONS

    def __init__(self, clock: MovableClock) -> None:
        self._recorder = StateRecorder(clock)

    @property
    def state(self) -> ProviderState:
        """It always works."""
        return self._recorder.state

    async def embed(self, texts: Sequence[str], *, urgent: bool = False) -> Sequence[Vector]:
        """Return a vector a text."""
        return [_vector(text) for text in texts]

    async def embed_query(self, text: str) -> Vector:
        """Return the vector of a query."""
        return _vector(text)

    async def warm(self) -> None:
        """There is nothing to load."""

    def forget_queries(self) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        """Nothing is open."""


def _vector(text: str) -> Vector:
    named = subject(text) or text
    seed = int.from_bytes(hashlib.blake2b(named.encode(), digest_size=8).digest(), "big")
    values = np.random.default_rng(seed).standard_normal(DIMENSIONS).astype(np.float32)
    return values / np.linalg.norm(values)


class WalkChat:
    """Names the turns in digests, and takes the statements out of turns. While it is mute its answers are empty."""

    model = "walk"
    context_tokens = 16_384

    def __init__(self, clock: MovableClock) -> None:
        self._recorder = StateRecorder(clock)
        self.is_mute = False

    @property
    def state(self) -> ProviderState:
        """It always works."""
        return self._recorder.state

    async def complete(self, messages: Sequence[Message], *, max_tokens: int, json_object: bool = False) -> Completion:
        """Return the answer."""
        asked = messages[-1].content
        if self.is_mute:
            text = ""
        elif asked.startswith("Notes so far: "):
            head, _, lines = asked.partition("\n\nNew messages:\n")
            prior = head.removeprefix("Notes so far: ")
            text = notes("" if prior == "none yet" else json.loads(prior), [said for _, said in _turns(lines)])
        else:
            text = json.dumps({"facts": _facts(asked.rpartition("messages:\n")[2])})
        return Completion(text, ModelUsage())

    async def close(self) -> None:
        """Nothing is open."""


def _turns(lines: str) -> list[tuple[str, str]]:
    return [(seq, json.loads(quote)) for seq, quote in _TURN.findall(lines)]


def _facts(lines: str) -> list[dict[str, object]]:
    return [
        {"text": text, "kind": kind, "category": category, "seqs": [int(seq)]}
        for seq, said in _turns(lines)
        for text, kind, category in stated(said)
    ]
