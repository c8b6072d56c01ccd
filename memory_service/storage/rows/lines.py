"""The lines of an export: how each kind of row is read page by page, written as JSON, and read back.

Times are microseconds since 1970 UTC, vectors base64 of little-endian float32 with the name of their model.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from memory_service.contract.items import FactStatus
from memory_service.contract.scopes import FactKind, Scope
from memory_service.contract.turns import Role
from memory_service.domain import lexical
from memory_service.domain.owners import Owner
from memory_service.errors import FieldProblem, InvalidRequest
from memory_service.ports.records import ROLES, FactSource, Vector
from memory_service.storage.encoding import dump, dump_parts, join_terms, moment, vector_bytes, vector_from_bytes
from memory_service.storage.statements import Link, Row

_LAST_ROW = 2**63 - 1
KEYED = re.compile(r"[0-9a-f]{64}")
"""A hash under a store's own key."""
SHORTEST = 1e-12
"""Vectors shorter than this have no direction."""
UNIT_LENGTH_ERROR = 1e-3
"""How far from 1 a unit vector's length may be by rounding; such a vector is kept as it is."""
Place = str | int
"""Where a page ended: the last row's number, a principal's hash, or a tombstone's key."""


@dataclass(frozen=True)
class Line:
    """One line and its place in its stage."""

    place: Place
    body: Mapping[str, Any]

    @property
    def chars(self) -> int:
        """About how many characters the line has."""
        return _chars(self.body)


def _chars(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_chars, value.values()))
    return sum(map(_chars, value)) if isinstance(value, list) else 0


def cursor(stage: int, place: Place) -> str:
    """Return the cursor after a line."""
    return json.dumps([stage, place])


def read_cursor(text: str | None) -> tuple[int, Place | None]:
    """Return what `cursor` was given; the beginning for None.

    Raises:
        InvalidRequest: it is not a cursor of an export.
    """
    if text is None:
        return 0, None
    try:
        stage, place = json.loads(text)
        if type(stage) is not int or not 0 <= stage < len(STAGES):
            raise ValueError(stage)
        if type(place) is not (str if STAGES[stage] in (_principals, _tombstones) else int):
            raise ValueError(place)
        if isinstance(place, int) and not 0 <= place <= _LAST_ROW:
            raise ValueError(place)
        if isinstance(place, str):
            _checked(place)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(
            "`cursor` is not one of an export; start again without it",
            [FieldProblem("cursor", "the `next_cursor` of an earlier answer", None)],
        ) from error
    return stage, place


def _principals(link: Link, after: Place | None, limit: int) -> list[Line]:
    found = link.rows(
        "SELECT p.hash, p.display FROM @principals AS p WHERE p.hash > :after ORDER BY p.hash LIMIT :limit",
        {"after": after or "", "limit": limit},
    )
    at = link.now_micros()
    return [Line(row[0], {"type": "principal", "hash": row[0], "display": row[1], "created_at": at}) for row in found]


def _erased(link: Link, after: Place | None, limit: int) -> list[Line]:
    """Read when whom of this store was erased: by hashes alone, which tell those who know them, and nobody else."""
    found = link.rows(
        "SELECT o.id, o.key, o.erased_at FROM @owners AS o WHERE o.id > :after AND o.erased_at IS NOT NULL"
        " ORDER BY o.id LIMIT :limit",
        {"after": after or 0, "limit": limit},
    )
    aliases = _aliases(link, found)
    return [
        Line(row[0], {"type": "erased", "hashes": [row[1], *aliases.get(row[0], [])], "created_at": row[2]})
        for row in found
    ]


_SUBJECT_KEYS = ("scope", "agent", "principal", "session")


def _subjects(link: Link, after: Place | None, limit: int) -> list[Line]:
    """Read by which hashes the stores that they came through know whom an erasure can name."""
    found = link.rows(
        f"SELECT o.id, o.key, {', '.join('o.' + name for name in _SUBJECT_KEYS)} FROM @owners AS o"
        " WHERE o.id > :after AND o.workspace = '' AND (o.agent <> '' OR o.principal <> '') ORDER BY o.id LIMIT :limit",
        {"after": after or 0, "limit": limit},
    )
    aliases = _aliases(link, found)
    return [
        Line(
            row[0],
            {
                "type": "subject",
                **dict(zip(_SUBJECT_KEYS, row[2:], strict=True)),
                "hashes": [row[1], *aliases.get(row[0], [])],
            },
        )
        for row in found
    ]


