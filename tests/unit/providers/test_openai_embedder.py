"""An embedding model gives all the vectors that were asked for, right in number and dimension, or none at all."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

from memory_service.contract.config import EmbeddingConfig
from memory_service.contract.health import Reason
from memory_service.errors import ModelRefused, ModelUnavailable
from memory_service.providers import BuiltinEmbedder, OfflineTokenCounter, open_embedder
from memory_service.providers.openai_embedder import OpenAIEmbedder
from tests.fakes.model_server import (
    EMBEDDINGS,
    Body,
    Directionless,
    Embeddings,
    Gate,
    ModelServer,
    Refusing,
    Status,
    TooLong,
    not_a_number,
    reversed_order,
    wrong_count,
    wrong_dimension,
)
from tests.unit.providers.conftest import NoSleep, StillClock

MakeEmbedder = Callable[..., OpenAIEmbedder]


@pytest.fixture
async def make_embedder(
    server: ModelServer, clock: StillClock, no_sleep: NoSleep, counter: OfflineTokenCounter
) -> AsyncIterator[MakeEmbedder]:
    """Makes embedding models of the server, closed afterwards."""
    made: list[OpenAIEmbedder] = []

    def make(**settings: object) -> OpenAIEmbedder:
        values = {"url": server.url, "model": "hashes", "dimensions": 64, "queryTimeoutSeconds": 20, **settings}
        config = EmbeddingConfig.model_validate(values)
        made.append(OpenAIEmbedder(config, counter, clock, retrying=no_sleep.retrying(config.max_retries)))
        return made[-1]

    yield make
    for embedder in made:
        await embedder.close()


async def test_vectors_are_unit_length_in_the_order_of_the_texts(
    make_embedder: MakeEmbedder, server: ModelServer
) -> None:
    server.script(EMBEDDINGS, Embeddings(reversed_order))
    together = await make_embedder().embed(["tea", "trains", "", " "])
    tea, trains, empty, blank = together
    (alone,) = await make_embedder().embed(["tea"])
    assert float(tea @ alone) == pytest.approx(1, abs=1e-6)
    assert float(tea @ trains) < 0.9
    assert np.allclose(empty, blank)
    assert all(vector.dtype == np.float32 for vector in together)
    assert all(float(np.linalg.norm(vector)) == pytest.approx(1, abs=1e-6) for vector in together)


async def test_no_texts_ask_for_nothing(make_embedder: MakeEmbedder, server: ModelServer) -> None:
    assert list(await make_embedder().embed([])) == []
    assert server.requests == []


async def test_many_texts_are_asked_for_in_several_requests(make_embedder: MakeEmbedder, server: ModelServer) -> None:
    texts = [f"text {number}" for number in range(70)]
    vectors = await make_embedder().embed(texts)
    assert len(vectors) == 70
    assert [len(request.body["input"]) for request in server.requests] == [32, 32, 6]


async def test_a_long_text_is_cut_into_chunks_and_averaged(make_embedder: MakeEmbedder, server: ModelServer) -> None:
    embedder = make_embedder(inputTokens=16)
    tea, trains = "green tea " * 6, "night trains " * 6
    first, second, both = await embedder.embed([tea, trains, tea + trains])
    assert both @ first > 0.5
    assert both @ second > 0.5
    assert all(len(text.split()) <= 16 for request in server.requests for text in request.body["input"])


async def test_a_text_that_the_endpoint_calls_too_long_is_cut_shorter_and_remembered(
    make_embedder: MakeEmbedder, server: ModelServer
) -> None:
    """The endpoint's tokens are not the counter's, so a refusal for length is an answer about length."""
    server.always(EMBEDDINGS, TooLong(max_words=100))
    embedder = make_embedder(inputTokens=4_000)
    vectors = await embedder.embed(["short", "words " * 3_000])
    assert len(vectors) == 2
    asked = server.counts[EMBEDDINGS]
    await embedder.embed(["words " * 100])
    assert server.counts[EMBEDDINGS] == asked + 1


async def test_a_text_of_a_million_characters_costs_a_bounded_number_of_inputs(
    make_embedder: MakeEmbedder, server: ModelServer
) -> None:
    (vector,) = await make_embedder(inputTokens=64).embed(["green tea " * 100_000])
    assert float(np.linalg.norm(vector)) == pytest.approx(1, abs=1e-6)
    assert sum(len(request.body["input"]) for request in server.requests) == 32


async def test_long_texts_are_cut_beside_the_event_loop(
    make_embedder: MakeEmbedder, counter: OfflineTokenCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    cutting: set[str] = set()
    cut = counter.cut

    def noted(text: str, most: int) -> str:
        cutting.add(threading.current_thread().name)
        return cut(text, most)

    monkeypatch.setattr(counter, "cut", noted)
    await make_embedder().embed(["green tea " * 10_000])
    assert cutting
    assert threading.current_thread().name not in cutting


async def test_a_refusal_that_is_not_about_length_ends(make_embedder: MakeEmbedder, server: ModelServer) -> None:
    server.always(EMBEDDINGS, Status(400, code="invalid_model"))
    embedder = make_embedder()
    with pytest.raises(ModelUnavailable, match="invalid_model"):
        await embedder.embed(["words " * 3_000])
    assert server.counts[EMBEDDINGS] < 12
    server.always(EMBEDDINGS, None)
    await embedder.embed(["words " * 3_000])
    assert len(server.requests[-1].body["input"]) == 1


async def test_a_text_that_is_refused_where_others_are_not_is_no_outage(
    make_embedder: MakeEmbedder, server: ModelServer
) -> None:
    server.always(EMBEDDINGS, Refusing("POISON"))
    embedder = make_embedder()
    with pytest.raises(ModelRefused, match="content_filter"):
        await embedder.embed(["harmless", "POISON"])
    assert embedder.state.ok


BREAKING = [
    Refusing("POISON", status=500),
    Refusing("POISON", status=503),
    Directionless("POISON", 0.0),
    Directionless("POISON", None),
    Directionless("POISON", math.nan),
]


@pytest.mark.parametrize("fault", BREAKING)
@pytest.mark.parametrize("texts", [["POISON"], ["harmless", "POISON"], ["POISON " * 200]])
async def test_a_text_that_has_no_vector_where_others_have_one_is_refused(
    make_embedder: MakeEmbedder, server: ModelServer, fault: Refusing | Directionless, texts: list[str]
) -> None:
    embedder = make_embedder(maxRetries=0)
    server.always(EMBEDDINGS, fault)
    with pytest.raises(ModelRefused):
        await embedder.embed(texts)
    assert embedder.state.ok
    assert server.counts[EMBEDDINGS] < 24


@pytest.mark.parametrize("number", [0.0, None, math.nan])
async def test_a_chunk_without_a_vector_leaves_a_long_text_that_of_the_others(
    make_embedder: MakeEmbedder, server: ModelServer, number: float | None
) -> None:
    embedder = make_embedder(inputTokens=16)
    long = "green tea " * 8
    (plain,) = await embedder.embed([long])
    server.always(EMBEDDINGS, Directionless("POISON", number))
    (vector,) = await embedder.embed([long + "POISON " * 40])
    assert float(vector @ plain) > 0.9


async def test_an_error_that_has_passed_when_others_have_vectors_is_no_refusal(
    make_embedder: MakeEmbedder, server: ModelServer
) -> None:
    server.script(EMBEDDINGS, Status(500))
    assert len(await make_embedder().embed(["tea"])) == 1


@pytest.mark.parametrize("status", [500, 503])
async def test_an_endpoint_that_breaks_on_everything_is_an_outage(
    make_embedder: MakeEmbedder, server: ModelServer, status: int
) -> None:
    embedder = make_embedder(maxRetries=0)
    server.always(EMBEDDINGS, Status(status))
    with pytest.raises(ModelUnavailable) as refused:
        await embedder.embed(["tea", "trains " * 200])
    assert not isinstance(refused.value, ModelRefused)
    assert embedder.state.ok is False
    assert server.counts[EMBEDDINGS] == 2


@pytest.mark.parametrize("texts", [["a harmless text"], []])
async def test_what_a_filter_refuses_shortens_nobody_elses_input(
    make_embedder: MakeEmbedder, server: ModelServer, texts: list[str]
) -> None:
    embedder = make_embedder()
    long = " ".join(f"word{number}" for number in range(1_500))
    (before,) = await embedder.embed([long])
    server.always(EMBEDDINGS, Refusing("bad", beside="other"))
    with contextlib.suppress(ModelRefused):
        await embedder.embed(["bad " + "filler " * 60 + "other", *texts])
    (after,) = await embedder.embed([long])
    assert len(server.requests[-1].body["input"]) == 1
    assert np.allclose(before, after)


async def test_a_length_is_believed_without_a_code_where_any_text_of_it_is_refused(
    make_embedder: MakeEmbedder, server: ModelServer
) -> None:
    embedder = make_embedder()
    server.always(EMBEDDINGS, TooLong(400, code=""))
    await embedder.embed(["green tea " * 1_000, "trains"])
    asked = server.counts[EMBEDDINGS]
    await embedder.embed(["green tea " * 1_000])
    assert server.counts[EMBEDDINGS] == asked + 1


def no_direction(answer: dict[str, Any]) -> None:
    """Give a vector of zeros."""
    answer["data"][0]["embedding"] = [0.0] * 64


def endless_number(answer: dict[str, Any]) -> None:
    """Give an infinite number."""
    answer["data"][0]["embedding"][3] = float("inf")


def too_large_number(answer: dict[str, Any]) -> None:
    """Give an integer that no float holds."""
    answer["data"][0]["embedding"][3] = 10**400


def one_index_twice(answer: dict[str, Any]) -> None:
    """Give two vectors for one text."""
    answer["data"][1]["index"] = 0


def odd_index(answer: dict[str, Any]) -> None:
    """Give an index that is not a number."""
    answer["data"][0]["index"] = ["0"]


def text_for_a_number(answer: dict[str, Any]) -> None:
    """Give a text where a number belongs."""
    answer["data"][0]["embedding"][0] = "0.5"


def two_dimensions(answer: dict[str, Any]) -> None:
    """Give vectors of different lengths."""
    answer["data"][0]["embedding"].pop()


def no_embedding(answer: dict[str, Any]) -> None:
    """Leave the numbers out."""
    del answer["data"][0]["embedding"]


def empty_embeddings(answer: dict[str, Any]) -> None:
    """Give vectors without a number."""
    for item in answer["data"]:
        item["embedding"] = []


def extra_vector(answer: dict[str, Any]) -> None:
    """Give one vector more."""
    answer["data"].append({**answer["data"][0], "index": len(answer["data"])})


@pytest.mark.parametrize(
    "change",
    [
        wrong_count,
        extra_vector,
        wrong_dimension,
        not_a_number,
        endless_number,
        too_large_number,
        no_direction,
        one_index_twice,
        odd_index,
        text_for_a_number,
        two_dimensions,
        no_embedding,
        empty_embeddings,
    ],
)
async def test_a_wrong_answer_gives_no_vector_at_all(
    make_embedder: MakeEmbedder, server: ModelServer, change: Callable[[dict[str, Any]], None]
) -> None:
    embedder = make_embedder()
    server.always(EMBEDDINGS, Embeddings(change))
    with pytest.raises(ModelUnavailable) as caught:
        await embedder.embed(["tea", "trains"])
    assert caught.value.reason == Reason.EMBEDDING_UNAVAILABLE
    assert embedder.state.reason is Reason.EMBEDDING_UNAVAILABLE
    server.always(EMBEDDINGS, None)
    assert len(await embedder.embed(["tea", "trains"])) == 2
    assert embedder.state.ok is True


@pytest.mark.parametrize("content", [b"null", b"[]", b'{"data": 3}', b'{"data": [1, 2]}', b'{"data": null}', b"no"])
async def test_what_is_not_a_list_of_embeddings_is_unavailable(
    make_embedder: MakeEmbedder, server: ModelServer, content: bytes
) -> None:
    server.script(EMBEDDINGS, Body(content))
    with pytest.raises(ModelUnavailable):
        await make_embedder().embed(["tea", "trains"])


async def test_huge_and_tiny_numbers_still_have_a_direction(make_embedder: MakeEmbedder, server: ModelServer) -> None:
    def stretched(answer: dict[str, Any]) -> None:
        for item, factor in zip(answer["data"], (1e300, 1e-300), strict=True):
            item["embedding"] = [number * factor for number in item["embedding"]]

    usual = await make_embedder().embed(["tea", "trains"])
    server.script(EMBEDDINGS, Embeddings(stretched))
    assert np.allclose(await make_embedder().embed(["tea", "trains"]), usual, atol=1e-6)


async def test_a_model_that_can_shorten_its_vectors_is_asked_to(
    make_embedder: MakeEmbedder, server: ModelServer
) -> None:
    """Not asked at first: many models refuse the parameter."""
    server.script(EMBEDDINGS, Embeddings(wrong_dimension))
    embedder = make_embedder()
    await embedder.embed(["tea"])
    await embedder.embed(["trains"])
    assert [request.body.get("dimensions") for request in server.requests] == [None, 64, 64]


async def test_a_model_that_refuses_to_shorten_is_of_the_wrong_dimension(
    make_embedder: MakeEmbedder, server: ModelServer
) -> None:
    server.script(EMBEDDINGS, Embeddings(wrong_dimension), Status(400, code="unsupported", param="dimensions"))
    with pytest.raises(ModelUnavailable, match="64 dimensions are expected, the answer has 65"):
        await make_embedder().embed(["tea"])


async def test_a_query_that_is_repeated_is_asked_for_once_until_an_erasure(
    make_embedder: MakeEmbedder, server: ModelServer
) -> None:
    embedder = make_embedder()
    first = await embedder.embed_query("where is Rex?")
    assert await embedder.embed_query("where is Rex?") is first
    assert server.counts[EMBEDDINGS] == 1
    embedder.forget_queries()
    await embedder.embed_query("where is Rex?")
    assert server.counts[EMBEDDINGS] == 2


async def test_a_query_is_given_up_after_its_own_timeout(make_embedder: MakeEmbedder, server: ModelServer) -> None:
    server.always(EMBEDDINGS, Gate())
    embedder = make_embedder(queryTimeoutSeconds=0.05)
    with pytest.raises(ModelUnavailable, match="longer than"):
        await embedder.embed_query("where is Rex?")
    assert embedder.state.ok is False
    server.always(EMBEDDINGS, None)


async def test_a_refused_key_is_named_as_such(make_embedder: MakeEmbedder, server: ModelServer) -> None:
    server.script(EMBEDDINGS, Status(401))
    with pytest.raises(ModelUnavailable) as caught:
        await make_embedder().probe()
    assert caught.value.reason == Reason.MODEL_UNAUTHORIZED


async def test_without_a_url_the_model_is_the_built_in_one(counter: OfflineTokenCounter, clock: StillClock) -> None:
    embedder = open_embedder(EmbeddingConfig(), counter, clock)
    assert isinstance(embedder, BuiltinEmbedder)
    await embedder.close()
