"""A chat model whose tokens are counted, whoever asks it."""

from __future__ import annotations

from collections.abc import Sequence

from memory_service.ports.models import Chat, Completion, Message
from memory_service.ports.process import Meter


class MeteredChat:
    """Passes requests on and counts the tokens that the endpoint reports, under a purpose."""

    def __init__(self, chat: Chat, meter: Meter, purpose: str) -> None:
        self._chat = chat
        self._meter = meter
        self._purpose = purpose
        self.model = chat.model

    @property
    def context_tokens(self) -> int:
        """Tokens of the model's context."""
        return self._chat.context_tokens

    async def complete(self, messages: Sequence[Message], *, max_tokens: int, json_object: bool = False) -> Completion:
        """Return the model's answer."""
        answer = await self._chat.complete(messages, max_tokens=max_tokens, json_object=json_object)
        self._meter.count("model_tokens", answer.usage.input_tokens, direction="input", purpose=self._purpose)
        self._meter.count("model_tokens", answer.usage.output_tokens, direction="output", purpose=self._purpose)
        return answer
