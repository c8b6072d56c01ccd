"""Other systems that run here without a language model: their own environments, outside of this one's, and how they
are started.

Settings that differ from a system's defaults are named in `SETTINGS`, which the page prints.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import CACHE
from bench.embedding import MINILM
from bench.machine import ROOT, Started, free_port, started
from bench.vectors import DIMENSION

KAOS = ("kaos-memory[service]==0.8.4",)
LIBRARIES = ("mem0ai==2.2.1", "aimu==0.38.0", "chromadb==1.5.9", "psycopg[binary,pool]>=3.2", "pgvector>=0.3")
_VOCABULARY = "litellm==1.110.2"
"""Ships the token vocabulary that kaos-memory would otherwise download when it is imported."""
SETTINGS = {
    "kaos-memory 0.8.4": "its own HTTP service, local mode (SQLite, Chroma); `infer: false`; `token_budget` 4096, its "
    "default, or 64 where turns are to reach its long-term tier, which alone it searches",
    "mem0ai 2.2.1": "as a library inside one process, without HTTP; `infer=False`; its Chroma or its pgvector store",
    "aimu 0.38.0": "as a library inside one process, without HTTP: `SemanticMemoryStore`, one owner for all",
}
_PRIVATE = {
    "ANONYMIZED_TELEMETRY": "False",
    "HF_HUB_OFFLINE": "1",
    "MEM0_TELEMETRY": "False",
    "OPENAI_API_KEY": "none",
    "OTEL_SDK_DISABLED": "true",
}


def _python() -> str:
    """Return an interpreter that the systems take: 3.12 or newer, none is downloaded."""
    if sys.version_info >= (3, 12):
        return sys.executable
    known = sorted(Path.home().glob(".pyenv/versions/3.1[2-9].*/bin/python"))
    found = [str(path) for path in known] + [str(shutil.which(f"python3.{minor}")) for minor in (12, 13, 14)]
    for python in found:
        if Path(python).exists():
            return python
    raise SystemExit("bench: the systems compared with need Python 3.12 or newer; install one")


def environment(name: str, packages: Sequence[str]) -> Path:
    """Return the Python of an environment that holds these packages, made if it is not there."""
    folder = CACHE / f"env-{name}"
    python = folder / "bin" / "python"
    mark, wanted = folder / "packages.json", json.dumps(list(packages))
    if mark.exists() and mark.read_text() == wanted:
        return python
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        raise SystemExit("bench: `uv` is missing; `make bench` installs it")
    print(f"==> making the environment {name!r}: {', '.join(packages)}", flush=True)
    variables = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", _python(), str(folder)], check=True, env=variables)
    install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([*install, *packages], check=True, env=variables)
    mark.write_text(wanted)
    return python


def _vocabulary(python: Path) -> Path:
    folder = CACHE / "vocabulary"
    files = folder / "litellm" / "litellm_core_utils" / "tokenizers"
    if not files.exists():
        uv = Path(sys.executable).with_name("uv")
        program = str(uv) if uv.exists() else str(shutil.which("uv"))
        where = ["--target", str(folder), "--no-deps", "--python", str(python)]
        subprocess.run([program, "pip", "install", "--quiet", *where, _VOCABULARY], check=True)
    return files


@contextmanager
def kaos(folder: Path, endpoint: int, *, token_budget: int) -> Iterator[Started]:
    """Run kaos-memory's service over an empty folder."""
    python = environment("kaos", KAOS)
    folder.mkdir(parents=True)
    port = free_port()
    variables = {
        **_PRIVATE,
        "KAOS_MEMORY_EMBEDDING_MODEL": MINILM,
        "KAOS_MEMORY_HOST": "127.0.0.1",
        "KAOS_MEMORY_LOCAL_PATH": str(folder / "data"),
        "KAOS_MEMORY_MODEL_BASE_URL": f"http://127.0.0.1:{endpoint}/v1",
        "KAOS_MEMORY_PORT": str(port),
        "KAOS_MEMORY_TOKEN_BUDGET": str(token_budget),
        "MEM0_DIR": str(folder / "mem0"),
        "TIKTOKEN_CACHE_DIR": str(_vocabulary(python)),
    }
    (folder / "data").mkdir()
    with started([str(python), "-m", "kaos_memory.app"], environment=variables, port=port) as server:
        yield server


@contextmanager
def library(name: str, folder: Path, endpoint: int, dsn: str = "") -> Iterator[Library]:
    """Run a library in a process of its own that is told what to do; see bench/libraries.py."""
    python = environment("libraries", LIBRARIES)
    folder.mkdir(parents=True)
    settings = {
        "dimensions": DIMENSION,
        "dsn": dsn,
        "folder": str(folder / "data"),
        "model": MINILM,
        "url": f"http://127.0.0.1:{endpoint}/v1",
    }
    variables = {
        **os.environ,
        **_PRIVATE,
        "MEM0_DIR": str(folder / "mem0"),
        "OPENAI_BASE_URL": settings["url"],
    }
    variables.pop("PYTHONPATH", None)
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        [str(python), str(ROOT / "bench" / "libraries.py"), name, json.dumps(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        cwd=folder,
        env={key: str(value) for key, value in variables.items()},
    )
    running = Library(process, folder / "log")
    try:
        running.ask({"do": "hello"})
        yield running
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


class Library:
    """A library's process: one JSON line asks, one answers."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self.pid = process.pid

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a question."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        while line := self._process.stdout.readline():
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise SystemExit(f"bench: a library's process ended:\n{self._log.read_text()[-3000:]}")
