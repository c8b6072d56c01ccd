"""Counting tokens offline with a bundled o200k vocabulary.

The count is exact for the models that use o200k and a good estimate for others; what an endpoint really used is in
its `usage`. The vocabulary is loaded on first use, because a process that only serves recalls may never need it.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quicktok import Tokenizer  # type: ignore[import-untyped]

ENCODING = "o200k_base"
CHARS_PER_TOKEN = 8
"""Characters that are looked at for each token of a cut, at first: most texts have fewer a token."""

_SURROGATES = re.compile("[\ud800-\udfff]")


class OfflineTokenCounter:
    """Counts o200k tokens without a network; safe to use from several threads.

    Special-token spellings such as `<|endoftext|>` are text. A lone surrogate counts as U+FFFD.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: Tokenizer | None = None

    def warm(self) -> None:
        """Load the vocabulary (half a second; call it off the event loop), so that the first count does not wait."""
        self._tokenizer()

    def count(self, text: str) -> int:
        """Return the number of tokens; about 10 ms for a megabyte, linear for every input."""
        return int(self._tokenizer().count(_encodable(text)))

    def cut(self, text: str, max_tokens: int) -> str:
        """Return the prefix that the first `max_tokens` tokens of the text cover, on a character border.

        The result itself never counts more than `max_tokens`.
        """
        if max_tokens <= 0:
            return ""
        tokenizer = self._tokenizer()
        size = (max_tokens + 8) * CHARS_PER_TOKEN
        while True:
            tokens = tokenizer.encode_ordinary(_encodable(text[:size]))
            if len(tokens) > max_tokens:
                break
            if size >= len(text):
                return text
            size *= 4
        for kept in range(min(max_tokens, len(tokens)), 0, -1):
            # The border may fall inside a character: the half that is left of it is dropped.
            covered = tokenizer.decode_bytes(tokens[:kept]).decode("utf-8", "ignore")
            # A prefix is split into words without what follows it, so it may count differently than its tokens do.
            if self.count(covered) <= max_tokens:
                return text[: len(covered)]
        return ""

    def _tokenizer(self) -> Tokenizer:
        if self._loaded is None:
            with self._lock:
                if self._loaded is None:
                    import quicktok

                    self._loaded = quicktok.get_encoding(ENCODING)
        return self._loaded


def _encodable(text: str) -> str:
    # The tokenizer's own refusal of a surrogate would quote the text in its message.
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)
