"""The least that a route can be which stores a turn durably: FastAPI, one table, one COMMIT.

    python -m bench.bare sqlite FILE [EMBEDDING_PORT] | postgres DSN

The same server with the same settings as the service's, the same request and the same durability: SQLite's WAL with
`synchronous = FULL`, or Postgres' default. The route does nothing else: it checks no caller, counts no token, keeps no
window, finds nothing again and schedules nothing. With the port of an embedding endpoint it has a route of recalls too:
that has the question embedded, reads the ten newest turns and answers them, and searches nothing; its HTTP client and
its parser are those of the service.
"""

from __future__ import annotations

import socket
import sqlite3
import sys
import threading
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from pydantic_core import from_json

from bench.embedding import MINILM
from memory_service.process import loops

_TABLE = "CREATE TABLE IF NOT EXISTS turns (id {serial}, session TEXT, role TEXT, content TEXT)"


class Turn(BaseModel):
    """A turn as it is sent."""

    role: Literal["user", "assistant", "tool", "system"]
    content: str
    id: str | None = None
    name: str | None = None


class Write(BaseModel):
    """A batch of turns."""

    session_id: str
    turns: list[Turn]


class Written(BaseModel):
    """Where they are."""

    session_id: str
    seqs: list[int]


class Recall(BaseModel):
    """A question."""

    query: str
    top_k: int
    include: list[str]


class Item(BaseModel):
    """What is answered of a turn."""

    id: int
    role: str
    text: str
    score: float


class Recalled(BaseModel):
    """The answer."""

    items: list[Item]


def sqlite_app(file: str, embedding_port: int | None) -> FastAPI:
    """Return the routes over SQLite."""
    connection = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute(_TABLE.format(serial="INTEGER PRIMARY KEY"))
    lock = threading.Lock()
    app = FastAPI()

    @app.post("/v1/write")
    def write(body: Write) -> Written:
        with lock:
            connection.execute("BEGIN IMMEDIATE")
            seqs = [
                connection.execute(
                    "INSERT INTO turns (session, role, content) VALUES (?, ?, ?)",
                    (body.session_id, turn.role, turn.content),
                ).lastrowid
                or 0
                for turn in body.turns
            ]
            connection.execute("COMMIT")
        return Written(session_id=body.session_id, seqs=seqs)

    if embedding_port is not None:
        import aiohttp

        url = f"http://127.0.0.1:{embedding_port}/v1/embeddings"
        kept: list[aiohttp.ClientSession] = []

        @app.post("/v1/recall")
        async def recall(body: Recall) -> Recalled:
            if not kept:
                kept.append(aiohttp.ClientSession())
            async with kept[0].post(url, json={"model": MINILM, "input": [body.query]}) as answer:
                first = float(from_json(await answer.read())["data"][0]["embedding"][0])
            with lock:
                rows = connection.execute(
                    "SELECT id, role, content FROM turns ORDER BY id DESC LIMIT ?", (body.top_k,)
                ).fetchall()
            return Recalled(items=[Item(id=row[0], role=row[1], text=row[2], score=first) for row in rows])

    return app


def postgres_app(dsn: str) -> FastAPI:
    """Return the route over Postgres."""
    import psycopg

    connection: psycopg.Connection[tuple[Any, ...]] = psycopg.connect(dsn)
    connection.execute(_TABLE.format(serial="BIGSERIAL PRIMARY KEY"))
    connection.commit()
    lock = threading.Lock()
    app = FastAPI()

    @app.post("/v1/write")
    def write(body: Write) -> Written:
        seqs = []
        with lock:
            for turn in body.turns:
                found = connection.execute(
                    "INSERT INTO turns (session, role, content) VALUES (%s, %s, %s) RETURNING id",
                    (body.session_id, turn.role, turn.content),
                ).fetchone()
                seqs.append(found[0] if found else 0)
            connection.commit()
        return Written(session_id=body.session_id, seqs=seqs)

    return app


async def _serve(app: FastAPI) -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()  # before it is said: whoever reads the line may connect at once
    settings = uvicorn.Config(
        app, lifespan="off", log_config=None, access_log=False, server_header=False, date_header=False
    )
    sys.stderr.write(f"listening on http://127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stderr.flush()
    await uvicorn.Server(settings).serve(sockets=[listener])


def _app(kind: str, where: str, port: str = "") -> FastAPI:
    return sqlite_app(where, int(port) if port else None) if kind == "sqlite" else postgres_app(where)


if __name__ == "__main__":
    loops.run(_serve(_app(*sys.argv[1:])))
