"""What every request passes before a route: a request id, size limits before anything is read, load, and HTTP rules.

Plain ASGI, since it is on the path of every request. It is also the last handler: whatever a route raises becomes a
500 Problem and a log entry here.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
import uuid

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memory_service.api.problems import problem
from memory_service.contract.limits import (
    BODY_BYTES_PER_SECOND,
    BODY_GRACE_SECONDS,
    MAX_BODY_BYTES,
    MAX_HEADER_BYTES,
    MAX_ID_CHARS,
)
from memory_service.contract.problems import ProblemKind
from memory_service.identity.http_rules import HttpRules, RequestHead, refusal
from memory_service.observability.logs import request_id
from memory_service.ports.process import Meter

logger = logging.getLogger(__name__)

_TOO_LARGE = f"one body may have {MAX_BODY_BYTES} bytes; send the turns in several requests"
_REQUEST_ID = re.compile(rf"[A-Za-z0-9._:-]{{1,{MAX_ID_CHARS}}}")


_READS = frozenset({"GET", "HEAD", "OPTIONS"})
READING_PATHS = frozenset({"/v1/recall", "/v1/list"})
"""What is asked for with a POST, and changes nothing."""
_KEPT_FOR_READS = 0.25
"""The part of all places that requests which change something never take: what keeps writes waiting, as a database
that does not confirm them, is no reason to forget.
"""

_ARRIVED = "memplane.arrived"


def seconds_since_arrival(scope: Scope) -> float:
    """Return how long ago the head of this request came through the gate; its body may have come much later."""
    return time.perf_counter() - float(scope[_ARRIVED])


class _BodyTooLarge(HTTPException):
    """More bytes came than one body may have. Of this class, since the framework takes any other for a broken body."""

    def __init__(self) -> None:
        super().__init__(413, _TOO_LARGE)


class _BodyTooSlow(HTTPException):
    """A body did not come in its time. The connection ends with the answer: the rest of the body is not waited for."""

    def __init__(self) -> None:
        detail = (
            f"a body has {BODY_GRACE_SECONDS} s, and one more for each {BODY_BYTES_PER_SECOND} bytes that have come"
        )
        super().__init__(408, detail, {"Connection": "close"})


class Gate:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, *, rules: HttpRules, max_in_flight: int, meter: Meter) -> None:
        self._app = app
        self._rules = rules
        self._max_in_flight = max_in_flight
        self._meter = meter
        self._max_changing = max(1, max_in_flight - math.ceil(max_in_flight * _KEPT_FOR_READS))
        self._in_flight = 0
        self._changing = 0
        """Those of them that change something."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value for name, value in reversed(scope["headers"])}
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        current = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        token = request_id.set(current)
        answer = _Answer(send, current)
        counted = scope["path"] not in self._rules.health_paths
        changes = counted and scope["method"] not in _READS and scope["path"] not in READING_PATHS
        started = scope[_ARRIVED] = time.perf_counter()
        self._in_flight += counted
        self._changing += changes
        try:
            refused = self._refuse(scope, headers, counted=counted, changes=changes)
            if refused is not None:
                reason, response = refused
                self._meter.count("requests_refused", reason=reason.value)
                await response(scope, receive, answer)
            else:
                await self._app(scope, self._bounded(receive), answer)
        except Exception:  # the last handler
            logger.exception("request failed", extra={"path": _route(scope)})
            if not answer.started:
                detail = "the service failed on this request; its log has the traceback under this request_id"
                await problem(ProblemKind.INTERNAL, detail)(scope, receive, answer)
        finally:
            self._in_flight -= counted
            self._changing -= changes
            request_id.reset(token)
            if counted:
                route = _route(scope)
                self._meter.count("requests", route=route, status=f"{answer.status // 100}xx")
                self._meter.observe("request_seconds", time.perf_counter() - started, route=route)

    def _refuse(
        self, scope: Scope, headers: dict[bytes, bytes], *, counted: bool, changes: bool
    ) -> tuple[ProblemKind, ASGIApp] | None:
        head_bytes = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        head_bytes += sum(len(name) + len(value) for name, value in scope["headers"])
        if head_bytes > MAX_HEADER_BYTES:
            return ProblemKind.HEADERS_TOO_LARGE, head_too_large()
        if counted and self._in_flight > self._max_in_flight:
            detail = f"{self._max_in_flight} requests are being served already; send it again in a moment"
            return ProblemKind.OVERLOADED, problem(ProblemKind.OVERLOADED, detail, retry_after=1)
        if changes and self._changing > self._max_changing:
            detail = (
                f"{self._max_changing} requests that change something are being served already; send it again in a"
                " moment"
            )
            return ProblemKind.OVERLOADED, problem(ProblemKind.OVERLOADED, detail, retry_after=1)
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > MAX_BODY_BYTES:
            return ProblemKind.TOO_LARGE, _too_large()
        head = RequestHead(
            method=scope["method"],
            path=scope["path"],
            host=_text(headers.get(b"host")),
            origin=_text(headers.get(b"origin")),
            content_type=_text(headers.get(b"content-type")),
            has_body=b"transfer-encoding" in headers or length not in (b"", b"0"),
            content_encoding=_text(headers.get(b"content-encoding")),
        )
        refused = refusal(head, self._rules)
        return (refused.kind, problem(refused.kind, refused.detail)) if refused is not None else None

    def _bounded(self, receive: Receive) -> Receive:
        """Return what receives a body of bounded size in bounded time: a request holds its place until then."""
        read = 0
        whole = False
        started = asyncio.get_running_loop().time()

        async def receive_bounded() -> Message:
            nonlocal read, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(started + BODY_GRACE_SECONDS + read / BODY_BYTES_PER_SECOND):
                    message = await receive()
            except TimeoutError as error:
                self._meter.count("requests_refused", reason=ProblemKind.TOO_SLOW.value)
                raise _BodyTooSlow from error
            whole = not message.get("more_body", False)
            read += len(message.get("body", b""))
            if read > MAX_BODY_BYTES:
                self._meter.count("requests_refused", reason=ProblemKind.TOO_LARGE.value)
                raise _BodyTooLarge
            return message

        return receive_bounded


class _Answer:
    """Sends an answer with its request id, and remembers how it began."""

    def __init__(self, send: Send, current: str) -> None:
        self._send = send
        self._id = current.encode("latin-1")
        self.started = False
        self.status = 500

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self._id)]
        await self._send(message)


def head_too_large() -> Response:
    """Return the answer to a request whose head is beyond the limit."""
    detail = f"a request's path, query and headers together may have {MAX_HEADER_BYTES} bytes"
    return problem(ProblemKind.HEADERS_TOO_LARGE, detail)


def _too_large() -> ASGIApp:
    return problem(ProblemKind.TOO_LARGE, _TOO_LARGE)


def _route(scope: Scope) -> str:
    route = scope.get("route")
    return str(getattr(route, "path", "unmatched"))


def _text(value: bytes | None) -> str | None:
    return value.decode("latin-1") if value is not None else None
