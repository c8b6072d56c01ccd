"""The published pattern of every id; checked before anything else is done with one.

Nothing that matches a pattern here acts as a wildcard anywhere: ids are compared literally.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
AGENT_PATTERN = rf"^kaos://agent/{_LABEL}/{_LABEL}(\.{_LABEL})*$"
SESSION_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
KEY_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}$"
WORKSPACE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
TURN_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
IDEMPOTENCY_KEY_PATTERN = r"^[\x21-\x7e]{1,200}$"
UUID_PATTERN = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"

LOCAL_AGENT = "kaos://agent/local/default"
"""Who a caller of the mode `none` is unless it names itself."""

LOCAL_ISSUER = "local"
"""The issuer of principals in the modes `none` and `static`."""

AgentIdentity = Annotated[str, StringConstraints(pattern=AGENT_PATTERN, max_length=331)]
SessionId = Annotated[str, StringConstraints(pattern=SESSION_PATTERN)]
FactKey = Annotated[str, StringConstraints(pattern=KEY_PATTERN)]
Workspace = Annotated[str, StringConstraints(pattern=WORKSPACE_PATTERN)]
TurnId = Annotated[str, StringConstraints(pattern=TURN_ID_PATTERN)]
Id = Annotated[str, StringConstraints(pattern=UUID_PATTERN)]
"""The id of a fact, a job, a receipt or a proposal: a lower-case UUID."""