def _aliases(link: Link, owners: Sequence[Row]) -> dict[int, list[str]]:
    """Return the hashes under which other stores know owners, by the owner's number."""
    found: dict[int, list[str]] = {}
    for owner_id, key in link.rows(
        "SELECT owner_id, key FROM @aliases WHERE owner_id IN [:ids] ORDER BY owner_id, key",
        {"ids": [row[0] for row in owners]},
    ):
        found.setdefault(owner_id, []).append(key)
    return found


_SESSION_KEYS = ("agent", "principal", "session", "workspace")
_DIGEST_KEYS = ("version", "upto_seq", "tokens", "created_at", "summary")
_OWNED = "o.agent, o.principal, o.session, o.workspace"
_OF_SESSION = "JOIN @sessions AS s ON s.id = {row}.session_id JOIN @owners AS o ON o.id = s.owner_id"


def _sessions(link: Link, after: Place | None, limit: int) -> list[Line]:
    """Read sessions, each with the digest that its window goes on from: another page may find a later one."""
    names = ("fact_scope", "last_seq", "extracted_seq", "created_at", "last_write_at", "ended_at")
    found = link.rows(
        f"SELECT s.id, {_OWNED}, {', '.join('s.' + name for name in names)},"
        f" {', '.join('d.' + name for name in _DIGEST_KEYS)}"
        " FROM @sessions AS s JOIN @owners AS o ON o.id = s.owner_id LEFT JOIN @digests AS d"
        " ON d.owner_id = s.home_id AND d.session_id = s.id AND d.version = s.digest_version"
        " WHERE s.id > :after ORDER BY s.id LIMIT :limit",
        {"after": after or 0, "limit": limit},
    )
    keys = (*_SESSION_KEYS, *names)
    upto = 1 + len(keys)
    return [
        Line(
            row[0],
            {
                "type": "session",
                **dict(zip(keys, row[1:upto], strict=True)),
                "digest": None if row[upto] is None else dict(zip(_DIGEST_KEYS, row[upto:], strict=True)),
            },
        )
        for row in found
    ]


_TURN_KEYS = (
    "seq", "client_id", "infer", "tokens", "said_at", "created_at", "indexed", "name", "text", "content",
)  # fmt: skip


def _turns(link: Link, after: Place | None, limit: int) -> list[Line]:
    found = link.rows(
        f"SELECT t.id, t.role, t.parts, t.vector, {_OWNED}, {', '.join('t.' + name for name in _TURN_KEYS)}"
        f" FROM @turns AS t {_OF_SESSION.format(row='t')} WHERE t.id > :after ORDER BY t.id LIMIT :limit",
        {"after": after or 0, "limit": limit},
    )
    return [
        Line(
            row[0],
            {
                "type": "turn",
                **dict(zip((*_SESSION_KEYS, *_TURN_KEYS), row[4:], strict=True)),
                "role": ROLES[row[1]].value,
                "parts": None if row[2] is None else json.loads(row[2]),
                **_vector_fields(link, row[3]),
            },
        )
        for row in found
    ]


def _digests(link: Link, after: Place | None, limit: int) -> list[Line]:
    """Read the versions before the newest one, which its session's line has."""
    found = link.rows(
        f"SELECT d.session_id, {_OWNED}, {', '.join('d.' + name for name in _DIGEST_KEYS)}"
        f" FROM @digests AS d {_OF_SESSION.format(row='d')}"
        " WHERE d.session_id IN (SELECT x.id FROM @sessions AS x WHERE x.id > :after AND x.digest_version > 1"
        " AND EXISTS (SELECT 1 FROM @digests AS e WHERE e.owner_id = x.home_id AND e.session_id = x.id"
        " AND e.version < x.digest_version) ORDER BY x.id LIMIT :limit)"
        " AND d.version < s.digest_version ORDER BY d.session_id, d.version",
        {"after": after or 0, "limit": limit},
    )
    keys = (*_SESSION_KEYS, *_DIGEST_KEYS)
    return [Line(row[0], {"type": "digest", **dict(zip(keys, row[1:], strict=True))}) for row in found]


_FACT_KEYS = (
    "id", "kind", "status", "key", "dedupe_key", "said_at", "valid_from", "valid_to", "superseded_by", "expires_at",
    "importance", "pinned", "revision", "created_at", "updated_at", "category", "text", "evidence",
)  # fmt: skip

SOURCES_PER_LINE = 1_000
"""Sources of one line: with the longest ids, and beside the longest history, it fits an import's body."""

HISTORY_KEYS = ("at", "event", "actor", "agent", "principal", "session", "text")


