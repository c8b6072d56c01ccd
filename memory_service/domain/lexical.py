"""Words: the stems that are stored beside every row, and the texts that stems and vectors are made from.

Both backends store what `terms` returns and look for what `query_terms` returns, so they rank alike. A change of the
rules here is a change of stored data: rows keep the stems they were written with until they are indexed anew.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import Stemmer  # type: ignore[import-not-found]

from memory_service.contract.turns import Role

MAX_WORD_CHARS = 40
"""A longer word is cut: it is a key, a hash or encoded bytes, and its start is enough to find it again."""

_MAX_RESULT_STRINGS = 20_000
"""Strings taken from one tool result; a turn's size is bounded already, this bounds the walk."""

_FUNCTION_WORDS = """
    a an the this that these those here there
    i me my mine myself we us our ours ourselves you your yours yourself yourselves
    he him his himself she her hers herself it its itself they them their theirs themselves
    am is are was were be been being isn't aren't wasn't weren't i'm you're we're they're he's she's it's that's there's
    here's what's who's where's when's how's let's i've you've we've they've i'd you'd he'd she'd we'd they'd
    i'll you'll he'll she'll it'll we'll they'll
    do does did doing done don't doesn't didn't have has had having haven't hasn't hadn't
    will would shall should can could might must won't wouldn't shan't shouldn't can't cannot couldn't mustn't
    and or but if nor so than then as because while although though unless until whether
    of at by for with about against between into through during before after above below to from up down in out on off
    over under again further once onto upon within without toward towards per via
    what which who whom whose when where why how
    all any both each few more most other others another some such only own same too very just also even still yet
    no not s t d ll m o re ve
    oh hey hi hello yeah yes ok okay well wow
"""
_STOP_WORDS = frozenset(_FUNCTION_WORDS.split())
"""English function words, and greetings that open a turn without saying anything. `may` is a month, so it stays."""

_MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u0711\u0730-\u074a\u0900-\u0963\u0971-\u0dff\u0e31\u0e34-\u0e3a"
    "\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u0f71-\u0f84\u102b-\u103e\u17b4-\u17d3\u1ab0-\u1aff\u1dc0-\u1dff"
)
"""Combining marks that belong to a word; `re` counts only letters and digits as word characters."""

