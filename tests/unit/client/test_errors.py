"""The exceptions themselves."""

from __future__ import annotations

import pickle

import pytest

from memory_service.client import errors
from memory_service.client.errors import MemoryClientError, Refuser, ServiceUnavailable, UnavailableReason
from memory_service.client.transport import BrokenOff

RAISED = [
    errors.unreported(404, "no such site"),
    errors.reused_key(),
    ServiceUnavailable("away", reason=UnavailableReason.TIMEOUT, retry_after=2.0, idempotency_key="k"),
    BrokenOff("cut", reason=UnavailableReason.BAD_ANSWER),
    errors.OutboxFull("full"),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_an_exception_comes_back_from_pickle_as_it_was(error: MemoryClientError) -> None:
    """As `multiprocessing` needs it: an exception that does not come back leaves its pool waiting for ever."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_who_refused_is_known_after_a_pickle() -> None:
    again = pickle.loads(pickle.dumps(errors.unreported(403, "a proxy")))
    assert again.refuser is Refuser.BETWEEN
