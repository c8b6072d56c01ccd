"""A chat model gives a whole answer, or ModelUnavailable with a reason; it waits, repeats and stops as it should."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from memory_service.contract.config import ChatConfig
from memory_service.contract.health import Reason
from memory_service.errors import ModelRefused, ModelUnavailable
from memory_service.ports.models import Message
from memory_service.providers import open_chat
from memory_service.providers.openai_chat import OpenAIChat
from tests.fakes.kube_api import make_certificates
from tests.fakes.model_server import (
    CHAT,
    MODELS,
    Body,
    Gate,
    HalfClosed,
    HungUp,
    ModelServer,
    Refusing,
    Status,
    Text,
    Truncated,
)
from tests.unit.providers.conftest import NoSleep, StillClock

ASK = [Message("user", "say SECRET-WORD")]

MakeChat = Callable[..., OpenAIChat]


@pytest.fixture
async def make_chat(server: ModelServer, clock: StillClock, no_sleep: NoSleep) -> AsyncIterator[MakeChat]:
    """Makes chat models of the server, closed afterwards."""
    made: list[OpenAIChat] = []

    def make(**settings: object) -> OpenAIChat:
        config = ChatConfig.model_validate({"url": server.url, "model": "rules", "timeoutSeconds": 20, **settings})
        made.append(OpenAIChat(config, clock, retrying=no_sleep.retrying(config.max_retries)))
        return made[-1]

    yield make
    for chat in made:
        await chat.close()


async def test_an_answer_comes_with_its_usage(make_chat: MakeChat, server: ModelServer) -> None:
    chat = make_chat()
    completion = await chat.complete(ASK, max_tokens=50)
    assert completion.text
    assert completion.usage.input_tokens == 2
    assert completion.usage.output_tokens > 0
    assert not completion.truncated
    assert chat.state.ok is True
    (request,) = server.requests
    assert request.body["max_tokens"] == 50
    assert request.body["temperature"] == 0
    assert "response_format" not in request.body
    assert "authorization" not in request.headers


async def test_json_is_asked_for_where_it_is_wanted(make_chat: MakeChat, server: ModelServer) -> None:
    await make_chat().complete(ASK, max_tokens=50, json_object=True)
    assert server.requests[0].body["response_format"] == {"type": "json_object"}


async def test_a_truncated_answer_says_so(make_chat: MakeChat, server: ModelServer) -> None:
    server.script(CHAT, Truncated())
    assert (await make_chat().complete(ASK, max_tokens=5)).truncated


@pytest.mark.parametrize(
    "message",
    [
        {"content": "<think>\nHm.\n</think>\nYes."},
        {"content": "Yes.", "reasoning_content": "Hm."},
        {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
                {"type": "text", "text": "Yes."},
            ]
        },
        {"content": [{"type": "reasoning", "text": "Hm."}, {"type": "text", "text": "Yes."}]},
    ],
)
async def test_what_a_model_thinks_aloud_is_not_its_answer(
    make_chat: MakeChat, server: ModelServer, message: dict[str, object]
) -> None:
    answer = {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": "stop"}]}
    server.script(CHAT, Body(json.dumps(answer).encode()))
    assert (await make_chat().complete(ASK, max_tokens=5)).text.strip() == "Yes."


@pytest.mark.parametrize("text", ["", None])
async def test_an_empty_answer_is_an_answer(make_chat: MakeChat, server: ModelServer, text: str | None) -> None:
    server.script(CHAT, Text(text))
    assert (await make_chat().complete(ASK, max_tokens=5)).text == ""


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_endpoint_is_asked_again_after_as_long_as_it_says(
    make_chat: MakeChat, server: ModelServer, no_sleep: NoSleep, status: int
) -> None:
    server.script(CHAT, Status(status, retry_after="7"))
    assert (await make_chat().complete(ASK, max_tokens=5)).text
    assert len(no_sleep.waited) == 1
    assert 7 <= no_sleep.waited[0] < 8


async def test_a_retry_after_given_as_a_date_is_understood(
    make_chat: MakeChat, server: ModelServer, no_sleep: NoSleep
) -> None:
    server.script(CHAT, Status(429, retry_after="Fri, 01 May 2026 12:00:09 GMT"))
    await make_chat().complete(ASK, max_tokens=5)
    assert 9 <= no_sleep.waited[0] < 10


async def test_a_retry_after_in_no_calendar_is_none(
    make_chat: MakeChat, server: ModelServer, no_sleep: NoSleep
) -> None:
    server.script(CHAT, Status(429, retry_after="Mon, 01 Jan 99999999999999999999 00:00:00 GMT"))
    assert (await make_chat().complete(ASK, max_tokens=5)).text


async def test_a_long_retry_after_is_left_to_the_job(
    make_chat: MakeChat, server: ModelServer, no_sleep: NoSleep
) -> None:
    server.script(CHAT, Status(429, retry_after="300"))
    with pytest.raises(ModelUnavailable) as caught:
        await make_chat().complete(ASK, max_tokens=5)
    assert caught.value.retry_after == 300
    assert no_sleep.waited == []


async def test_nobody_asks_an_endpoint_that_asked_not_to_be_asked_until_then(
    make_chat: MakeChat, server: ModelServer, clock: StillClock
) -> None:
    chat = make_chat()
    server.script(CHAT, Status(429, retry_after="300"))
    for left in (300, 200, 100):
        with pytest.raises(ModelUnavailable, match="429") as caught:
            await chat.complete(ASK, max_tokens=5)
        assert caught.value.retry_after == left
        assert chat.state.ok is False
        clock.advance(100)
    assert server.counts[CHAT] == 1
    assert (await chat.complete(ASK, max_tokens=5)).text


async def test_a_month_of_retry_after_is_not_believed(
    make_chat: MakeChat, server: ModelServer, clock: StillClock
) -> None:
    chat = make_chat()
    server.script(CHAT, Status(429, retry_after="2592000"))
    with pytest.raises(ModelUnavailable):
        await chat.complete(ASK, max_tokens=5)
    clock.advance(3_600)
    assert (await chat.complete(ASK, max_tokens=5)).text


async def test_another_key_does_not_wait_for_the_quota_of_the_one_before(
    make_chat: MakeChat, server: ModelServer, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("spent")
    chat = make_chat(apiKeyFile=str(file))
    server.script(CHAT, Status(429, retry_after="3000"))
    with pytest.raises(ModelUnavailable):
        await chat.complete(ASK, max_tokens=5)
    file.write_text("fresh-key")
    assert (await chat.complete(ASK, max_tokens=5)).text


async def test_repeats_back_off_and_end(make_chat: MakeChat, server: ModelServer, no_sleep: NoSleep) -> None:
    server.always(CHAT, Status(503, retry_after="nonsense"))
    with pytest.raises(ModelUnavailable, match="503") as caught:
        await make_chat(maxRetries=3).complete(ASK, max_tokens=5)
    assert caught.value.reason == Reason.MODEL_UNAVAILABLE
    assert server.counts[CHAT] == 4 + 1, "the last one asks about nothing in particular, once"
    assert no_sleep.waited == sorted(no_sleep.waited)
    assert len(set(no_sleep.waited)) == 3


@pytest.mark.parametrize("fault", [HungUp(), HalfClosed()])
async def test_a_lost_connection_is_tried_again(
    make_chat: MakeChat, server: ModelServer, fault: HungUp | HalfClosed
) -> None:
    server.script(CHAT, fault)
    assert (await make_chat().complete(ASK, max_tokens=5)).text
    server.always(CHAT, fault)
    with pytest.raises(ModelUnavailable, match="connection failed"):
        await make_chat(maxRetries=1).complete(ASK, max_tokens=5)


async def test_nobody_listening_is_unavailable(clock: StillClock, no_sleep: NoSleep) -> None:
    with ModelServer() as gone:
        url = gone.url
    chat = OpenAIChat(ChatConfig(url=url, model="m"), clock, retrying=no_sleep.retrying(2))
    with pytest.raises(ModelUnavailable, match="ClientConnectorError"):
        await chat.complete(ASK, max_tokens=5)
    assert len(no_sleep.waited) == 2
    await chat.close()


async def test_a_server_is_believed_only_under_a_known_authority(
    clock: StillClock, no_sleep: NoSleep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ModelServer(tls=make_certificates(tmp_path)) as server:
        for known in (False, True):
            if known:
                monkeypatch.setattr("certifi.where", lambda: str(tmp_path / "ca.crt"))
            chat = OpenAIChat(ChatConfig(url=server.url, model="m"), clock, retrying=no_sleep.retrying(0))
            if known:
                assert (await chat.complete(ASK, max_tokens=5)).text
            else:
                with pytest.raises(ModelUnavailable, match="ClientConnectorCertificateError"):
                    await chat.complete(ASK, max_tokens=5)
                assert server.requests == []
            await chat.close()


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_other_errors_are_not_repeated(make_chat: MakeChat, server: ModelServer, status: int) -> None:
    server.script(CHAT, Status(status, code="model_not_found"))
    with pytest.raises(ModelUnavailable, match=str(status)):
        await make_chat().complete(ASK, max_tokens=5)
    assert len([request for request in server.requests if ASK[0].content in request.prompt]) == 1


async def test_a_text_that_is_refused_where_others_are_not_is_no_outage(
    make_chat: MakeChat, server: ModelServer
) -> None:
    server.always(CHAT, Refusing("POISON"))
    chat = make_chat()
    with pytest.raises(ModelRefused, match="content_filter"):
        await chat.complete([Message("user", "POISON")], max_tokens=5)
    assert chat.state.ok


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_text_that_breaks_an_endpoint_that_answers_others_is_refused(
    make_chat: MakeChat, server: ModelServer, status: int
) -> None:
    server.always(CHAT, Refusing("POISON", status=status))
    chat = make_chat(maxRetries=0)
    with pytest.raises(ModelRefused, match=str(status)):
        await chat.complete([Message("user", "POISON")], max_tokens=5)
    assert chat.state.ok
    assert server.counts[CHAT] == 3


async def test_an_error_that_has_passed_when_others_are_answered_is_no_refusal(
    make_chat: MakeChat, server: ModelServer
) -> None:
    server.script(CHAT, Status(500))
    assert (await make_chat().complete(ASK, max_tokens=5)).text


@pytest.mark.parametrize("fault", [Status(400, code="invalid_model"), Status(500), Status(503), Body(b"[]")])
async def test_an_endpoint_that_refuses_everything_is_an_outage(
    make_chat: MakeChat, server: ModelServer, fault: Status | Body
) -> None:
    server.always(CHAT, fault)
    chat = make_chat()
    with pytest.raises(ModelUnavailable) as refused:
        await chat.complete([Message("user", "hello")], max_tokens=5)
    assert not isinstance(refused.value, ModelRefused)
    assert chat.state.ok is False


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_named_as_such(make_chat: MakeChat, server: ModelServer, status: int) -> None:
    chat = make_chat()
    server.script(CHAT, Status(status))
    with pytest.raises(ModelUnavailable) as caught:
        await chat.complete(ASK, max_tokens=5)
    assert caught.value.reason == Reason.MODEL_UNAUTHORIZED
    assert chat.state.reason is Reason.MODEL_UNAUTHORIZED
    assert server.counts[CHAT] == 1


async def test_redirects_are_not_followed(make_chat: MakeChat, server: ModelServer) -> None:
    server.script(CHAT, Status(307, location=f"{server.url}/elsewhere"))
    with pytest.raises(ModelUnavailable, match="redirects"):
        await make_chat().complete(ASK, max_tokens=5)
    assert set(server.counts) == {CHAT}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>busy</html>",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b'{"choices": []}',
        b'{"choices": [null]}',
        b'{"choices": [{"message": null}]}',
        b'{"choices": [{"message": {"content": 7}}]}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
async def test_what_is_not_a_chat_completion_is_unavailable(
    make_chat: MakeChat, server: ModelServer, content: bytes
) -> None:
    chat = make_chat()
    server.always(CHAT, Body(content))
    with pytest.raises(ModelUnavailable):
        await chat.complete(ASK, max_tokens=5)
    assert chat.state.ok is False
    server.always(CHAT, None)
    assert (await chat.complete(ASK, max_tokens=5)).text
    assert chat.state.ok is True


async def test_an_answer_that_was_cut_inside_a_character_is_text_that_can_be_stored(
    make_chat: MakeChat, server: ModelServer
) -> None:
    server.script(
        CHAT, Body(rb'{"choices": [{"message": {"content": "\ud83d\ude00 boat \ud83d"}, "finish_reason": "length"}]}')
    )
    answer = await make_chat().complete(ASK, max_tokens=5)
    assert (answer.text, answer.truncated) == ("\U0001f600 boat \ufffd", True)


async def test_an_answer_that_never_ends_is_not_read_to_its_end(make_chat: MakeChat, server: ModelServer) -> None:
    server.script(CHAT, Body(b" " * (9 * 1024 * 1024)))
    with pytest.raises(ModelUnavailable, match="longer than"):
        await make_chat().complete(ASK, max_tokens=5)


async def test_a_slow_answer_is_given_up_after_the_whole_timeout_and_not_repeated(
    make_chat: MakeChat, server: ModelServer
) -> None:
    server.always(CHAT, Gate())
    with pytest.raises(ModelUnavailable, match="no whole answer"):
        await make_chat(timeoutSeconds=0.05).complete(ASK, max_tokens=5)
    server.always(CHAT, None)
    assert server.counts[CHAT] <= 1


async def test_a_cancelled_call_ends_at_once(make_chat: MakeChat, server: ModelServer) -> None:
    gate = Gate()
    server.script(CHAT, gate)
    asking = asyncio.create_task(make_chat().complete(ASK, max_tokens=5))
    await asyncio.to_thread(gate.entered.wait, 10)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_rotated_key_is_used_without_a_restart(
    make_chat: MakeChat, server: ModelServer, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("first\n")
    chat = make_chat(apiKeyFile=str(file))
    await chat.complete(ASK, max_tokens=5)
    new = tmp_path / "new"
    new.write_text("other\n")
    os.replace(new, file)
    await chat.complete(ASK, max_tokens=5)
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer first", "Bearer other"]


@pytest.mark.parametrize("content", [None, b"", b" \n", b"a\nb", b"\xff", "schlüssel".encode()])
async def test_a_key_that_cannot_be_used_is_a_missing_secret_and_nothing_is_sent(
    make_chat: MakeChat, server: ModelServer, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    chat = make_chat(apiKeyFile=str(file))
    with pytest.raises(ModelUnavailable) as caught:
        await chat.complete(ASK, max_tokens=5)
    assert caught.value.reason == Reason.SECRET_MISSING
    assert server.requests == []
    file.write_text("works-now")
    await chat.complete(ASK, max_tokens=5)
    assert chat.state.ok is True


async def test_a_missing_key_is_told_before_anybody_calls_and_no_longer_once_it_is_there(
    make_chat: MakeChat, server: ModelServer, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    chat = make_chat(apiKeyFile=str(file))
    assert (chat.state.ok, chat.state.reason) == (False, Reason.SECRET_MISSING)
    assert str(file) in chat.state.message
    file.write_text("there")
    assert chat.state.ok is None, "only a call can tell whether the key is a good one"
    await chat.complete(ASK, max_tokens=5)
    assert chat.state.ok is True
    file.unlink()
    assert (chat.state.ok, chat.state.reason) == (False, Reason.SECRET_MISSING)


async def test_what_a_model_does_not_take_is_left_out_from_then_on(make_chat: MakeChat, server: ModelServer) -> None:
    chat = make_chat()
    server.script(
        CHAT,
        Status(400, code="unsupported_parameter", param="max_tokens"),
        Status(400, code="unsupported_value", param="temperature"),
        Status(400, code="invalid_request_error", param="response_format.type"),
    )
    await chat.complete(ASK, max_tokens=5, json_object=True)
    await chat.complete(ASK, max_tokens=5, json_object=True)
    assert server.counts[CHAT] == 5
    for request in server.requests[-2:]:
        assert request.body["max_completion_tokens"] == 5
        assert not {"max_tokens", "temperature", "response_format"} & set(request.body)


async def test_the_environments_proxies_are_not_used(make_chat: MakeChat, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert (await make_chat().complete(ASK, max_tokens=5)).text


async def test_configured_headers_are_sent_and_a_key_wins_over_them(
    make_chat: MakeChat, server: ModelServer, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("from-file")
    headers = {"X-Team": "memory", "Authorization": "Basic old"}
    await make_chat(headers=headers, apiKeyFile=str(tmp_path / "key")).complete(ASK, max_tokens=5)
    assert server.requests[0].headers["x-team"] == "memory"
    assert server.requests[0].headers["authorization"] == "Bearer from-file"


async def test_neither_texts_nor_keys_reach_logs_or_errors(
    make_chat: MakeChat, server: ModelServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "key").write_text("SECRET-KEY")
    chat = make_chat(apiKeyFile=str(tmp_path / "key"))
    errors: list[BaseException] = []
    with caplog.at_level(logging.DEBUG):
        for fault in (Body(b"say SECRET-WORD"), Status(400, code="SECRET-WORD!"), Status(401), HungUp()):
            server.always(CHAT, fault)
            with pytest.raises(ModelUnavailable) as caught:
                await chat.complete(ASK, max_tokens=5)
            errors.append(caught.value)
    seen = caplog.text.replace(str(tmp_path), "") + " ".join(map(str, errors)) + chat.state.message
    assert "SECRET" not in seen


async def test_the_state_says_since_when(make_chat: MakeChat, server: ModelServer, clock: StillClock) -> None:
    chat = make_chat()
    assert chat.state.ok is None
    await chat.complete(ASK, max_tokens=5)
    first = clock.now()
    clock.advance(60)
    await chat.complete(ASK, max_tokens=5)
    assert (chat.state.since, chat.state.last_ok_at) == (first, clock.now())
    clock.advance(60)
    server.always(CHAT, Status(500))
    with pytest.raises(ModelUnavailable):
        await chat.complete(ASK, max_tokens=5)
    assert (chat.state.ok, chat.state.since) == (False, clock.now())


async def test_a_probe_asks_for_the_models_and_takes_none_listed_for_an_answer(
    make_chat: MakeChat, server: ModelServer
) -> None:
    chat = make_chat()
    await chat.probe()
    server.script(MODELS, Status(404), Status(401))
    await chat.probe()
    assert chat.state.ok is True
    with pytest.raises(ModelUnavailable) as caught:
        await chat.probe()
    assert caught.value.reason == Reason.MODEL_UNAUTHORIZED


def test_no_url_is_no_chat_model(clock: StillClock) -> None:
    assert open_chat(ChatConfig(), clock) is None


async def test_a_query_of_the_url_is_sent_with_every_request(make_chat: MakeChat, server: ModelServer) -> None:
    chat = make_chat(url=f"{server.url}/?api-version=2024-10-21&sig=a%2Bb/c")
    assert (await chat.complete(ASK, max_tokens=5)).text
    await chat.probe()
    query = "?api-version=2024-10-21&sig=a%2Bb/c"
    assert [request.path for request in server.requests] == [CHAT + query, MODELS + query]


async def test_an_authority_is_the_known_one_however_the_url_writes_its_scheme(
    clock: StillClock, no_sleep: NoSleep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ModelServer(tls=make_certificates(tmp_path)) as server:
        monkeypatch.setattr("certifi.where", lambda: str(tmp_path / "ca.crt"))
        url = server.url.replace("https", "HTTPS")
        chat = OpenAIChat(ChatConfig(url=url, model="m"), clock, retrying=no_sleep.retrying(0))
        assert (await chat.complete(ASK, max_tokens=5)).text
        await chat.close()
