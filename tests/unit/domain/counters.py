"""Token counters for tests of pure code."""

from __future__ import annotations


class Characters:
    """One token a character."""

    def count(self, text: str) -> int:
        return len(text)

    def cut(self, text: str, max_tokens: int) -> str:
        return text[: max(0, max_tokens)]


class Rough:
    """About four characters a token, rounded up, so that the whole is not the sum of its parts."""

    def count(self, text: str) -> int:
        return (len(text) + 3) // 4

    def cut(self, text: str, max_tokens: int) -> str:
        return text[: 4 * max(0, max_tokens)]


class Quirky:
    """Counts more for a whole than for its parts: the worst that a counter can do to a budget."""

    def count(self, text: str) -> int:
        return len(text) + text.count("\n") * 3

    def cut(self, text: str, max_tokens: int) -> str:
        while self.count(text) > max_tokens:
            text = text[:-1]
        return text
