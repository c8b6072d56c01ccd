"""Who calls: the verified identity of a request and the policy that its binding gives it.

`identity` is the only maker of a Caller; everything else reads it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from memory_service.contract.bindings import BindingPolicy


class CallerKind(StrEnum):
    """What kind of caller proved itself."""

    AGENT = "agent"
    OPERATOR = "operator"
    ADMIN = "admin"


@dataclass(frozen=True)
class Principal:
    """The user on whose behalf an agent acts: issuer and subject, free text from a verified token."""

    issuer: str
    subject: str

    @property
    def hash(self) -> str:
        """The form that is stored: 64 hex digits over both parts, unambiguous."""
        digest = hashlib.sha256()
        for part in (self.issuer, self.subject):
            data = part.encode()
            digest.update(len(data).to_bytes(8, "big"))
            digest.update(data)
        return digest.hexdigest()

    @property
    def display(self) -> str:
        """The form that is shown: `<issuer>#<subject>`."""
        return f"{self.issuer}#{self.subject}"


@dataclass(frozen=True)
class Caller:
    """A verified caller. `agent` is empty for operators and admins; `subject` names the caller in audits."""

    kind: CallerKind
    subject: str
    agent: str = ""
    principal: Principal | None = None
    policy: BindingPolicy = BindingPolicy()

    @property
    def principal_hash(self) -> str:
        """The principal's stored form, or an empty string."""
        return self.principal.hash if self.principal else ""
