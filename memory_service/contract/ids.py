"""The published pattern of every id; checked before anything else is done with one.

Nothing that matches a pattern here acts as a wildcard anywhere: ids are compared literally.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

from memory_service.contract.limits import MAX_AGENT_CHARS, MAX_ID_CHARS, MAX_KEY_CHARS

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
AGENT_PATTERN = rf"^kaos://agent/{_LABEL}/{_LABEL}(\.{_LABEL})*$"
SESSION_PATTERN = rf"^[A-Za-z0-9][A-Za-z0-9._:-]{{0,{MAX_ID_CHARS - 1}}}$"
KEY_PATTERN = rf"^[A-Za-z0-9][A-Za-z0-9._:/-]{{0,{MAX_KEY_CHARS - 1}}}$"
WORKSPACE_PATTERN = SESSION_PATTERN
TURN_ID_PATTERN = SESSION_PATTERN
IDEMPOTENCY_KEY_PATTERN = rf"^[\x21-\x7e]{{1,{MAX_KEY_CHARS}}}$"
UUID_PATTERN = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"

LOCAL_AGENT = "kaos://agent/local/default"
"""Who a caller of the mode `none` is unless it names itself."""

LOCAL_ISSUER = "local"
"""The issuer of principals in the modes `none` and `static`."""

AgentIdentity = Annotated[str, StringConstraints(pattern=AGENT_PATTERN, max_length=MAX_AGENT_CHARS)]
SessionId = Annotated[str, StringConstraints(pattern=SESSION_PATTERN, max_length=MAX_ID_CHARS)]
FactKey = Annotated[str, StringConstraints(pattern=KEY_PATTERN, max_length=MAX_KEY_CHARS)]
Workspace = Annotated[str, StringConstraints(pattern=WORKSPACE_PATTERN, max_length=MAX_ID_CHARS)]
TurnId = Annotated[str, StringConstraints(pattern=TURN_ID_PATTERN, max_length=MAX_ID_CHARS)]
Id = Annotated[str, StringConstraints(pattern=UUID_PATTERN)]
"""The id of a fact, a job, a receipt or a proposal: a lower-case UUID."""
