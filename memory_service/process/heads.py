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
    """Counts what comes of a head after the read in which it began: the gate looks at those that end within one."""

    meter: ClassVar[Meter]
    _is_in_head = False
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Take what came, or refuse it and close."""
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEADER_BYTES:
                self._refuse()
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._is_in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """End a head."""
        self._is_in_head = False
        super().on_headers_complete()

    def _refuse(self) -> None:
        self.meter.count("requests_refused", reason=ProblemKind.HEADERS_TOO_LARGE.value)
        answer = head_too_large()
        status = HTTPStatus(answer.status_code)
        lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
        lines += [name + b": " + value for name, value in answer.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"connection: close", b"", bytes(answer.body)]))
        self.transport.close()
