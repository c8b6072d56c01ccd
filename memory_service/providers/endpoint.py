"""One OpenAI-compatible endpoint: timeouts, retries, keys and bounds. What the JSON means is left to its callers.

Nothing here logs or raises what was sent or answered; of an error's body only its code is read.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import os
import random
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import certifi
from pydantic_core import from_json

from memory_service.contract.config import ChatConfig, EmbeddingConfig
from memory_service.contract.endpoints import request_url
from memory_service.contract.health import Reason
from memory_service.errors import ModelRefused, ModelUnavailable
from memory_service.ports.models import Clock
from memory_service.providers.health import ProviderState, StateRecorder

MAX_CONNECTIONS = 32
"""Connections to one endpoint. More callers wait for one inside their own timeout."""
KEPT_SECONDS = 4.0
"""How long an idle connection is kept: many servers close theirs after 5 s, and a request must not meet that moment."""
MAX_ERROR_BYTES = 64 * 1024
"""Bytes of an error's body that are read for its code."""
RETRIED_STATUSES = frozenset({429, 502, 503})
BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 8.0
MAX_RETRY_AFTER_SECONDS = 20.0
"""A longer `Retry-After` is not waited for here: the caller's job comes back then, and nobody asks sooner."""
MAX_HELD_OFF_SECONDS = 3600.0
"""For so long an endpoint is not asked at all where its `Retry-After` says so; a longer one is not believed."""

_CODE = re.compile(r"[A-Za-z_.]{1,64}")


@dataclass(frozen=True)
class Retrying:
    """How repeats are spaced; tests replace the sleep and the randomness."""

    max_retries: int
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    uniform: Callable[[float, float], float] = field(default=random.SystemRandom().uniform)

    def backoff(self, attempt: int) -> float:
        """Return the seconds before repeat number `attempt` (from 0): doubled each time, half of it random."""
        full = min(MAX_BACKOFF_SECONDS, BACKOFF_SECONDS * 2.0 ** min(attempt, 16))
        return self.uniform(full / 2, full)


class Refused(Exception):
    """The endpoint answered, and not with what was asked for: another request may do. `code` and `param` as it says."""

    def __init__(self, status: int, code: str = "", param: str = "", *, problem: str | None = None) -> None:
        super().__init__(problem or f"answered {status}" + (f" ({code})" if code else ""))
        self.status = status
        self.code = code
        self.param = param

    @property
    def may_be_about_the_text(self) -> bool:
        """Whether it may come from what was sent: its length, what a filter or a fault of the server makes of it."""
        return self.status in (400, 413, 422) or self.may_pass

    @property
    def may_pass(self) -> bool:
        """Whether the same request may do a moment later: the server's own fault, not a verdict."""
        return self.status >= 500 or self.status < 300


class ApiKey:
    """An API key in a file that may change at any time; no file means no key."""

    def __init__(self, path: str | None) -> None:
        self._path = Path(path) if path else None
        self._stamp: tuple[int, int, int] | None = None
        self._key = ""

    def read(self) -> str | None:
        """Return the key as it is now; None if none is configured.

        Raises:
            ModelUnavailable: the file is missing, empty or not a key (reason SecretMissing).
        """
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if stamp != self._stamp:
                self._key = self._path.read_text("utf-8").strip()
                self._stamp = stamp
        except (OSError, UnicodeDecodeError) as error:
            raise self._missing("cannot be read") from error
        if not self._key:
            raise self._missing("is empty")
        if not self._key.isascii() or not self._key.isprintable():
            raise self._missing("holds something that no header can carry")
        return self._key

    def _missing(self, what: str) -> ModelUnavailable:
        self._stamp = None
        return ModelUnavailable(f"the API key file {str(self._path)!r} {what}", reason=Reason.SECRET_MISSING)


@dataclass(frozen=True)
class _HeldOff:
    """An endpoint asked not to be asked `until` then, by answering `status` to a caller with this key."""

    until: datetime
    status: int
    key: str | None


