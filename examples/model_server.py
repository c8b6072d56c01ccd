"""A stand-in for a language model: an OpenAI-compatible server whose answers follow rules.

It understands sentences such as "my dog is called Rex", "I live in Oslo" or "I moved from Oslo to Lisbon", and is as
deterministic as a rule can be: no key, no download. Good for a demo and for tests, not for real conversations.

    python examples/model_server.py --port 8900

Then configure a store's chat model with `url: http://127.0.0.1:8900/v1` and `model: rules`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DIMENSION = 64
MODEL = "rules"

_SENTENCE = re.compile(r"[^.!?\n]+")
_NEW_TEXT = r"[^.!?,;\n]+"
_FACTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), text)
    for pattern, text in (
        (rf"\bI (?:have )?(?:just )?moved from ({_NEW_TEXT}?) to ({_NEW_TEXT})", "User moved from {0} to {1}"),
        (rf"\bI (?:now )?live in ({_NEW_TEXT})", "User lives in {0}"),
        (rf"\bI(?: am|'m) (?:very )?allergic to ({_NEW_TEXT})", "User is allergic to {0}"),
        (rf"\bI prefer ({_NEW_TEXT})", "User prefers {0}"),
        (rf"\bI work (as|at|for|in) ({_NEW_TEXT})", "User works {0} {1}"),
        (rf"\bI (?:really )?(like|love|hate|enjoy|need|own|speak|play) ({_NEW_TEXT})", "User {0}s {1}"),
        (rf"\bcall me ({_NEW_TEXT})", "User wants to be called {0}"),
        (rf"\bremember that ({_NEW_TEXT})", "{0}"),
        (
            rf"\bmy ([\w' -]{{1,60}}?) (is|are|was|were) (?:now )?(?!called|named)({_NEW_TEXT})",
            "User's {0} {1} {2}",
        ),
        (rf"\bmy ([\w' -]{{1,60}}?) is (?:called|named) ({_NEW_TEXT})", "User's {0} is called {1}"),
    )
)


_HEAD = re.compile(r"(?:(?:(?P<seq>\d+) )?\d{4}-\d\d-\d\d \d\d:\d\d |(?=(?:user|assistant|system): ))")


@dataclass(frozen=True)
class Said:
    """One message as a prompt shows it; `seq` where the prompt numbers its messages."""

    text: str
    by_user: bool
    seq: int | None = None


def facts_in(text: str) -> list[str]:
    """Return what the rules know about one message, in the order it was said."""
    found: list[str] = []
    for sentence in _SENTENCE.findall(text):
        for pattern, template in _FACTS:
            match = pattern.search(sentence)
            if match:
                fact = template.format(*(group.strip() for group in match.groups()))
                fact = f"{fact[0].upper()}{fact[1:]}"
                if fact not in found:
                    found.append(fact)
                break
    return found


def vector_of(text: str, dimension: int = DIMENSION) -> list[float]:
    """Return a unit vector made from the hashes of a text's words: texts that share words are near each other."""
    vector = [0.0] * dimension
    for word in re.findall(r"\w+", text.casefold()) or [""]:
        digest = hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest()
        vector[int.from_bytes(digest[:4], "big") % dimension] += 1.0 if digest[4] % 2 else -1.0
    length = math.sqrt(sum(number * number for number in vector))
    if length == 0:
        return [1.0] + [0.0] * (dimension - 1)
    return [number / length for number in vector]


def chat_text(messages: Sequence[Mapping[str, Any]], *, wants_json: bool) -> str:
    """Return the answer to a prompt: facts as JSON in the shape it asks for, or a summary in plain words."""
    system = "\n".join(str(m.get("content", "")) for m in messages if m.get("role") == "system")
    user = "\n".join(str(m.get("content", "")) for m in messages if m.get("role") != "system")
    if not wants_json:
        return summary_of(user)
    if "linked_memory_ids" in system:
        return json.dumps({"memory": _mem0_items(user)}, ensure_ascii=False)
    return json.dumps({"facts": _native_items(user)}, ensure_ascii=False)


def _mem0_items(prompt: str) -> list[dict[str, str]]:
    facts = [
        fact
        for said in said_in(_between(prompt, "## New Messages\n", "\n\n## "))
        if said.by_user
        for fact in facts_in(said.text)
    ]
    return [
        {"id": str(place), "text": fact, "attributed_to": "user"} for place, fact in enumerate(dict.fromkeys(facts))
    ]


def _native_items(prompt: str) -> list[dict[str, Any]]:
    known = {}
    for line in _between(prompt, "known:\n", "\n\n").splitlines():
        ref, _, text = line.partition(": ")
        known[ref] = json.loads(text)
    items: dict[str, dict[str, Any]] = {}
    for said in said_in(_between(prompt, "messages:\n", "\n\n")):
        for fact in facts_in(said.text) if said.by_user else []:
            restated = next((ref for ref, text in known.items() if text == fact), None)
            if restated is not None:
                item = items.setdefault(fact, {"restates": restated, "seqs": []})
                if said.seq is not None:
                    item["seqs"].append(said.seq)
                continue
            changed = next((ref for ref, text in known.items() if subject_of(text) == subject_of(fact)), None)
            item = items.setdefault(
                fact,
                {
                    "text": fact,
                    "kind": "preference" if " prefers " in fact else "semantic",
                    "seqs": [],
                    "category": None,
                    "importance": None,
                    "updates": changed,
                    "contradicts": changed is not None,
                },
            )
            if said.seq is not None:
                item["seqs"].append(said.seq)
    return list(items.values())


