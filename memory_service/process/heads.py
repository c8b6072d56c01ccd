"""Heads of requests that never end: the server's own protocol takes one of any size before the gate sees it.

A head is held whole while it comes, and adding to it takes longer the longer it is: one caller without a token could
take all memory, and the event loop with it.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from memory_service.api.gate import head_too_large
from memory_service.contract.limits import MAX_HEADER_BYTES
from memory_service.contract.problems import ProblemKind
from memory_service.ports.process import Meter


def bounded_heads(meter: Meter) -> type[HttpToolsProtocol]:
    """Return the server's protocol, which refuses a head that goes on beyond the limit; refusals are counted."""
    return type("BoundedHeads", (_BoundedHeads,), {"meter": meter})


class _BoundedHeads(HttpToolsProtocol):
    """Counts reads that bring neither a beginning, an end nor a piece of a body: they go on with a head, with what
    follows a body, or with the line before a chunk. What ends within one read is the gate's to look at.
    """

    meter: ClassVar[Meter]
    _gets_on = False
    _held_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Take what came; refuse and close where it only adds to what is held."""
        self._gets_on = False
        super().data_received(data)
        self._held_bytes = 0 if self._gets_on else self._held_bytes + len(data)
        if self._held_bytes > MAX_HEADER_BYTES:
            self._refuse()

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._gets_on = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """End a head."""
        self._gets_on = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._gets_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._gets_on = True
        super().on_message_complete()

    def _refuse(self) -> None:
        self.meter.count("requests_refused", reason=ProblemKind.HEADERS_TOO_LARGE.value)
        answer = head_too_large()
        status = HTTPStatus(answer.status_code)
        lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
        lines += [name + b": " + value for name, value in answer.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"connection: close", b"", bytes(answer.body)]))
        self.transport.close()
