"""An embedding model behind an OpenAI-compatible endpoint.

Whatever the endpoint answers, a caller gets all of what was asked for or `ModelUnavailable`, and nothing in between.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memory_service.contract.config import EmbeddingConfig
from memory_service.contract.health import Reason
from memory_service.domain.packing import packed
from memory_service.errors import ModelUnavailable
from memory_service.ports.models import Clock, TokenCounter
from memory_service.ports.records import Vector
from memory_service.providers.averaging import MAX_CHUNKS, evenly, unit_mean
from memory_service.providers.endpoint import Endpoint, Refused, Retrying
from memory_service.providers.health import ProviderState
from memory_service.providers.query_cache import QueryCache

BYTES_PER_NUMBER = 32
"""Most bytes that one number of a vector takes as JSON text."""
ENVELOPE_BYTES = 256 * 1024
"""Bytes that an embedding answer may take besides its numbers."""
LONGEST_TOKEN_CHARS = 128
"""Characters that one token covers at most: a window of this many for each token holds a whole chunk."""
MAX_INPUTS = 32
"""Inputs of one embedding request: the smallest default limit among the servers that are in use."""
MAX_BATCH_TOKENS = 32_000
DEFAULT_INPUT_TOKENS = 8_000
"""Longest input while `inputTokens` is unset. An endpoint that refuses its length is asked again with half of it."""
LARGE_CHARS = 4_000
"""Texts above this are counted in a thread, so that the loop is free for others; a question is counted sooner than
it is handed to one. Judgement."""
LENGTH_CODES = ("length", "too_long", "too_large")
"""What an error's code holds that is about the length of what was sent."""
SHORTEST_INPUT_TOKENS = 32
"""A refusal of inputs this short is not about their length."""
PLAIN_TEXT = "memory"
"""What no endpoint has a reason to refuse: where it refuses this as well, it is not about a text."""


