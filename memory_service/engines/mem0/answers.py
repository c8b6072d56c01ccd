"""Reading a model's answer to Mem0's extraction prompt. Pure.

Mem0 takes an answer that it cannot read for "nothing to remember", and fails on items that are not objects. So the
answer is read here first, and Mem0 only sees one that it can read.
"""

from __future__ import annotations

import json
import re
from typing import Any

from memory_service.ports.models import UnparseableAnswer

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def readable_answer(answer: str) -> str:
    """Return the answer as JSON with one `memory` list of objects that have a text.

    Text around the object and fences are ignored, and a plain string stands for an object with that text. An item
    without a text makes the whole answer unusable, since half of an answer would pass for all of it.

    Raises:
        UnparseableAnswer: it is not an object with such a list. The message never quotes the answer.
    """
    items = _object_in(answer).get("memory")
    if not isinstance(items, list):
        raise UnparseableAnswer("the answer has no list `memory`")
    usable = [_item(item, at) for at, item in enumerate(items)]
    return json.dumps({"memory": [item for item in usable if item["text"]]}, ensure_ascii=False)


def _object_in(answer: str) -> dict[str, Any]:
    start, end = answer.find("{"), answer.rfind("}")
    if start < 0 or end < start:
        raise UnparseableAnswer("the answer holds no JSON object")
    try:
        parsed = json.loads(answer[start : end + 1], strict=False)
    except (ValueError, RecursionError):
        raise UnparseableAnswer("the answer's JSON is broken or cut off") from None
    if not isinstance(parsed, dict):
        raise UnparseableAnswer("the answer is not a JSON object")
    return parsed


def _item(item: Any, at: int) -> dict[str, str]:
    text = item.get("text") if isinstance(item, dict) else item
    if not isinstance(text, str):
        raise UnparseableAnswer(f"item {at} of the answer's `memory` is not an object with a string `text`")
    speaker = item.get("attributed_to") if isinstance(item, dict) else None
    return {
        "text": _UNSTORABLE.sub("\ufffd", text.strip()),
        "attributed_to": speaker if isinstance(speaker, str) else "user",
    }
