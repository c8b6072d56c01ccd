"""A model endpoint on a real socket, with faults that a test scripts.

    with ModelServer() as server:
        server.script("/v1/chat/completions", Status(429, retry_after="1"))
        ...  # the first chat request gets the 429, the next one an answer by the rules

`python -m tests.fakes.model_server --port 0` serves without faults and prints its URL.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any, Literal, Self

from examples.model_server import DIMENSION, Handler, chat_answer, embeddings_answer, main, models_answer

CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
MODELS = "/v1/models"
GATE_LIMIT_SECONDS = 45.0
"""A gate that no test opens lets go after this, so that a failed test does not hang."""


@dataclass(frozen=True)
class Request:
    """A request as it came."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def prompt(self) -> str:
        """All messages of a chat request, one after the other."""
        return "\n".join(str(message["content"]) for message in self.body.get("messages", ()))


@dataclass(frozen=True)
class Status:
    """Answer with a status and nothing useful."""

    status: int
    retry_after: str | None = None
    code: str = ""
    param: str = ""
    location: str = ""


@dataclass(frozen=True)
class Text:
    """Answer a chat request with this text (a bad JSON document, an empty summary)."""

    text: str | None
    finish: str = "stop"


@dataclass(frozen=True)
class Truncated:
    """Answer a chat request with the first half of what the rules say, and finish_reason=length."""


@dataclass(frozen=True)
class Thinking:
    """Answer a chat request as usual after so many words of thinking; the whole is cut off at `max_tokens` words."""

    words: int


@dataclass(frozen=True)
class Body:
    """Answer 200 with these bytes."""

    content: bytes


@dataclass(frozen=True)
class Embeddings:
    """Answer an embedding request with a changed answer."""

    change: Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class HalfClosed:
    """Promise more bytes than are sent, then close."""


@dataclass(frozen=True)
class HungUp:
    """Close without an answer."""


