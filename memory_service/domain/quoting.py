"""Quoting: how remembered text stands in a prompt so that it can only ever be read as data.

Everything that a person, a tool or a model once said is written as one JSON string on one line, so it cannot end its
own quote, begin a line, open a heading, a list or a code fence, or spell a tag of the frame around it.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from typing import Protocol

_UNSAFE = re.compile(
    "[<>\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\u1fef\u226e\u226f\ufe64\ufe65\ufe68\uff02\uff1c\uff1e\uff3c\uff40]|`(?=``)|(?<=`)`"
)
"""What JSON leaves as it is and a reader may not: tag brackets, fences, characters that are invisible, break lines or
turn the direction of writing, and those that become a bracket, a quote, a backslash or a fence where a model's
tokenizer normalizes Unicode.
"""

_UNSAFE_ASCII = "<>`\x7f"
"""What of that can stand in plain ASCII: most texts have none of it, which is soon seen."""

_as_json = json.JSONEncoder(ensure_ascii=False).encode

_PLAIN_NAME = re.compile(r"[^\W_](?:[\w .'-]{0,38}[\w.])?")
_LOOK_ALIKE = re.compile("[\u02b0-\u02ff\u0559\u07f4\u07f5\ua4f8-\ua4fd\ua717-\ua721\ua788-\ua78c]")
"""Letters of Unicode that look like a colon, a quote or an apostrophe."""


@dataclass(frozen=True)
class Prompt:
    """A request to a chat model: what it is to do, and the quoted material it is to do it with."""

    system: str
    user: str


class Counter(Protocol):
    """Counts tokens; `ports.models.TokenCounter` is one."""

    def count(self, text: str) -> int: ...

    def cut(self, text: str, max_tokens: int) -> str: ...


def quoted(text: str) -> str:
    """Return a text as a JSON string that is safe in any frame; `json.loads` gives the text back."""
    whole = _as_json(text)
    if whole.isascii() and not any(character in whole for character in _UNSAFE_ASCII):
        return whole
    return _UNSAFE.sub(_escaped, whole)


def quoted_within(text: str, max_tokens: int, counter: Counter, *, marker: str = "…") -> str:
    """Return the quoted text, cut with a marker at its end where it would have more than `max_tokens` tokens."""
    whole = quoted(text)
    if counter.count(whole) <= max_tokens:
        return whole
    room = max_tokens
    while room > 0:
        # Escapes make a quote longer than its text, so what is cut to fit may still be too long.
        piece = quoted(counter.cut(text, room) + marker)
        if counter.count(piece) <= max_tokens:
            return piece
        room = room * 3 // 4
    return quoted("")


def speaker(name: str | None, role: str) -> str:
    """Return who said something: a name as it is if it is a plain one, else quoted; without a name, the role in
    brackets, which no name can imitate.
    """
    if not name or not name.strip():
        return f"({role})"
    return name if _is_plain(name) else quoted(name[:40])


def _is_plain(name: str) -> bool:
    if not _PLAIN_NAME.fullmatch(name):
        return False
    if name.isascii():
        return True
    changes = unicodedata.normalize("NFKC", name) != name or _UNSAFE.search(name)
    return not changes and not _LOOK_ALIKE.search(name)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
