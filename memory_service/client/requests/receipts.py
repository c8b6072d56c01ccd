"""Requests about receipts."""

from __future__ import annotations

from memory_service.client.requests import bodies
from memory_service.client.wire import Request
from memory_service.contract.verbs import Receipt


def get(receipt_id: str) -> Request[Receipt]:
    """How far an erasure is."""
    return Request("receipts.get", "GET", f"/v1/receipts/{bodies.segment('receipt_id', receipt_id)}", Receipt)
