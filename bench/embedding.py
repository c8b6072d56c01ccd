"""An OpenAI-compatible embedding endpoint on loopback, the same one for every system: python -m bench.embedding.

The model `minilm` is the one that is built into the service, behind a cache, so that a run measures memory systems and
not the model; `synthetic` makes a unit vector from a hash of the text, for stores of a million rows.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import socket
import sys
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from bench import CACHE
from bench.vectors import DIMENSION, CachedEmbedder

MINILM = "minilm"
SYNTHETIC = "synthetic"


def synthetic(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return a unit vector for each text; the same text has the same one everywhere."""
    rows = [
        np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")).standard_normal(
            DIMENSION
        )
        for text in texts
    ]
    values = np.array(rows, np.float32).reshape(len(texts), DIMENSION)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


@cache
def _model() -> CachedEmbedder:
    return CachedEmbedder(CACHE)


class Answers:
    """Text to the JSON of its vector, made once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, bool], str] = {}

    def of(self, model: str, texts: Sequence[str], *, as_base64: bool) -> bytes:
        """Return the answer to a request."""
        missing = [text for text in texts if (model, text, as_base64) not in self._known]
        if missing:
            vectors = synthetic(missing) if model == SYNTHETIC else _model().embed(missing)
            for text, vector in zip(missing, vectors, strict=True):
                numbers = vector.astype("<f4")
                self._known[model, text, as_base64] = (
                    f'"{base64.b64encode(numbers.tobytes()).decode()}"'
                    if as_base64
                    else "[" + ",".join(f"{number:.7g}" for number in numbers) + "]"
                )
        rows = ",".join(
            f'{{"object":"embedding","index":{index},"embedding":{self._known[model, text, as_base64]}}}'
            for index, text in enumerate(texts)
        )
        usage = '{"prompt_tokens":1,"total_tokens":1}'
        return f'{{"object":"list","model":"{model}","data":[{rows}],"usage":{usage}}}'.encode()


async def _talk(answers: Answers, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]) if b"content-length:" in head else 0
            body = await reader.readexactly(size)
            if head.startswith(b"post") and b"/embeddings " in head.split(b"\r\n", 1)[0]:
                asked = json.loads(body)
                texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
                data = answers.of(asked["model"], texts, as_base64=asked.get("encoding_format") == "base64")
            else:
                data = b'{"object":"list","data":[]}'
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data
            )
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _serve() -> None:
    answers = Answers()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = await asyncio.start_server(lambda *pair: _talk(answers, *pair), sock=listener, limit=2**24)
    sys.stderr.write(f"listening on http://127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stderr.flush()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    try:
        asyncio.run(_serve())
    except KeyboardInterrupt:
        sys.exit(0)
