"""A chat model behind an OpenAI-compatible endpoint.

Whatever the endpoint answers, a caller gets all of what was asked for or `ModelUnavailable`, and nothing in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memory_service.contract.config import ChatConfig
from memory_service.contract.health import Reason
from memory_service.ports.models import Clock, Completion, Message, ModelUsage
from memory_service.providers.endpoint import Endpoint, Refused, Retrying
from memory_service.providers.health import ProviderState
from memory_service.providers.thinking import without_thinking

MAX_CHAT_BYTES = 8 * 1024 * 1024
MAX_MODELS_BYTES = 4 * 1024 * 1024
PLAIN_MESSAGES = (Message("system", "Answer with JSON."), Message("user", 'Answer with {"ok": true}.'))
"""What no endpoint has a reason to refuse: where it refuses this as well, it is not about a text."""

_DROPPABLE = ("temperature", "response_format")
_ANSWERS = ("text", "output_text")
"""Types of the parts of an answer that hold what it says; others hold thinking."""


class OpenAIChat:
    """A chat model. Answers are asked for at temperature 0; what a model does not take is left out from then on."""

    def __init__(self, config: ChatConfig, clock: Clock, *, retrying: Retrying | None = None) -> None:
        if config.model is None:
            raise ValueError("a chat model needs `url` and `model`")
        self.model = config.model
        self.context_tokens = config.context_tokens
        self._endpoint = Endpoint(
            "chat model", config, unavailable=Reason.MODEL_UNAVAILABLE, retrying=retrying, clock=clock
        )
        self._dropped: set[str] = set()
        self._limit_name = "max_tokens"

    @property
    def state(self) -> ProviderState:
        """How the last call went."""
        return self._endpoint.state

    async def complete(self, messages: Sequence[Message], *, max_tokens: int, json_object: bool = False) -> Completion:
        """Return the answer; an empty one is an answer too.

        Raises:
            ModelRefused: the model answers, and does not take these messages.
            ModelUnavailable: no answer after the repeats, a refused key, or not the answer of a chat model.
        """
        body: dict[str, Any] = {"model": self.model, "messages": _messages(messages), "temperature": 0}
        if json_object:
            body["response_format"] = {"type": "json_object"}
        try:
            completion = await self._answer(body, max_tokens)
        except Refused as refusal:
            completion = await self._answer_after(refusal, body, max_tokens)
        self._endpoint.succeeded()
        return completion

    async def probe(self) -> None:
        """Ask for the list of models: shows that the endpoint answers and takes the key.

        Raises:
            ModelUnavailable: it does not.
        """
        try:
            await self._endpoint.get("models", max_bytes=MAX_MODELS_BYTES)
        except Refused as refusal:
            if refusal.status != 404:  # Not every server lists its models.
                raise self._endpoint.failure(str(refusal)) from refusal
        self._endpoint.succeeded()

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()

    async def _answer(self, body: dict[str, Any], max_tokens: int, *, repeats: bool = True) -> Completion:
        """Return a completion. What is none counts as refused."""
        completion = _completion(await self._adapting(body, max_tokens, repeats))
        if completion is None:
            raise Refused(200, problem="the answer is not a chat completion")
        return completion

    async def _adapting(self, body: dict[str, Any], max_tokens: int, repeats: bool) -> Any:
        while True:
            sent = {key: value for key, value in body.items() if key not in self._dropped}
            sent[self._limit_name] = max_tokens
            try:
                return await self._endpoint.post("chat/completions", sent, max_bytes=MAX_CHAT_BYTES, repeats=repeats)
            except Refused as refusal:
                if refusal.param == "max_tokens" and "max_tokens" in sent:
                    self._limit_name = "max_completion_tokens"
                elif refusal.param.partition(".")[0] in _DROPPABLE and refusal.param.partition(".")[0] in sent:
                    self._dropped.add(refusal.param.partition(".")[0])
                else:
                    raise

    async def _answer_after(self, refusal: Refused, body: dict[str, Any], max_tokens: int) -> Completion:
        """Return the answer after all, or raise what the refusal is about: the same is asked in the same way about
        nothing in particular, and where that is answered once more about the text, unless it was a verdict.
        """
        if not refusal.may_be_about_the_text:
            raise self._endpoint.failure(str(refusal)) from refusal
        try:
            await self._answer({**body, "messages": _messages(PLAIN_MESSAGES)}, max_tokens, repeats=False)
        except Refused:
            raise self._endpoint.failure(str(refusal)) from refusal
        if refusal.may_pass:
            try:
                return await self._answer(body, max_tokens, repeats=False)
            except Refused as again:
                raise self._endpoint.refusal(str(again)) from again
        raise self._endpoint.refusal(str(refusal)) from refusal


def _messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def _completion(answer: Any) -> Completion | None:
    """Return the first choice of a chat completion without what was thought aloud; None if it is not one."""
    try:
        choice = answer["choices"][0]
        content = choice["message"].get("content")
    except (KeyError, IndexError, TypeError, AttributeError):
        return None
    if isinstance(content, list):
        texts = [
            part.get("text") for part in content if isinstance(part, dict) and part.get("type", "text") in _ANSWERS
        ]
        content = "".join(text for text in texts if isinstance(text, str))
    if content is not None and not isinstance(content, str):
        return None
    finish = choice.get("finish_reason")
    # Half of a surrogate pair, as of an answer that was cut inside a character, is nothing that can be stored.
    whole = (content or "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return Completion(text=without_thinking(whole), usage=_usage(answer.get("usage")), truncated=finish == "length")


def _usage(usage: Any) -> ModelUsage:
    if not isinstance(usage, dict):
        return ModelUsage()
    given = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    read, written = (n if isinstance(n, int) and not isinstance(n, bool) and n >= 0 else 0 for n in given)
    return ModelUsage(input_tokens=read, output_tokens=written)
