"""Which requests are refused for their Host, Origin or content type."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memory_service.contract.config import AuthMode, IdentityConfig, ServiceConfig
from memory_service.contract.problems import ProblemKind
from memory_service.identity.build import http_rules
from memory_service.identity.http_rules import HttpRules, RequestHead, host_name, is_json, is_loopback, refusal

NONE = HttpRules(AuthMode.NONE)
CLUSTER = HttpRules(AuthMode.CLUSTER)


def head(
    *,
    method: str = "POST",
    path: str = "/v1/recall",
    host: str | None = "127.0.0.1:8800",
    origin: str | None = None,
    content_type: str | None = "application/json",
    has_body: bool = True,
) -> RequestHead:
    return RequestHead(method, path, host, origin, content_type, has_body)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8800", "localhost", "LOCALHOST:1", "[::1]:8800", "[::1]"])
def test_a_loopback_name_is_answered_without_authentication(host: str) -> None:
    assert refusal(head(host=host), NONE) is None


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "attacker.example",
        "attacker.example:8800",
        "127.0.0.1.attacker.example",
        "localhost.attacker.example",
        "10.0.0.1",
        "0.0.0.0",
        "[::1].attacker.example",
        "[::1",
        "127.0.0.1:8800:x",
        "localhost:port",
        "127.0.0.1@attacker.example",
        "2130706433",
    ],
)
def test_any_other_name_is_refused_without_authentication(host: str | None) -> None:
    answer = refusal(head(host=host), NONE)
    assert answer is not None
    assert answer.kind is ProblemKind.FORBIDDEN
    assert refusal(head(host=host), CLUSTER) is None
    assert refusal(head(host=host), HttpRules(AuthMode.NONE, allow_unauthenticated=True)) is None


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_probes_may_use_any_name(path: str) -> None:
    assert refusal(head(path=path, host="10.0.0.1:8800", method="GET", has_body=False), NONE) is None


@pytest.mark.parametrize("rules", [NONE, CLUSTER])
@pytest.mark.parametrize("origin", ["https://page.example", "null", "http://localhost:3000", ""])
def test_an_origin_is_refused_unless_configured(rules: HttpRules, origin: str) -> None:
    answer = refusal(head(origin=origin), rules)
    assert answer is not None
    assert answer.kind is ProblemKind.FORBIDDEN
    allowed = HttpRules(rules.mode, allowed_origins=(origin,))
    assert refusal(head(origin=origin), allowed) is None


@pytest.mark.parametrize(
    "content_type",
    [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx", "json"],
)
def test_a_body_must_be_json(content_type: str | None) -> None:
    answer = refusal(head(content_type=content_type), CLUSTER)
    assert answer is not None
    assert answer.kind is ProblemKind.UNSUPPORTED_MEDIA_TYPE
    assert refusal(head(content_type=content_type, has_body=False), CLUSTER) is None


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/json", True),
        ("Application/JSON; charset=UTF-8", True),
        ('application/json; charset="utf-8"', True),
        ("application/merge-patch+json", True),
        ("application/json; charset=utf-16", False),
        ("text/json+json", False),
    ],
)
def test_json_is_told_by_its_content_type(content_type: str, expected: bool) -> None:
    assert is_json(content_type) is expected


def test_names_are_read_without_their_port() -> None:
    assert host_name("example.com:80") == "example.com"
    assert host_name("[::1]:80") == "::1"
    assert is_loopback("127.8.9.1")
    assert not is_loopback("::ffff:10.0.0.1")


def test_the_rules_follow_the_configuration() -> None:
    config = ServiceConfig(identity=IdentityConfig(auth=AuthMode.STATIC, allowed_origins=("https://page.example",)))
    rules = http_rules(config)
    assert refusal(head(origin="https://page.example", host="any"), rules) is None


@pytest.mark.parametrize(("encoding", "is_taken"), [(None, True), ("identity", True), ("gzip", False), ("br", False)])
def test_a_compressed_body_is_refused_for_what_it_is(encoding: str | None, is_taken: bool) -> None:
    sent = replace(head(), content_encoding=encoding)
    answer = refusal(sent, CLUSTER)
    assert (answer is None) == is_taken
    if answer is not None:
        assert (answer.kind, "Content-Encoding" in answer.detail) == (ProblemKind.UNSUPPORTED_MEDIA_TYPE, True)