def _facts(link: Link, after: Place | None, limit: int) -> list[Line]:
    """Read facts; one that was said in very many places comes in as many lines, which differ in their sources alone.

    Each of them stands for itself: an import that an erasure keeps from storing the first one stores it by the next.
    """
    found = link.rows(
        "SELECT f.row_id, f.owner_id, f.tags, f.attributes, f.vector, o.scope,"
        f" {_OWNED}, {', '.join('f.' + name for name in _FACT_KEYS)}"
        " FROM @facts AS f JOIN @owners AS o ON o.id = f.owner_id"
        " WHERE f.row_id > :after ORDER BY f.row_id LIMIT :limit",
        {"after": after or 0, "limit": limit},
    )
    place = {"owners": sorted({row[1] for row in found}), "ids": [row[0] for row in found]}
    sources = _by_fact(
        link.rows(
            "SELECT fact_id, agent, principal, session, workspace, seqs FROM @fact_sources"
            " WHERE owner_id IN [:owners] AND fact_id IN [:ids]"
            " ORDER BY fact_id, agent, principal, session, workspace",
            place,
        ),
        lambda row: {**dict(zip(_SESSION_KEYS, row[1:5], strict=True)), "seqs": json.loads(row[5])},
    )
    history = _by_fact(
        link.rows(
            f"SELECT fact_id, {', '.join(HISTORY_KEYS)} FROM @fact_history"
            " WHERE owner_id IN [:owners] AND fact_id IN [:ids] ORDER BY fact_id, id",
            place,
        ),
        lambda row: dict(zip(HISTORY_KEYS, row[1:], strict=True)),
    )
    return [
        Line(
            row[0],
            {
                "type": "fact",
                "scope": row[5],
                **dict(zip((*_SESSION_KEYS, *_FACT_KEYS), row[6:], strict=True)),
                "tags": json.loads(row[2]),
                "attributes": json.loads(row[3]),
                "sources": some,
                "history": history.get(row[0], []),
                **_vector_fields(link, row[4]),
            },
        )
        for row in found
        for some in _portions(sources.get(row[0], []))
    ]


def _portions(sources: list[Any]) -> list[list[Any]]:
    """Return the sources of each of a fact's lines."""
    starts = range(0, max(1, len(sources)), SOURCES_PER_LINE)
    return [sources[start : start + SOURCES_PER_LINE] for start in starts]


def _tombstones(link: Link, after: Place | None, limit: int) -> list[Line]:
    """Read which facts were deleted one by one, whose ids say nothing of them, and whom other stores have erased."""
    found = link.rows(
        "SELECT d.key, d.erased_at FROM @tombstones AS d WHERE d.key > :after ORDER BY d.key LIMIT :limit",
        {"after": after or "", "limit": limit},
    )
    return [
        Line(
            row[0],
            {"type": "erased", "hashes": [row[0]], "created_at": row[1]}
            if KEYED.fullmatch(row[0])
            else {"type": "deleted", "id": row[0], "created_at": row[1]},
        )
        for row in found
    ]


STAGES: Sequence[Callable[[Link, Place | None, int], list[Line]]] = (
    _principals, _erased, _subjects, _sessions, _turns, _digests, _facts, _tombstones, _erased,
)  # fmt: skip
"""What an export reads, in the order that an import can follow.

Erasures come first, so that what was stored after them comes to stay, and again at the end, for those that were
carried out while the export ran: what they took may stand in it.
"""


def subject_mark(line: Mapping[str, Any]) -> Owner:
    """Return the mark of the erasures that a subject's line is about."""
    return Owner(Scope(line["scope"]), *(_text(line, key) for key in _SUBJECT_KEYS[1:]))


def session_owner(line: Mapping[str, Any]) -> Owner:
    """Return the session that a line belongs to."""
    agent, principal, session, workspace = (_text(line, key) for key in _SESSION_KEYS)
    if not agent or not session:
        raise ValueError("a session has an agent and an id")
    return Owner(Scope.SESSION, agent, principal, session, workspace)


def fact_owner(line: Mapping[str, Any]) -> Owner:
    """Return the owner of a fact's line."""
    return Owner(Scope(line["scope"]), *(_text(line, key) for key in _SESSION_KEYS))


def fact_source(line: Mapping[str, Any]) -> FactSource:
    """Return one source of a fact's line."""
    agent, principal, session, workspace = (_text(line, key) for key in _SESSION_KEYS)
    return FactSource(agent, principal, session, workspace, tuple(int(seq) for seq in line["seqs"]))


