"""Who calls: the verified identity of a request and the policy that its binding gives it.

`identity` is the only maker of a Caller; everything else reads it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum

from memory_service.contract.bindings import BindingPolicy
from memory_service.contract.scopes import Scope


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

    @classmethod
    def parse(cls, display: str) -> Principal:
        """Return the principal that is shown as `display`; an issuer never holds a `#`, so the first one parts them.

        Raises:
            ValueError: one of the two parts is empty.
        """
        issuer, mark, subject = display.partition("#")
        if not (issuer and mark and subject):
            raise ValueError("a principal is shown as `<issuer>#<subject>`, for example `local#anna`")
        return cls(issuer, subject)


@dataclass(frozen=True)
class Caller:
    """A verified caller. `agent` is empty for operators and admins; `subject` names the caller in audits.

    `write_scopes` is set only where more may be written than the binding's own scope and `session` (the mode `none`).
    `pod` is the uid of the pod whose token was shown, for audits; empty outside of a cluster.
    """

    kind: CallerKind
    subject: str
    agent: str = ""
    principal: Principal | None = None
    policy: BindingPolicy = field(default_factory=BindingPolicy)
    write_scopes: tuple[Scope, ...] = ()
    pod: str = ""

    @property
    def readable(self) -> tuple[Scope, ...]:
        """The scopes that a read may use, never empty."""
        return self.policy.readable

    @property
    def writable(self) -> tuple[Scope, ...]:
        """The scopes that a body of remember and forget may name; the first one is the default."""
        return self.write_scopes or tuple(dict.fromkeys((self.policy.scope, Scope.SESSION)))

    @property
    def is_bound(self) -> bool:
        """Whether a binding says what this caller reads; in the mode `none` nobody chose the scopes."""
        return not self.write_scopes

    @property
    def principal_hash(self) -> str:
        """The principal's stored form, or an empty string."""
        return self.principal.hash if self.principal else ""
