"""Reads JSON bodies with pydantic's own parser: it bounds nesting, and refuses NaN and Infinity."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json


def parsed(body: bytes) -> Any:
    """Return what a JSON body says.

    Raises:
        ValueError: it is not JSON, or too deeply nested.
    """
    return from_json(body, allow_inf_nan=False, cache_strings="none")


class _JsonRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        try:
            return parsed(body)
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from error


class JsonRoute(APIRoute):
    """A route whose JSON body cannot crash the parser."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, given a request that parses safely."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_JsonRequest(request.scope, request.receive))

        return handle
