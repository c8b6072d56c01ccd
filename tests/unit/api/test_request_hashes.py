"""What a request's body is compared by under its idempotency key, from one version to the next."""

from __future__ import annotations

from typing import Any

import pytest

from memory_service.api.calls import Call
from memory_service.contract.base import Wire
from memory_service.contract.sessions import SessionAction
from memory_service.contract.verbs import (
    FactBatchRequest,
    FactPatch,
    ForgetRequest,
    RememberRequest,
    SupersedeRequest,
    WriteRequest,
)
from memory_service.domain.callers import Caller, CallerKind

TIME = "2026-03-01T12:00:00.5+02:00"
FACT = {
    "text": "Ada lives in Oslo", "scope": "private", "key": "home", "session_id": "s1", "workspace": "w",
    "kind": "preference", "category": "home", "evidence": "I moved to Oslo", "importance": 0.5, "tags": ["a", "é"],
    "pinned": True, "dedupe_key": "d", "expires_at": TIME, "said_at": TIME,
    "attributes": {"b": [1, 2.5, None], "a": ""},
}  # fmt: skip
TURNS = [
    {"id": "t1", "role": "user", "content": "I moved to Oslo.", "name": "Ada", "said_at": TIME},
    {"role": "assistant", "parts": [{"type": "text", "text": "Noted."}]},
]

BODIES: list[tuple[type[Wire], dict[str, Any], str]] = [
    (
        WriteRequest,
        {"session_id": "s1", "turns": TURNS, "workspace": "w", "infer": False},
        "19f039c795bd9eebac5e49532a963ec45837ec4814f968c4939244784ce3f728",
    ),
    (
        WriteRequest,
        {"turns": TURNS[:1], "session_id": "s1"},
        "7c768b2e35aa16de9a4acbe67710a6036f0c87edc45ef898f93c03097b570539",
    ),
    (RememberRequest, FACT, "c27ab9c05481ed26351d8fed78d4814043c5ced6adde43357db8eeaed4d4bae5"),
    (
        RememberRequest,
        {"text": "Ada lives in Oslo"},
        "cb75e7b80b69043534a9e5ddd1b2136d8b85b5339bfe1f986b14ae04a43f2ca2",
    ),
    (
        FactBatchRequest,
        {"facts": [FACT, {"text": "Ben likes tea"}]},
        "341462a22b0124981f77d4036db14e4707b4c8d9c34cb71031cacc6b1171cfa1",
    ),
    (
        FactPatch,
        {"text": "Ada lives in Bergen", "category": None, "tags": [], "expires_at": TIME, "revision": 3},
        "5d265b5c91bd3d7a05bcabfccd83e2fa6c31feee28a3bc47ec7dae0785684a05",
    ),
    (
        SupersedeRequest,
        {"text": "Ada lives in Bergen", "importance": 1, "said_at": TIME},
        "c2c1c289ab29f596ab4c36964372d6c4eb139fc0c06d15adad8bd348e57a84a3",
    ),
    (
        ForgetRequest,
        {"scope": "session", "session_id": "s1", "confirm": True},
        "5a2a7f1da858dba3ee13548a8d149e53817e0c0c7cba76dbbc034fa4d7a80307",
    ),
    (SessionAction, {"workspace": "w"}, "2e0eb031cf770017d447f0d028fa392fef6777d7395fa8f0e1756f6e7b340ae0"),
    (SessionAction, {}, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
]


def hash_of(model: type[Wire], body: dict[str, Any]) -> str:
    key = Call(None, Caller(CallerKind.AGENT, "a"), {}, "k").key("route", model.model_validate(body))  # type: ignore[arg-type]
    assert key is not None
    return key.body_hash


@pytest.mark.parametrize(("model", "body", "expected"), BODIES)
def test_a_body_has_the_hash_that_the_versions_before_gave_it(
    model: type[Wire], body: dict[str, Any], expected: str
) -> None:
    """A repeat across an upgrade is compared with what an older version has stored.

    Where a hash differs, what waits in outboxes under a key of the agent's own is refused as another body, and set
    aside. Fields may be added; the order, the names and the forms of those that are there have to stay.
    """
    assert hash_of(model, body) == expected


@pytest.mark.parametrize("model", [WriteRequest, RememberRequest])
def test_how_long_a_request_waited_makes_it_no_other(model: type[Wire]) -> None:
    body = {"text": "t"} if model is RememberRequest else {"session_id": "s1", "turns": TURNS}
    assert hash_of(model, {**body, "queued_seconds": 7.5, "generation": "g"}) == hash_of(model, body)
