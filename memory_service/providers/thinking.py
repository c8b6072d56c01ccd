"""What a reasoning model thinks aloud before it answers, and where its answer begins. Pure, and linear in the text."""

from __future__ import annotations

import re

_TAG = re.compile(r"<(/?)think(?:ing)?>")
_MARGIN_CHARS = 8
"""Blanks between a tag and the edge of its line at most."""


def without_thinking(text: str) -> str:
    """Return the answer alone: empty where the model never came to the end of its thinking.

    A beginning counts at the start of a line only: quoted in JSON or inside a sentence it is what somebody said. An end
    without a beginning, at either edge of a line, ends thinking as well: many prompts begin it for the model.
    """
    kept: list[str] = []
    at = 0
    is_thinking = False
    for tag in _TAG.finditer(text):
        is_end = bool(tag[1])
        if is_thinking:
            if is_end:
                is_thinking = False
                at = tag.end()
        elif is_end and (_begins_line(text, tag.start()) or _ends_line(text, tag.end())):
            kept.clear()
            at = tag.end()
        elif not is_end and _begins_line(text, tag.start()):
            kept.append(text[at : tag.start()])
            is_thinking = True
    if not is_thinking:
        kept.append(text[at:])
    return "".join(kept)


def _begins_line(text: str, at: int) -> bool:
    before = text[max(0, at - _MARGIN_CHARS) : at].rstrip(" \t")
    return before.endswith("\n") or (not before and at <= _MARGIN_CHARS)


def _ends_line(text: str, at: int) -> bool:
    return text[at : at + _MARGIN_CHARS].lstrip(" \t\r").startswith("\n")