def subject_of(fact: str) -> str:
    """Return what a fact is about: two facts about one subject cannot both hold."""
    moved = re.fullmatch(r"User moved from .* to .*", fact)
    if moved or fact.startswith("User lives in"):
        return "where User lives"
    about = re.match(r"User's .+? (?:is called|is|are)\b|User wants to be called", fact)
    return about.group().removesuffix(" called") if about else fact


def summary_of(prompt: str) -> str:
    """Return the notes so far and what the user said since, in plain sentences."""
    before = re.search(r"^Notes so far: (\".*\")$", prompt, re.MULTILINE)
    notes = [json.loads(before.group(1))] if before else []
    notes += [f"The user said: {said.text}" for said in said_in(prompt) if said.by_user]
    return "\n".join(notes) or "Nothing of note was said."


def said_in(section: str) -> list[Said]:
    """Return the messages of a part of a prompt: lines with number, time or speaker before a quoted string."""
    found: list[Said] = []
    for line in section.splitlines():
        head = _HEAD.match(line)
        text = _quoted_end(line[head.end() :]) if head else None
        if head and text is not None:
            speaker = line[head.end() :]
            by_user = not speaker.startswith(("(assistant)", "(tool)", "(system)", "assistant:", "system:"))
            found.append(Said(text, by_user, int(head["seq"]) if head["seq"] else None))
    return found


def _quoted_end(line: str) -> str | None:
    """Return the JSON string that a line ends with."""
    for place, character in enumerate(line):
        if character == '"':
            try:
                text = json.loads(line[place:])
            except ValueError:
                continue
            return str(text)
    return None


def _between(text: str, start: str, end: str) -> str:
    return text.partition(start)[2].partition(end)[0]


def chat_answer(body: Mapping[str, Any], *, text: str | None = None, finish: str = "stop") -> dict[str, Any]:
    """Return a whole chat completion; `text` replaces what the rules would say."""
    messages = body.get("messages") or []
    if text is None:
        text = chat_text(messages, wants_json=bool(body.get("response_format")))
    read = sum(len(str(message.get("content", "")).split()) for message in messages)
    usage = {"prompt_tokens": read, "completion_tokens": len(text.split())}
    return {
        "id": "chatcmpl-rules",
        "object": "chat.completion",
        "model": body.get("model", MODEL),
        "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}],
        "usage": {**usage, "total_tokens": sum(usage.values())},
    }


def embeddings_answer(body: Mapping[str, Any], dimension: int = DIMENSION) -> dict[str, Any]:
    """Return one vector for each input."""
    given = body.get("input")
    inputs = [given] if isinstance(given, str) else list(given or [])
    data = [
        {"object": "embedding", "index": index, "embedding": vector_of(str(text), dimension)}
        for index, text in enumerate(inputs)
    ]
    tokens = sum(len(str(text).split()) for text in inputs)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "model": body.get("model", MODEL), "data": data, "usage": usage}


def models_answer() -> dict[str, Any]:
    """Return the list of models: one."""
    return {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "memplane"}]}


class Handler(BaseHTTPRequestHandler):
    """The three routes that Memplane uses."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """List the models."""
        if self.path.rstrip("/") == "/v1/models":
            self.respond(200, models_answer())
        else:
            self.respond(404, {"error": {"code": "not_found", "message": "no such route"}})

    def do_POST(self) -> None:
        """Answer a chat or an embedding request."""
        body = self.read_body()
        if body is None:
            self.respond(400, {"error": {"code": "invalid_json", "message": "the body is not a JSON object"}})
        elif self.path == "/v1/chat/completions":
            self.respond(200, chat_answer(body))
        elif self.path == "/v1/embeddings":
            self.respond(200, embeddings_answer(body))
        else:
            self.respond(404, {"error": {"code": "not_found", "message": "no such route"}})

    def read_body(self) -> dict[str, Any] | None:
        """Return the request's JSON object; None if it is not one."""
        content = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            body = json.loads(content)
        except ValueError:
            return None
        return body if isinstance(body, dict) else None

    def respond(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        """Send a JSON answer."""
        content = json.dumps(body, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests hold what people said."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve on loopback until interrupted."""
    parser = argparse.ArgumentParser(description="A rule-based stand-in for a language model.")
    parser.add_argument("--port", type=int, default=8900, help="0 chooses a free port")
    options = parser.parse_args(arguments)
    with ThreadingHTTPServer(("127.0.0.1", options.port), Handler) as server:
        server.daemon_threads = True
        print(f"http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped")


if __name__ == "__main__":
    main()
