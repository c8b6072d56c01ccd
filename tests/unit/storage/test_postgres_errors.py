"""What Postgres errors mean to a caller."""

from __future__ import annotations

import psycopg
import pytest

from memory_service.api.problems import problem_of
from memory_service.storage.postgres_errors import from_postgres


@pytest.mark.parametrize("error", [psycopg.errors.DeadlockDetected(), psycopg.errors.SerializationFailure()])
def test_a_write_that_lost_every_race_is_an_outage_and_no_fault_of_its_request(error: psycopg.Error) -> None:
    answer = problem_of(from_postgres(error))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