def session_values(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a session's line, without its owners: its window begins where its digest ends."""
    digest = line["digest"]
    upto_seq = 0 if digest is None else int(digest["upto_seq"])
    return {
        "last_seq": max(int(line["last_seq"]), upto_seq),
        "folded_seq": upto_seq,
        "extracted_seq": int(line["extracted_seq"]),
        "digest_version": 0 if digest is None else int(digest["version"]),
        "fact_scope": Scope(line["fact_scope"]).value,
        "created_at": int(line["created_at"]),
        "last_write_at": int(line["last_write_at"]),
        "ended_at": number(line["ended_at"]),
    }


def digest_values(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a digest's line, without its session."""
    numbers = {name: int(line[name]) for name in ("version", "upto_seq", "tokens", "created_at")}
    return {**numbers, "summary": _text(line, "summary")}


def turn_values(line: Mapping[str, Any], link: Link) -> dict[str, Any]:
    """Return the columns of a turn's line, without its session."""
    vector = _vector(line, link)
    role, said_at = Role(line["role"]), int(line["said_at"])
    name, text = text_or_none(line["name"]), _text(line, "text")
    return {
        "seq": int(line["seq"]),
        "client_id": text_or_none(line["client_id"]),
        "role": ROLES.index(role),
        "infer": int(line["infer"]),
        "tokens": int(line["tokens"]),
        "said_at": said_at,
        "created_at": int(line["created_at"]),
        **_terms(lexical.turn_index_text(name, role, moment(said_at), text)),
        "indexed": int(vector is not None or (line.get("vector") is None and int(line["indexed"]) == 1)),
        "vector": link.vector_in(vector),
        "name": name,
        "text": text,
        "content": text_or_none(line["content"]),
        "parts": dump_parts(line["parts"]),
    }


def fact_values(line: Mapping[str, Any], link: Link) -> dict[str, Any]:
    """Return the columns of a fact's line, without its owner."""
    vector = _vector(line, link)
    text, key, category = _text(line, "text"), text_or_none(line["key"]), text_or_none(line["category"])
    tags = [str(tag) for tag in line["tags"]]
    return {
        "id": _text(line, "id"),
        "kind": FactKind(line["kind"]).value,
        "status": FactStatus(line["status"]).value,
        "key": key,
        "dedupe_key": text_or_none(line["dedupe_key"]),
        "said_at": int(line["said_at"]),
        "valid_from": int(line["valid_from"]),
        "valid_to": number(line["valid_to"]),
        "superseded_by": text_or_none(line["superseded_by"]),
        "expires_at": number(line["expires_at"]),
        "importance": None if line["importance"] is None else float(line["importance"]),
        "pinned": int(line["pinned"]),
        "revision": int(line["revision"]),
        "created_at": int(line["created_at"]),
        "updated_at": int(line["updated_at"]),
        "category": category,
        "tags": dump(tags),
        **_terms(lexical.fact_index_text(text, key=key, category=category, tags=tags)),
        "embedding_model": None if vector is None else link.embedding_model,
        "vector": link.vector_in(vector),
        "text": text,
        "evidence": text_or_none(line["evidence"]),
        "attributes": dump(dict(line["attributes"])),
    }


def history_values(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of one line of a fact's history."""
    return {"at": int(line["at"]), **{key: _text(line, key) for key in HISTORY_KEYS[1:]}}


def number(value: Any) -> int | None:
    """Return a number of a line; None stays None."""
    return None if value is None else int(value)


def text_or_none(value: Any) -> str | None:
    """Return a string of a line; None stays None."""
    return None if value is None else _checked(value)


def _text(line: Mapping[str, Any], key: str) -> str:
    return _checked(line[key])


def _checked(value: Any) -> str:
    if not isinstance(value, str) or "\x00" in value:
        raise ValueError("a text is expected")
    value.encode()
    return value


def _terms(text: str) -> dict[str, Any]:
    """Return the columns of a row's stems, made anew: they are longer than what they come from."""
    terms = lexical.terms(text)
    return {"terms": join_terms(terms), "length": len(terms)}


def _vector_fields(link: Link, stored: Any) -> dict[str, str]:
    vector = link.vector_out(stored)
    if vector is None:
        return {}
    return {"vector": base64.b64encode(vector_bytes(vector)).decode(), "embedding_model": link.embedding_model}


def _vector(line: Mapping[str, Any], link: Link) -> Vector | None:
    """Return a line's vector where this store's model made it, of unit length; None, to be embedded again, otherwise.

    A cosine is a product of what is stored: a longer vector would be nearest to everything.
    """
    if line.get("vector") is None or line.get("embedding_model") != link.embedding_model:
        return None
    vector = vector_from_bytes(base64.b64decode(line["vector"]))
    length = float(np.linalg.norm(vector.astype(np.float64)))
    if length < SHORTEST:
        return None
    if abs(length - 1) <= UNIT_LENGTH_ERROR:
        return vector
    unit: Vector = (vector.astype(np.float64) / length).astype(np.float32)
    return unit


def _by_fact(rows: Sequence[Row], body: Callable[[Row], dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(body(row))
    return found