@dataclass(frozen=True)
class Gate:
    """Hold the request until `opened` is set, then answer as usual. `entered` is set when one is held.

    With `only` it holds requests for a summary, or for facts, and lets others through.
    `gave_up` is set where nobody opened it in time: whoever waits for what is behind the gate waited for that.
    """

    entered: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)
    gave_up: threading.Event = field(default_factory=threading.Event)
    only: Literal["summary", "facts"] | None = None

    def holds(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request is one to hold."""
        return self.only is None or self.only == ("facts" if "response_format" in body else "summary")

    def hold(self) -> None:
        """Keep the thread that calls until the gate is opened, or for as long as a gate holds."""
        self.entered.set()
        if not self.opened.wait(GATE_LIMIT_SECONDS):
            self.gave_up.set()


@dataclass(frozen=True)
class TooLong:
    """Answer 400 to requests with an input or a message of more words than this, as usual to the others."""

    max_words: int
    code: str = "context_length_exceeded"


@dataclass
class Quota:
    """Answer as usual so many times, which a test may set anew, and then 429."""

    left: int

    def spend(self) -> bool:
        """Use one answer; False when none is left."""
        self.left -= 1
        return self.left >= 0


@dataclass(frozen=True)
class Refusing:
    """Answer 400 (or another status) to requests that hold this word anywhere, as usual to the others.

    With `beside` only those are refused that have an input or a message with both words.
    """

    word: str
    status: int = 400
    beside: str = ""

    def refuses(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request holds what is refused."""
        texts = [json.dumps(part) for part in (*body.get("input", ()), *body.get("messages", ()))]
        return any(self.word in text and self.beside in text for text in texts)


@dataclass(frozen=True)
class Answering:
    """Answer chat requests that hold this word anywhere with a text, the others as usual."""

    word: str
    text: str
    finish: str = "stop"


@dataclass(frozen=True)
class Directionless:
    """Answer an embedding request with this in place of each number for inputs that hold this word."""

    word: str
    number: float | None


Fault = (
    Status
    | Text
    | Truncated
    | Thinking
    | Body
    | Embeddings
    | HalfClosed
    | HungUp
    | Gate
    | TooLong
    | Refusing
    | Answering
    | Directionless
)


def wrong_count(answer: dict[str, Any]) -> None:
    """Leave out the last vector."""
    answer["data"].pop()


def wrong_dimension(answer: dict[str, Any]) -> None:
    """Give vectors that are one number longer."""
    for item in answer["data"]:
        item["embedding"].append(0.5)


def not_a_number(answer: dict[str, Any]) -> None:
    """Put a NaN into the last vector."""
    answer["data"][-1]["embedding"][0] = float("nan")


def reversed_order(answer: dict[str, Any]) -> None:
    """Give the vectors in another order, with the right indexes."""
    answer["data"].reverse()


class ModelServer:
    """The server, on a free loopback port, from entering to leaving the context."""

    def __init__(self, *, dimension: int = DIMENSION, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.dimension = dimension
        self._tls = tls
        self._port = port
        self._lock = threading.Lock()
        self._scripts: dict[str, deque[Fault]] = {}
        self._standing: dict[str, Fault] = {}
        self._gates: list[Gate] = []
        self._requests: list[Request] = []
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        server = _Server(("127.0.0.1", self._port), _FaultyHandler, self)
        if self._tls is not None:
            server.socket = self._tls.wrap_socket(server.socket, server_side=True)
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="model-server", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        assert self._thread is not None
        for gate in self._gates:
            gate.opened.set()
        self._server.shutdown()
        self._thread.join(10)
        self._server.close_connections()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The base URL to configure."""
        assert self._server is not None
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def requests(self) -> list[Request]:
        """Everything that was asked, in order."""
        with self._lock:
            return list(self._requests)

    @property
    def counts(self) -> Counter[str]:
        """How often each path was asked."""
        return Counter(request.path for request in self.requests)

    def script(self, path: str, *faults: Fault) -> None:
        """Answer the next requests for a path with these, one each."""
        with self._lock:
            self._scripts.setdefault(path, deque()).extend(faults)
            self._gates += [fault for fault in faults if isinstance(fault, Gate)]

    def always(self, path: str, fault: Fault | None) -> None:
        """Answer every request for a path with this, once its script is used up; None ends it."""
        with self._lock:
            if fault is None:
                self._standing.pop(path, None)
            else:
                self._standing[path] = fault
                self._gates += [fault] if isinstance(fault, Gate) else []

    def take(self, request: Request) -> Fault | None:
        """Note a request and return its fault."""
        with self._lock:
            self._requests.append(request)
            script = self._scripts.get(request.path)
            return script.popleft() if script else self._standing.get(request.path)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = True

    def __init__(self, address: tuple[str, int], handler: type[_FaultyHandler], model_server: ModelServer) -> None:
        self.model_server = model_server
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._open_lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._open_lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that left is what some tests want."""

    def close_connections(self) -> None:
        """End the connections that clients keep open, so that their threads end."""
        with self._open_lock:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # Already closed.


class _FaultyHandler(Handler):
    server: _Server

    def do_GET(self) -> None:  # noqa: N802
        self._answer({})

    def do_POST(self) -> None:  # noqa: N802
        self._answer(self.read_body() or {})

    def _answer(self, body: dict[str, Any]) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        fault = self.server.model_server.take(Request(self.path, headers, body))
        if isinstance(fault, Gate) and fault.holds(body):
            fault.hold()
        match fault:
            case Status():
                self._respond_status(fault)
            case Text():
                answer = chat_answer(body, text=fault.text or "", finish=fault.finish)
                if fault.text is None:
                    answer["choices"][0]["message"]["content"] = None
                self.respond(200, answer)
            case Truncated():
                whole = str(chat_answer(body)["choices"][0]["message"]["content"])
                self.respond(200, chat_answer(body, text=whole[: len(whole) // 2], finish="length"))
            case Thinking():
                self.respond(200, _thought_aloud(body, fault.words))
            case Body():
                self._send(fault.content, len(fault.content))
            case Embeddings():
                answer = embeddings_answer(body, self.server.model_server.dimension)
                fault.change(answer)
                self.respond(200, answer)
            case HalfClosed():
                content = json.dumps(chat_answer(body)).encode()
                self._send(content[: len(content) // 2], len(content))
                self.close_connection = True
            case HungUp():
                self.close_connection = True
            case TooLong() if any(len(text.split()) > fault.max_words for text in _texts(body)):
                self._respond_status(Status(400, code=fault.code, param="input" if "input" in body else "messages"))
            case Refusing() if fault.refuses(body):
                self._respond_status(Status(fault.status, code="content_filter" if fault.status < 500 else ""))
            case Quota() if not fault.spend():
                self._respond_status(Status(429))
            case Answering() if fault.word in json.dumps(body.get("messages", ())):
                self.respond(200, chat_answer(body, text=fault.text, finish=fault.finish))
            case Directionless() if self.path == EMBEDDINGS:
                answer = embeddings_answer(body, self.server.model_server.dimension)
                for text, item in zip(body["input"], answer["data"], strict=True):
                    if fault.word in text:
                        item["embedding"] = [fault.number] * len(item["embedding"])
                self.respond(200, answer)
            case _:
                self._respond_by_rule(body)

    def _respond_by_rule(self, body: dict[str, Any]) -> None:
        path = self.path.partition("?")[0]
        if path == CHAT:
            self.respond(200, chat_answer(body))
        elif path == EMBEDDINGS:
            dimension = self.server.model_server.dimension
            self.respond(200, embeddings_answer(body, dimension))
        elif path == MODELS:
            self.respond(200, models_answer())
        else:
            self._respond_status(Status(404, code="not_found"))

    def _respond_status(self, fault: Status) -> None:
        headers = {"retry-after": fault.retry_after, "location": fault.location}
        error = {"code": fault.code or None, "param": fault.param or None, "message": "as scripted"}
        self.respond(fault.status, {"error": error}, {name: value for name, value in headers.items() if value})

    def _send(self, content: bytes, promised: int) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(promised))
        self.end_headers()
        self.wfile.write(content)


def _texts(body: Mapping[str, Any]) -> list[str]:
    return [*body.get("input", ()), *(str(message["content"]) for message in body.get("messages", ()))]


def _thought_aloud(body: dict[str, Any], words: int) -> dict[str, Any]:
    """Return the usual answer behind thinking, as far as the request's limit lets it be said."""
    thinking = "<think>\n" + "hm " * words + "\n</think>\n"
    whole = thinking + str(chat_answer(body)["choices"][0]["message"]["content"])
    said = list(re.finditer(r"\S+", whole))
    allowed = body.get("max_tokens") or body.get("max_completion_tokens") or len(said)
    if len(said) <= allowed:
        return chat_answer(body, text=whole)
    return chat_answer(body, text=whole[: said[allowed - 1].end()], finish="length")


if __name__ == "__main__":
    main()
