"""How a fact stands in its columns, and how filters become conditions on them."""

from __future__ import annotations

import json
from typing import Any

from memory_service.contract.items import FactStatus
from memory_service.contract.scopes import FactKind
from memory_service.domain import lexical
from memory_service.ports.records import FactChange, FactRow, FactSource, ItemFilters
from memory_service.storage.encoding import dump, join_terms, load_strings, micros, moment, moment_or_none
from memory_service.storage.rows.owners import READABLE, readable
from memory_service.storage.statements import Row

SELECT = (
    "SELECT f.row_id, f.owner_id, f.id, f.kind, f.text, f.said_at, f.valid_from, f.valid_to, f.superseded_by, f.key,"
    " f.dedupe_key, f.category, f.tags, f.evidence, f.importance, f.pinned, f.status, f.expires_at, f.attributes,"
    " f.revision, f.created_at, f.updated_at, CASE WHEN f.vector IS NULL THEN 0 ELSE 1 END,"
    f" {READABLE} FROM @facts AS f JOIN @owners AS o ON o.id = f.owner_id"
)
INSERT = (
    "INSERT INTO @facts (owner_id, id, kind, status, key, dedupe_key, text_hash, said_at, valid_from, valid_to,"
    " superseded_by, expires_at, importance, pinned, revision, created_at, updated_at, category, tags, length,"
    " terms, embedding_model, vector, text, evidence, attributes)"
    " VALUES (:owner_id, :id, :kind, :status, :key, :dedupe_key, :text_hash, :said_at, :valid_from, :valid_to,"
    " :superseded_by, :expires_at, :importance, :pinned, :revision, :created_at, :updated_at, :category, :tags,"
    " :length, :terms, :embedding_model, :vector, :text, :evidence, :attributes)"
)
LIVE = "f.status IN ('active', 'pending')"
"""Facts whose key is taken; written as in the partial indexes, so that SQLite uses them."""

_TAGGED = (
    "[[EXISTS (SELECT 1 FROM json_array_elements_text(CAST(f.tags AS JSON)) AS t(value) WHERE t.value = ANY(:tags))"
    "|EXISTS (SELECT 1 FROM json_each(f.tags) AS t WHERE t.value IN (SELECT value FROM json_each(:tags)))]]"
)
_TIMES = frozenset({"said_at", "valid_from", "valid_to", "expires_at"})
_PLAIN = frozenset({"superseded_by", "key", "dedupe_key", "category", "evidence", "importance", "text"})


def fact_row(found: Row, sources: tuple[FactSource, ...]) -> FactRow:
    """Return the fact in the columns of SELECT."""
    return FactRow(
        row_id=found[0],
        id=found[2],
        kind=FactKind(found[3]),
        text=found[4],
        sources=sources,
        said_at=moment(found[5]),
        valid_from=moment(found[6]),
        valid_to=moment_or_none(found[7]),
        superseded_by=found[8],
        key=found[9],
        dedupe_key=found[10],
        category=found[11],
        tags=load_strings(found[12]),
        evidence=found[13],
        importance=found[14],
        pinned=bool(found[15]),
        status=FactStatus(found[16]),
        expires_at=moment_or_none(found[17]),
        attributes={} if found[18] == "{}" else json.loads(found[18]),
        revision=found[19],
        created_at=moment(found[20]),
        updated_at=moment(found[21]),
        has_vector=bool(found[22]),
        owner=readable(found[23:]),
    )


def bare(text: str) -> dict[str, Any]:
    """Return the columns of a fact of which nothing is left but its text: what only its erased origin gave is gone."""
    terms = lexical.terms(lexical.fact_index_text(text))
    return {
        "key": None,
        "dedupe_key": None,
        "category": None,
        "tags": dump([]),
        "evidence": None,
        "importance": None,
        "attributes": dump({}),
        "terms": join_terms(terms),
        "length": len(terms),
    }


def changed(change: FactChange) -> dict[str, Any]:
    """Return the columns that a change sets, without what depends on the store.

    Raises:
        ValueError: it names a field that cannot be changed.
    """
    columns: dict[str, Any] = {}
    for name, value in change.fields.items():
        if name in _TIMES:
            columns[name] = None if value is None else micros(value)
        elif name in _PLAIN:
            columns[name] = value
        elif name in {"status", "kind"}:
            columns[name] = (FactStatus if name == "status" else FactKind)(value).value
        elif name == "pinned":
            columns[name] = int(value)
        elif name == "tags":
            columns[name] = dump(list(value))
        elif name == "attributes":
            columns[name] = dump(dict(value))
        else:
            raise ValueError(f"a fact's {name!r} cannot be changed")
    if change.terms is not None:
        columns |= {"terms": join_terms(change.terms), "length": len(change.terms)}
    elif "text" in columns:
        raise ValueError("a fact's new text needs its terms")
    return columns


def conditions(filters: ItemFilters) -> tuple[str, dict[str, Any]]:
    """Return ` AND …` over `@facts AS f` with its parameters: what is valid at the asked time and meets the filters."""
    where: list[str] = []
    parameters: dict[str, Any] = {}
    if filters.as_of is None:
        where.append("f.status = 'active' AND (f.expires_at IS NULL OR f.expires_at > :at)")
        parameters["at"] = micros(filters.now)
    else:
        where.append(
            "f.status IN ('active', 'superseded') AND f.valid_from <= :at AND (f.valid_to IS NULL OR f.valid_to > :at)"
            " AND (f.expires_at IS NULL OR f.expires_at > :at)"
        )
        parameters["at"] = micros(filters.as_of)
    if filters.kinds is not None:
        where.append("f.kind IN [:kinds]")
        parameters["kinds"] = sorted(kind.value for kind in filters.kinds)
    if filters.categories is not None:
        where.append("f.category IN [:categories]")
        parameters["categories"] = sorted(filters.categories)
    if filters.tags is not None:
        where.append(_TAGGED)
        parameters["tags"] = sorted(filters.tags)
    if filters.since is not None:
        where.append("f.said_at >= :since")
        parameters["since"] = micros(filters.since)
    if filters.until is not None:
        where.append("f.said_at <= :until")
        parameters["until"] = micros(filters.until)
    if filters.min_importance is not None:
        where.append("f.importance >= :min_importance")
        parameters["min_importance"] = filters.min_importance
    return "".join(f" AND {condition}" for condition in where), parameters
