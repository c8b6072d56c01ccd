"""What the three kinds share: reading an object, and turning what is wrong into field paths without values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple, Self, TypeVar

from pydantic import Field, StringConstraints, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from memory_operator import names
from memory_operator.errors import InvalidSpec, Problem
from memory_service.contract.base import FileModel

JsonObject = dict[str, Any]
"""A Kubernetes object or a part of one, whose shape Kubernetes owns."""

DnsLabel = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
DnsName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
ObjectName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,50}[a-z0-9])?$")]
Key = Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]{1,253}$")]
SERVICE_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
"""Of our own objects that a Service is named after; a digit in front is for Kubernetes from 1.36 on."""
Quantity = Annotated[str | int, Field(union_mode="left_to_right")]

Spec = TypeVar("Spec", bound=FileModel)


class ObjectKey(NamedTuple):
    """One object of a kind that is known from the context."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Identity:
    """Which object this is: name, UID, and how new its spec is."""

    kind: str
    namespace: str
    name: str
    uid: str
    generation: int
    created_at: datetime
    version: str = ""
    """Its resourceVersion: a status that was derived from an older one is refused."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> ObjectKey:
        """Its namespace and name."""
        return ObjectKey(self.namespace, self.name)


def identity(body: Mapping[str, Any]) -> Identity:
    """Return which of our objects this is."""
    meta = body["metadata"]
    return Identity(
        kind=body["kind"],
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        generation=meta.get("generation", 0),
        created_at=datetime.fromisoformat(meta["creationTimestamp"].replace("Z", "+00:00")),
        version=meta.get("resourceVersion", ""),
        labels=dict(meta.get("labels") or {}),
        annotations=dict(meta.get("annotations") or {}),
    )


def field_path(location: Sequence[int | str]) -> str:
    """Return `spec.a[0].b` for a location inside of a spec."""
    path = "spec"
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{to_camel(part) if '_' in part else part}"
    return path


def parse_spec(model: type[Spec], body: Mapping[str, Any]) -> Spec:
    """Return the typed spec of an object.

    Raises:
        InvalidSpec: with the path of each wrong field, and never its value.
    """
    problems = []
    if len(body["metadata"]["name"]) > names.MAX_NAME_LENGTH:
        problems.append(Problem("metadata.name", f"must be no longer than {names.MAX_NAME_LENGTH} characters"))
    try:
        spec = model.model_validate(body.get("spec") or {})
    except ValidationError as error:
        problems += [
            Problem(field_path(item["loc"]), item["msg"].removeprefix("Value error, "))
            for item in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise InvalidSpec(problems) from None
    if problems:
        raise InvalidSpec(problems)
    return spec


class LabelSelectorRequirement(FileModel):
    """One requirement of a label selector."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_values_if_it_compares_them(self) -> Self:
        if (self.operator in ("In", "NotIn")) != bool(self.values):
            raise ValueError("values are expected for In and NotIn, and none for Exists and DoesNotExist")
        return self

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels meet it."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case _:
                return self.key not in labels


class LabelSelector(FileModel):
    """A label selector, as Kubernetes has it; an empty one matches everything."""

    match_labels: dict[str, str] = Field(default_factory=dict)
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels meet all of it."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )

    def manifest(self) -> JsonObject:
        """It as Kubernetes writes it."""
        return self.model_dump(by_alias=True, exclude_defaults=True, mode="json")
