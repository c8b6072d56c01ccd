"""Write and recall without the framework's layers: every turn of an agent makes both.

Only a request that is right in every respect is served here, by the route's own function. Whatever is odd about one
goes to the framework as it came, which then refuses it with the words that it has for all routes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Response
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memory_service.api.calls import Call, IdempotencyHeader, verified
from memory_service.api.json_route import parsed
from memory_service.api.problems import problem_of, problem_of_http
from memory_service.api.routes import memory
from memory_service.bootstrap import Runtime
from memory_service.contract.verbs import RecallRequest, WriteRequest
from memory_service.errors import MemoryServiceError
from memory_service.identity.authenticator import AGENTS

T = TypeVar("T")

_KEY: TypeAdapter[str | None] = TypeAdapter(IdempotencyHeader)


@dataclass(frozen=True)
class _Verb:
    path: str
    body: type[BaseModel]
    serve: Callable[[Any, Call], Awaitable[Response]]
    takes_key: bool


_VERBS = {
    verb.path: verb
    for verb in (
        _Verb("/v1/write", WriteRequest, memory.write, takes_key=True),
        _Verb("/v1/recall", RecallRequest, memory.recall, takes_key=False),
    )
}


class _Odd(Exception):
    """The request is not right in every respect."""


class TurnVerbs:
    """Serves the two verbs, and hands everything else on."""

    def __init__(self, api: ASGIApp, runtime: Runtime) -> None:
        self._api = api
        self._runtime = runtime

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        verb = _VERBS.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if verb is None:
            await self._api(scope, receive, send)
            return
        read: list[Message] = []
        try:
            response = await self._answer(verb, scope, read, receive)
        except _Odd:
            await self._api(scope, _again(read, receive), send)
            return
        except HTTPException as error:
            response = problem_of_http(error)
        scope["route"] = verb
        await response(scope, receive, send)

    async def _answer(self, verb: _Verb, scope: Scope, read: list[Message], receive: Receive) -> Response:
        if scope["query_string"]:
            raise _Odd
        headers = Headers(scope=scope)
        try:
            key = _checked(_KEY.validate_python, headers.get("idempotency-key")) if verb.takes_key else None
            call = await verified(self._runtime, scope, AGENTS, key)
            body = await _body(headers, read, receive)
            return await verb.serve(_checked(verb.body.model_validate, body), call)
        except MemoryServiceError as error:
            return problem_of(error)


def _checked(check: Callable[[Any], T], value: Any) -> T:
    try:
        return check(value)
    except ValidationError as error:
        raise _Odd from error


async def _body(headers: Headers, read: list[Message], receive: Receive) -> Any:
    """Return the parsed body; what was received on the way is kept in `read`."""
    if headers.get("content-type") != "application/json":
        raise _Odd
    while not read or read[-1].get("more_body"):
        read.append(await receive())
        if read[-1]["type"] != "http.request":
            raise _Odd
    try:
        return parsed(b"".join(message.get("body", b"") for message in read))
    except ValueError as error:
        raise _Odd from error


def _again(read: list[Message], receive: Receive) -> Receive:
    """Return what receives these messages once more, and then what comes after them."""
    waiting = iter(read)

    async def receive_again() -> Message:
        return next(waiting, None) or await receive()

    return receive_again
