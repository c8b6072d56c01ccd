"""Base URLs of model endpoints: which are taken, and what is asked for below them."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

_EXAMPLE = "such as `http://models.internal:8000/v1`"
_UNSENDABLE = re.compile(r"[\x00-\x20\x7f]")
_REQUEST = re.compile(r"/(chat/completions|embeddings)/*$")


def _is_sound(url: str) -> str:
    try:
        parts = urlsplit(url)
        has_host = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
    if not has_host or _UNSENDABLE.search(url):
        raise ValueError(f"give an `http://` or `https://` URL with a host, {_EXAMPLE}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("leave name and password out of the URL: a key's place is `apiKeyFile`, a Secret in a cluster")
    if "#" in url:
        raise ValueError("leave out `#` and what stands behind it: it is never sent")
    if request := _REQUEST.search(parts.path):
        raise ValueError(f"leave `/{request[1]}` out of the URL: it is put behind the path that stands before it")
    return url


EndpointUrl = Annotated[str, AfterValidator(_is_sound)]
"""Where a model endpoint is; what opens it stands in a file. A query is kept on every request."""


def request_url(base: str, path: str) -> str:
    """Return the URL of a path such as `chat/completions` below a base URL; `/v1` is added to a bare host."""
    parts = urlsplit(base)
    return parts._replace(path=f"{parts.path.rstrip('/') or '/v1'}/{path}").geturl()
