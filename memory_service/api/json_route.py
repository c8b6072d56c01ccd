"""What all routes do with a request before the framework reads it.

Who calls is asked first: of somebody who may not call, no body is read.
JSON bodies are read with pydantic's own parser: it bounds nesting, and refuses NaN and Infinity. A query parameter that
the route does not know is refused like an unknown field: ignored, a misspelt filter would answer more than was asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.datastructures import QueryParams

from memory_service.api.calls import ROLES, verified
from memory_service.contract.limits import MAX_ERRORS, MAX_FIELD_CHARS
from memory_service.domain.callers import CallerKind
from memory_service.errors import FieldProblem, InvalidRequest


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
    """A route whose JSON body cannot crash the parser, and that takes no parameter that it does not know."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, given a request that parses safely."""
        handler = super().get_route_handler()
        known = sorted(_query_parameters(self.dependant))
        roles = _roles(self.dependant)

        async def handle(request: Request) -> Response:
            if roles is not None:
                await verified(request.app.state.runtime, request.scope, roles)
            if request.scope["query_string"]:
                _refuse_other_parameters(request.query_params, known)
            return await handler(_JsonRequest(request.scope, request.receive))

        return handle


def _roles(dependant: Dependant) -> Collection[CallerKind] | None:
    """Return who is let in; None where nobody is asked."""
    found = [ROLES[inner.call] for inner in dependant.dependencies if inner.call is not None and inner.call in ROLES]
    return found[0] if found else None


def _query_parameters(dependant: Dependant) -> set[str]:
    own = {field.alias for field in dependant.query_params}
    return own.union(*(_query_parameters(inner) for inner in dependant.dependencies))


def _refuse_other_parameters(given: QueryParams, known: Sequence[str]) -> None:
    names = [name for name, _ in given.multi_items()]
    wrong = [
        FieldProblem(name[:MAX_FIELD_CHARS], f"one of {', '.join(known)}" if known else "no query parameter", None)
        for name in dict.fromkeys(names)
        if name not in known
    ]
    wrong += [FieldProblem(name, "to be given once", names.count(name)) for name in known if names.count(name) > 1]
    if wrong:
        told = "; ".join(f"{one.field}: {one.expected}" for one in wrong[:3])
        raise InvalidRequest(f"query parameters: {told}", wrong[:MAX_ERRORS])