_WORD = re.compile(rf"[^\W_](?:[^\W_]|[{_MARKS}])*(?:['’][^\W_](?:[^\W_]|[{_MARKS}])*)*")
_ASCII_WORD = re.compile(r"[a-z0-9]+(?:'[a-z0-9]+)*")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)
"""Scripts that are written without spaces (or, Hangul, with endings glued on): these runs become bigrams."""
_IDEOGRAPH = re.compile("[\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_ORDINAL = re.compile(r"([0-9]+)(?:st|nd|rd|th)")
_MONTH_NAMES = "January February March April May June July August September October November December"
_MONTHS = _MONTH_NAMES.split()


def terms(text: str) -> tuple[str, ...]:
    """Return the stems of a text in order, repeats included.

    Words are split where Unicode splits them, folded in case and width, Latin accents removed, English function words
    dropped and the rest stemmed (Snowball English, for Latin script only). Numbers stay. Runs of a script without
    spaces become overlapping pairs of characters, and each ideograph is there alone as well, so that one can be asked
    for. Linear in the length of the text.
    """
    return tuple(_stems(text, with_ideographs=True))


def query_terms(text: str) -> tuple[str, ...]:
    """Return the distinct stems of a query in order of first appearance; empty when it has only function words."""
    return tuple(dict.fromkeys(_stems(text, with_ideographs=False)))


def is_function_word(word: str) -> bool:
    """Return whether a word in small letters is one that says nothing alone, and so is no term."""
    return word in _STOP_WORDS


def _stems(text: str, *, with_ideographs: bool) -> Iterable[str]:
    if text.isascii():
        return filter(None, [_stem(word[:MAX_WORD_CHARS]) for word in _ASCII_WORD.findall(text.lower())])
    return _unicode_stems(text, with_ideographs=with_ideographs)


def _unicode_stems(text: str, *, with_ideographs: bool) -> Iterator[str]:
    for match in _WORD.finditer(unicodedata.normalize("NFKC", text).casefold()):
        word = match.group()
        end = 0
        for run in _UNSPACED.finditer(word):
            stem = _stem(word[end : run.start()][:MAX_WORD_CHARS])
            if stem:
                yield stem
            yield from _pairs(run.group(), with_ideographs=with_ideographs)
            end = run.end()
        stem = _stem(word[end:][:MAX_WORD_CHARS])
        if stem:
            yield stem


def _pairs(run: str, *, with_ideographs: bool) -> Iterator[str]:
    if len(run) == 1:
        yield run
        return
    for at, character in enumerate(run):
        if with_ideographs and _IDEOGRAPH.match(character):
            yield character
        if at + 1 < len(run):
            yield run[at : at + 2]


@lru_cache(maxsize=100_000)
def _stem(word: str) -> str:
    """Return a folded word's stem, or nothing for a function word."""
    word = word.replace("’", "'").strip("'")
    if word in _STOP_WORDS:
        return ""
    if not word.isascii():
        bare = unicodedata.normalize("NFKD", word)
        bare = "".join(character for character in bare if not "\u0300" <= character <= "\u036f")
        if not bare.isascii():
            return word
        word = bare
    if word.isdigit():
        return (word.lstrip("0") or "0") if len(word) <= 2 else word
    ordinal = _ORDINAL.fullmatch(word)
    if ordinal:
        return ordinal.group(1)
    # A stemmer holds the word it works on, so each call has its own: calls come from several threads.
    stem: str = Stemmer.Stemmer("english", 0).stemWord(word)
    return stem


def turn_text(content: str | None, parts: Sequence[Mapping[str, Any]] | None) -> str:
    """Return what a turn says in words: what is searched, counted and shown to engines.

    `content` where there is any; else the text parts, what media show (`alt`), the names of called tools and the
    strings of their results. Tool arguments, links and the keys and punctuation of JSON stay out.
    """
    if content is not None and content.strip():
        return content
    return "\n".join(piece for piece in _spoken(parts or (), tools=True) if piece.strip())


def turn_index_text(name: str | None, role: Role, said_at: datetime, text: str) -> str:
    """Return the text whose stems make a turn findable: who said it, what, and when.

    The name (else the role, for all but users) lets a question about a person find what that person said; the date in
    words lets "in May 2023" find it: both were measured to help.
    """
    speaker = name or ("" if role is Role.USER else role.value)
    return f"{speaker}: {text} ({spoken_date(said_at)})" if speaker else f"{text} ({spoken_date(said_at)})"


def turn_embedding_text(
    name: str | None,
    role: Role,
    said_at: datetime,
    content: str | None,
    parts: Sequence[Mapping[str, Any]] | None,
) -> str:
    """Return the text whose vector makes a turn findable by meaning; empty when it should have none.

    The speaker is in it and the date is not: beside words that have it, a date in the vector was measured to harm.
    Payloads stay out: tool calls, tool results, and content that is JSON.
    """
    text = content if content is not None and content.strip() else None
    if text is None:
        text = "\n".join(piece for piece in _spoken(parts or (), tools=False) if piece.strip())
    if role is Role.TOOL or not text.strip() or _is_json(text):
        return ""
    speaker = name or ("" if role is Role.USER else role.value)
    return f"{speaker}: {text}" if speaker else text


def fact_index_text(text: str, *, key: str | None = None, category: str | None = None, tags: Sequence[str] = ()) -> str:
    """Return the text whose stems make a fact findable: its statement, and the labels it was filed under."""
    labels = [label for label in (key, category, *tags) if label]
    return f"{text} ({', '.join(labels)})" if labels else text


def spoken_date(moment: datetime) -> str:
    """Return a date as people say it, day, month and year, whatever the locale."""
    return f"{moment.day} {_MONTHS[moment.month - 1]} {moment.year}"


def _is_json(text: str) -> bool:
    stripped = text.strip()
    if not stripped or stripped[0] not in "{[" or stripped[-1] not in "}]":
        return False
    try:
        json.loads(stripped)
    except (ValueError, RecursionError):
        return False
    return True


def _spoken(parts: Sequence[Mapping[str, Any]], *, tools: bool) -> Iterator[str]:
    for part in parts:
        match part.get("type"):
            case "text":
                yield str(part.get("text") or "")
            case "image" | "audio" | "file":
                yield str(part.get("alt") or "")
            case "tool_call" if tools:
                yield str(part.get("name") or "")
            case "tool_result" if tools:
                yield from _strings(part.get("content"))


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings and numbers of a JSON value in order, without its keys."""
    waiting = [value]
    left = _MAX_RESULT_STRINGS
    while waiting and left > 0:
        item = waiting.pop()
        if isinstance(item, str):
            left -= 1
            yield from _strings_of_text(item, waiting)
        elif isinstance(item, bool) or item is None:
            continue
        elif isinstance(item, int | float):
            left -= 1
            yield str(item)
        elif isinstance(item, Mapping):
            waiting.extend(reversed(list(item.values())))
        elif isinstance(item, Sequence):
            waiting.extend(reversed(item))


def _strings_of_text(text: str, waiting: list[Any]) -> Iterator[str]:
    """Yield a result's text; text that is JSON itself is opened instead."""
    if _is_json(text):
        waiting.append(json.loads(text))
    else:
        yield text
