"""Generations: one opaque string over the owners that a call builds on, which is stale once one of them was erased."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache

from memory_service.domain.owners import Owner
from memory_service.errors import Erased, FieldProblem, InvalidRequest

_VERSION = b"memplane generation 1"
_HASH_BYTES = 16
_NUMBER_BYTES = 8
_CHECK_BYTES = 8


def encode(numbers: Mapping[Owner, int]) -> str:
    """Return the opaque string that answers carry, over the owners of `scopes.generation_owners` with their numbers."""
    return _encoded(frozenset(numbers.items()))


@lru_cache(maxsize=4_096)
def _encoded(numbers: frozenset[tuple[Owner, int]]) -> str:
    """Return the string; it is the same until something is erased, and every answer carries it."""
    entries = b"".join(sorted(owner_hash(owner) + number.to_bytes(_NUMBER_BYTES, "big") for owner, number in numbers))
    return _to_text(entries + _check_bytes(entries))


def check(given: str, numbers: Mapping[Owner, int], home: Owner) -> None:
    """Raise unless nothing that `given` knows of was erased since.

    Only owners that are named on both sides are compared: a recall without a session knows nothing of the session.
    `home` is `scopes.home_owner(caller)`: a string that does not name it was given to somebody else. One that is ahead
    of the store was given before a backup was restored: what it builds on need not be there any more.

    Raises:
        Erased: an owner moved on since the string was given, or went back.
        InvalidRequest: the string was not made by this store for this caller.
    """
    known = _decoded(given)
    if owner_hash(home) not in known:
        raise _foreign()
    for owner, number in numbers.items():
        then = known.get(owner_hash(owner))
        if then is None or then == number:
            continue
        went = "was erased meanwhile" if then < number else "is of a later state than the one that was restored"
        raise Erased(
            f"what this call builds on {went} (scope {owner.scope.value!r}); "
            "nothing was stored; do not send it again, and go on from a new recall"
        )


def vouched(given: str, numbers: Mapping[Owner, int], home: Owner) -> frozenset[Owner]:
    """Return the owners of which `given` says that nothing was erased since; `home` as in `check`.

    A number that is ahead of the store, where a backup was restored, says nothing of its owner.

    Raises:
        InvalidRequest: the string was not made by this store for this caller.
    """
    known = _decoded(given)
    if owner_hash(home) not in known:
        raise _foreign()
    return frozenset(owner for owner, number in numbers.items() if known.get(owner_hash(owner)) == number)


def check_queued(queued_seconds: float, now: datetime, erased_at: Iterable[datetime | None]) -> None:
    """Raise unless the turns were said after the last erasure of every owner of `scopes.generation_owners`.

    An erasure in the same instant wins: what was said then is taken as erased.

    Raises:
        Erased: the turns had been queued when one of the owners was erased.
    """
    waited = timedelta(seconds=queued_seconds)
    for moment in erased_at:
        if moment is not None and now - moment <= waited:
            raise Erased(
                f"these turns were queued {queued_seconds:g} s ago and their owner was erased after that; "
                "nothing was stored; do not send them again"
            )


def owner_hash(owner: Owner) -> bytes:
    """Return 16 bytes that stand for one owner and no other."""
    digest = hashlib.sha256()
    for part in (owner.scope.value, owner.agent, owner.principal, owner.session, owner.workspace):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()[:_HASH_BYTES]


def _decoded(text: str) -> dict[bytes, int]:
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError, ValueError) as error:
        raise _foreign() from error
    if _to_text(raw) != text:
        raise _foreign()
    entries, check = raw[:-_CHECK_BYTES], raw[-_CHECK_BYTES:]
    size = _HASH_BYTES + _NUMBER_BYTES
    if len(raw) < _CHECK_BYTES or len(entries) % size or _check_bytes(entries) != check:
        raise _foreign()
    return {
        entries[at : at + _HASH_BYTES]: int.from_bytes(entries[at + _HASH_BYTES : at + size], "big")
        for at in range(0, len(entries), size)
    }


def _to_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _check_bytes(entries: bytes) -> bytes:
    return hashlib.sha256(_VERSION + entries).digest()[:_CHECK_BYTES]


def _foreign() -> InvalidRequest:
    return InvalidRequest(
        "`generation` was not given to this caller by this store; send it as it came in an answer, or leave it out",
        [FieldProblem("generation", "the string of an earlier answer, unchanged", None)],
    )