class Endpoint:
    """Sends JSON to one base URL and returns the JSON that it answers.

    Redirects are not followed and the environment's proxies are not used. Each attempt has `timeout_seconds` in all,
    from connecting to the answer's last byte.
    """

    def __init__(
        self,
        name: str,
        config: ChatConfig | EmbeddingConfig,
        *,
        unavailable: Reason,
        retrying: Retrying | None,
        clock: Clock,
    ) -> None:
        if config.url is None:
            raise ValueError(f"the {name} needs `url`")
        self.name = name
        self._url = config.url
        self._timeout_seconds = config.timeout_seconds
        self._unavailable = unavailable
        self._retrying = retrying or Retrying(config.max_retries)
        self._clock = clock
        self._key = ApiKey(config.api_key_file)
        self._recorder = StateRecorder(clock)
        self._headers = {name.lower(): value for name, value in config.headers.items()}
        self._session: aiohttp.ClientSession | None = None
        self._held_off: _HeldOff | None = None

    @property
    def state(self) -> ProviderState:
        """How the last call went. Whether the key is there is seen without a call: nobody may call for a long time."""
        is_missed = self._recorder.state.reason is Reason.SECRET_MISSING
        try:
            self._key.read()
        except ModelUnavailable as error:
            if not is_missed:
                self._recorder.failed(Reason.SECRET_MISSING, error.detail)
        else:
            if is_missed:
                self._recorder.forget()
        return self._recorder.state

    def succeeded(self) -> None:
        """Record that the answer was what was asked for."""
        self._recorder.succeeded()

    def failure(
        self, message: str, *, reason: Reason | None = None, retry_after: float | None = None
    ) -> ModelUnavailable:
        """Record a failure and return the exception to raise."""
        why = reason or self._unavailable
        self._recorder.failed(why, message)
        return ModelUnavailable(f"{self.name}: {message}", reason=why, retry_after=retry_after or 1.0)

    def refusal(self, message: str) -> ModelRefused:
        """Return the exception to raise where the endpoint is well and refuses one text; recorded as an answer."""
        self._recorder.succeeded()
        return ModelRefused(f"{self.name}: {message}", reason=self._unavailable)

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def get(self, path: str, *, max_bytes: int) -> Any:
        """As `post`, without a body."""
        return await self._request("GET", path, None, max_bytes)

    async def post(self, path: str, body: Mapping[str, Any], *, max_bytes: int, repeats: bool = True) -> Any:
        """Return the answer's JSON, of at most `max_bytes`.

        Failures to connect, lost connections and 429, 502 and 503 are repeated, after what `Retry-After` says or a
        jittered backoff; a timeout is not, and nothing is without `repeats`.

        Raises:
            ModelUnavailable: no answer that can be used; recorded.
            Refused: this request will not do, though another may; not recorded.
        """
        return await self._request("POST", path, json.dumps(body).encode(), max_bytes, repeats=repeats)

    async def _request(
        self, method: str, path: str, body: bytes | None, max_bytes: int, *, repeats: bool = True
    ) -> Any:
        self._ask_no_sooner()
        max_retries = self._retrying.max_retries if repeats else 0
        attempt = 0
        while True:
            wait: float | None = None
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    status, headers, content = await self._attempt(method, path, body, max_bytes)
            except TimeoutError as error:
                raise self.failure(f"no whole answer within {self._timeout_seconds:g} s") from error
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, aiohttp.ClientResponseError) as error:
                if attempt >= max_retries:
                    raise self.failure(f"the connection failed ({type(error).__name__})") from error
            except (aiohttp.ClientError, ValueError) as error:
                raise self.failure(f"the request failed ({type(error).__name__})") from error
            else:
                if status not in RETRIED_STATUSES:
                    return self._answer(status, content)
                wait = _retry_after(headers.get("retry-after"), self._clock.now())
                too_long = wait is not None and wait > MAX_RETRY_AFTER_SECONDS
                if wait is not None and too_long:
                    until = self._clock.now() + timedelta(seconds=min(wait, MAX_HELD_OFF_SECONDS))
                    self._held_off = _HeldOff(until, status, self._key.read())
                if attempt >= max_retries or too_long:
                    if wait is None and status != 429:
                        return self._answer(status, content)
                    raise self.failure(f"answered {status}", retry_after=wait)
            # Never sooner than asked for, and not all callers at once.
            backoff = self._retrying.backoff(attempt)
            await self._retrying.sleep(backoff if wait is None else wait + backoff / 2)
            attempt += 1

    def _ask_no_sooner(self) -> None:
        """Raise as the endpoint's last answer did, while it asked not to be asked; another key is another caller."""
        held = self._held_off
        if held is None:
            return
        left = (held.until - self._clock.now()).total_seconds()
        try:
            is_same_caller = self._key.read() == held.key
        except ModelUnavailable:
            is_same_caller = False  # told as what it is by the attempt
        # Longer than it was ever: the clock was set back.
        if is_same_caller and 0 < left <= MAX_HELD_OFF_SECONDS:
            raise self.failure(f"answered {held.status} and asked not to be asked again yet", retry_after=left)
        self._held_off = None

    async def _attempt(
        self, method: str, path: str, body: bytes | None, max_bytes: int
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"accept": "application/json", "accept-encoding": "identity", **self._headers}
        if body is not None:
            headers["content-type"] = "application/json"
        try:
            key = self._key.read()
        except ModelUnavailable as error:
            raise self.failure(error.detail, reason=Reason.SECRET_MISSING) from error
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        session = self._connected()
        url = request_url(self._url, path)
        async with session.request(method, url, data=body, headers=headers, allow_redirects=False) as response:
            is_success = 200 <= response.status < 300
            limit = max_bytes if is_success else MAX_ERROR_BYTES
            content = bytearray()
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > limit:
                    if is_success:
                        raise self.failure(f"the answer is longer than {limit} bytes")
                    break
            return response.status, response.headers, bytes(content)

    def _answer(self, status: int, content: bytes) -> Any:
        if status in (401, 403):
            raise self.failure(f"the key was refused ({status})", reason=Reason.MODEL_UNAUTHORIZED)
        if 200 <= status < 300:
            try:
                return _parsed(content)
            except (ValueError, RecursionError) as error:
                raise self.failure("the answer is not JSON") from error
        if 300 <= status < 400:
            raise self.failure(f"answered {status}; redirects are not followed, configure the final URL")
        if status >= 400:
            raise Refused(status, *_error_code(content))
        raise self.failure(f"answered {status}")

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            trusted = (
                ssl.create_default_context(cafile=certifi.where()) if urlsplit(self._url).scheme == "https" else True
            )
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=KEPT_SECONDS, ssl=trusted),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # each attempt is timed as a whole
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._session


def _retry_after(value: str | None, now: datetime) -> float | None:
    """Return the seconds that a `Retry-After` header asks for; None if it does not say."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            moment = email.utils.parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        seconds = ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _parsed(content: bytes) -> Any:
    """Return the JSON in an answer, by a parser that reads vectors nine times as fast as json's."""
    try:
        return from_json(content, cache_strings="keys")  # what was said is not kept
    except ValueError:
        return json.loads(content)  # takes half of a surrogate pair as well, where an answer was cut inside a character


def _error_code(content: bytes) -> tuple[str, str]:
    """Return an error's code and the parameter that it is about; anything that does not look like one is left out."""
    try:
        parsed = _parsed(content)
    except (ValueError, RecursionError):
        return "", ""
    error = parsed.get("error") if isinstance(parsed, dict) else None
    if not isinstance(error, dict):
        return "", ""
    found = [error.get("code") or error.get("type"), error.get("param")]
    code, param = (value if isinstance(value, str) and _CODE.fullmatch(value) else "" for value in found)
    return code, param
