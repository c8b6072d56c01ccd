"""ModelAPI: an OpenAI-compatible endpoint that stores refer to by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import Field

from memory_operator.crd.base import Identity, ObjectKey, identity, parse_spec
from memory_operator.crd.memory_store import SecretKeyRef
from memory_operator.errors import InvalidSpec, Problem
from memory_service.contract.base import FileModel
from memory_service.contract.endpoints import EndpointUrl, request_url

_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
"""What HTTP takes as the value of a header."""


class Probe(StrEnum):
    """How the operator finds out whether it answers."""

    MODELS = "models"
    NONE = "none"


class ModelApiSpec(FileModel):
    """What is asked for."""

    base_url: EndpointUrl = Field(alias="baseURL", min_length=1, max_length=2048)
    api_key_secret_ref: SecretKeyRef | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    timeout_seconds: int = Field(default=60, ge=1, le=600)
    probe: Probe = Probe.MODELS


@dataclass(frozen=True)
class ModelApi:
    """A ModelAPI whose spec keeps all rules."""

    id: Identity
    spec: ModelApiSpec
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> ObjectKey:
        """Its namespace and name."""
        return self.id.key

    @property
    def models_url(self) -> str:
        """What a probe asks for."""
        return request_url(self.spec.base_url, "models")


def parse(body: Mapping[str, Any]) -> ModelApi:
    """Return the typed endpoint.

    Raises:
        InvalidSpec: a rule is broken.
    """
    spec = parse_spec(ModelApiSpec, body)
    unsendable = [name for name, value in spec.headers.items() if not _VALUE.fullmatch(value)]
    if unsendable:
        message = "a value must be visible characters, spaces and tabs on one line"
        raise InvalidSpec([Problem(f"spec.headers.{name}", message) for name in sorted(unsendable)])
    return ModelApi(identity(body), spec, body.get("status") or {})