class OpenAIEmbedder:
    """An embedding model. Vectors are brought to unit length."""

    def __init__(
        self, config: EmbeddingConfig, counter: TokenCounter, clock: Clock, *, retrying: Retrying | None = None
    ) -> None:
        if config.model is None or config.dimensions is None:
            raise ValueError("an embedding model needs `url`, `model` and `dimensions`")
        self.model = config.model
        self.dimension = config.dimensions
        self._counter = counter
        self._query_timeout = timedelta(seconds=config.query_timeout_seconds)
        self._input_tokens = config.input_tokens or DEFAULT_INPUT_TOKENS
        self._asks_for_dimension = False
        self._queries = QueryCache()
        self._endpoint = Endpoint(
            "embedding model", config, unavailable=Reason.EMBEDDING_UNAVAILABLE, retrying=retrying, clock=clock
        )

    @property
    def state(self) -> ProviderState:
        """How the last call went."""
        return self._endpoint.state

    async def embed(self, texts: Sequence[str], *, urgent: bool = False) -> Sequence[Vector]:
        """Return one unit vector a text, in order; nothing is queued here, so that `urgent` changes nothing.

        A text longer than the model's input is cut into chunks whose vectors are averaged; of more than 32 chunks, 32
        are taken evenly. Where the endpoint refuses the length all the same (its tokens are others), shorter chunks are
        tried and kept to. Where it refuses one text for another reason, shorter chunks of that text alone are tried.

        Raises:
            ModelRefused: the endpoint answers, and has no vector for one of these texts.
            ModelUnavailable: none of the vectors may be used.
        """
        if not texts:
            return []
        cap = self._input_tokens
        is_about_length = True
        is_repeated = False
        while True:
            chunks = await self._chunked(texts, cap)
            try:
                result = self._means(await self._embed_chunks([chunk for group in chunks for chunk in group]), chunks)
                break
            except Refused as refusal:
                if not refusal.may_be_about_the_text or not await self._takes(PLAIN_TEXT):
                    raise self._endpoint.failure(str(refusal)) from refusal
                longest = max(tokens for group in chunks for _, tokens in group)
                is_about_length = is_about_length and await self._is_about_length(refusal, longest)
                if not is_about_length:
                    if len(texts) > 1 or (longest <= SHORTEST_INPUT_TOKENS and (is_repeated or not refusal.may_pass)):
                        raise self._endpoint.refusal(str(refusal)) from refusal
                    if refusal.may_pass and not is_repeated:
                        is_repeated = True
                        continue
                cap = max(SHORTEST_INPUT_TOKENS, min(cap, longest) // 2)
        if is_about_length:
            self._input_tokens = cap
        self._endpoint.succeeded()
        return result

    async def embed_query(self, text: str) -> Vector:
        """Return a query's unit vector; one that was asked for a moment ago is not asked for again.

        Raises:
            ModelUnavailable: as `embed`, or it took longer than the query timeout, repeats included.
        """
        known = self._queries.get(text)
        if known is not None:
            return known
        generation = self._queries.generation
        try:
            async with asyncio.timeout(self._query_timeout.total_seconds()):
                (vector,) = await self.embed([text])
        except TimeoutError as error:
            raise self._endpoint.failure(
                f"the query took longer than {self._query_timeout.total_seconds():g} s"
            ) from error
        self._queries.put(text, vector, generation=generation)
        return vector

    def forget_queries(self) -> None:
        """Drop the vectors of recent queries; every erasure calls this."""
        self._queries.clear()

    async def probe(self) -> None:
        """Embed a word: shows that the endpoint answers, takes the key and gives vectors of the right dimension.

        Raises:
            ModelUnavailable: it does not.
        """
        await self.embed([PLAIN_TEXT])

    async def warm(self) -> None:
        """Do nothing: an endpoint has nothing to load here."""

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()

    async def _chunked(self, texts: Sequence[str], cap: int) -> list[list[tuple[str, int]]]:
        if sum(map(len, texts)) <= LARGE_CHARS:
            return self._chunks_of(texts, cap)
        return await asyncio.to_thread(self._chunks_of, texts, cap)

    def _chunks_of(self, texts: Sequence[str], cap: int) -> list[list[tuple[str, int]]]:
        return [self._chunks(text, cap) for text in texts]

    def _chunks(self, text: str, cap: int) -> list[tuple[str, int]]:
        """Return pieces of at most `cap` tokens with their counts, at least one, none of them empty."""
        text = text.strip() or " "  # An empty input is refused by most servers.
        window = (cap + 1) * LONGEST_TOKEN_CHARS
        pieces: list[str] = []
        at = 0
        while at < len(text):
            piece = self._counter.cut(text[at : at + window], cap) or text[at]
            pieces.append(piece)
            at += len(piece)
        solid = [piece for piece in pieces if piece.strip()] or pieces[:1]
        chosen = [solid[place] for place in evenly(len(solid), MAX_CHUNKS)]
        return [(piece, max(1, self._counter.count(piece))) for piece in chosen]

    async def _takes(self, text: str) -> bool:
        """Return whether the endpoint has a vector for a text that says nothing in particular."""
        try:
            (row,) = await self._embed_batch([text], repeats=False)
        except Refused:
            return False
        return bool(np.isfinite(row).all())

    async def _is_about_length(self, refusal: Refused, longest: int) -> bool:
        """Return whether inputs of so many tokens are refused, whatever they say."""
        if longest <= SHORTEST_INPUT_TOKENS or refusal.status < 300:
            return False
        if any(part in refusal.code.lower() for part in LENGTH_CODES):
            return True
        filler = await asyncio.to_thread(self._counter.cut, f"{PLAIN_TEXT} " * longest, longest)
        return not await self._takes(filler)

    async def _embed_chunks(self, chunks: Sequence[tuple[str, int]]) -> NDArray[np.float64]:
        batches = packed(chunks, most=MAX_BATCH_TOKENS, most_items=MAX_INPUTS)
        return np.concatenate([await self._embed_batch(batch) for batch in batches])

    async def _embed_batch(self, texts: Sequence[str], *, repeats: bool = True) -> NDArray[np.float64]:
        """Return one unit vector a text; a row of NaN where the endpoint gave none that has a direction."""
        body: dict[str, Any] = {"model": self.model, "input": list(texts), "encoding_format": "float"}
        max_bytes = ENVELOPE_BYTES + len(texts) * max(self.dimension, 4_096) * BYTES_PER_NUMBER
        if self._asks_for_dimension:
            body["dimensions"] = self.dimension
        answer = await self._endpoint.post("embeddings", body, max_bytes=max_bytes, repeats=repeats)
        rows, problem = _rows(answer, len(texts), self.dimension)
        if rows is not None and rows.shape[1] != self.dimension and not self._asks_for_dimension:
            # Models that can shorten their vectors do so only when asked; others refuse the question.
            body["dimensions"] = self.dimension
            try:
                answer = await self._endpoint.post("embeddings", body, max_bytes=max_bytes, repeats=repeats)
            except Refused:
                raise self._wrong_dimension(rows.shape[1]) from None
            rows, problem = _rows(answer, len(texts), self.dimension)
            self._asks_for_dimension = rows is not None and rows.shape[1] == self.dimension
        if rows is None:
            raise self._endpoint.failure(problem)
        if rows.shape[1] != self.dimension:
            raise self._wrong_dimension(rows.shape[1])
        largest = np.abs(rows).max(axis=1, keepdims=True)
        largest[largest == 0] = np.nan
        scaled = rows / largest  # Squares of huge or tiny numbers would leave the range of a float.
        unit: NDArray[np.float64] = scaled / np.linalg.norm(scaled, axis=1, keepdims=True)
        return unit

    def _means(self, vectors: NDArray[np.float64], chunks: Sequence[Sequence[tuple[str, int]]]) -> list[Vector]:
        """Return each text's vector, out of those of its chunks that have one; a text without any counts as refused."""
        is_usable = [bool(np.isfinite(row).all()) for row in vectors]
        result: list[Vector] = []
        first = 0
        for group in chunks:
            kept = [place for place in range(len(group)) if is_usable[first + place]]
            weights = [group[place][1] for place in kept]
            vector = unit_mean(vectors[[first + place for place in kept]], weights) if kept else None
            if vector is None:
                raise Refused(200, problem="the answer holds a vector without a direction")
            result.append(vector)
            first += len(group)
        return result

    def _wrong_dimension(self, got: int) -> ModelUnavailable:
        return self._endpoint.failure(f"vectors of {self.dimension} dimensions are expected, the answer has {got}")


def _rows(answer: Any, expected: int, dimension: int) -> tuple[NDArray[np.float64] | None, str]:
    """Return the answer's vectors in the order of the inputs, or what is wrong with it.

    A vector that is missing, or that holds what is no finite number, is a row of NaN.
    """
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        return None, "the answer is not a list of embeddings"
    if len(data) != expected:
        return None, f"{expected} vectors are expected, the answer has {len(data)}"
    places = [item.get("index", place) for place, item in enumerate(data)]
    if not all(isinstance(place, int) for place in places) or sorted(places) != list(range(expected)):
        return None, "the answer's indexes are not those of the inputs"
    ordered = [item.get("embedding") for _, item in sorted(zip(places, data, strict=True), key=lambda pair: pair[0])]
    is_missing = [row is None or (isinstance(row, list) and None in row) for row in ordered]
    if any(is_missing):
        width = next((len(row) for row in ordered if isinstance(row, list)), dimension)
        ordered = [[math.nan] * width if missing else row for row, missing in zip(ordered, is_missing, strict=True)]
    try:
        numbers = np.asarray(ordered)
    except (ValueError, OverflowError):
        return None, "the answer's vectors differ in dimension"
    if numbers.ndim != 2 or numbers.shape[1] == 0 or numbers.dtype.kind not in "iuf":
        return None, "the answer holds an embedding that is not a list of numbers"
    rows = numbers.astype(np.float64)
    rows[~np.isfinite(rows).all(axis=1)] = np.nan
    return rows, ""
