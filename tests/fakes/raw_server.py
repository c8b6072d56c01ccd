"""The server as it is, over real sockets, around an application that reads a body and answers 204."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.config import HTTPProtocolType


async def read_whole(_scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until something is so."""
    async with asyncio.timeout(30):
        while True:
            if condition():
                return
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(http: HTTPProtocolType | type[asyncio.Protocol]) -> AsyncIterator[tuple[uvicorn.Server, int]]:
    """Serve the application with a protocol of the server; yield the server and its port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        settings = uvicorn.Config(read_whole, lifespan="off", log_config=None, http=http)
        server = uvicorn.Server(settings)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        yield server, int(listener.getsockname()[1])
        server.should_exit = server.force_exit = True
        await running
