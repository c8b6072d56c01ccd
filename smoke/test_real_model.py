"""Digests and facts by a real language model, which is small enough to answer badly.

What it says is nobody's promise; that there is a digest, that every job ends, that a useless answer is a failure that
is counted, and that no turn is lost, is ours.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from smoke import language_model
from tests.integration.service.processes import memplane

LIMIT_SECONDS = 600.0
SAID = (
    ("user", "Hello! My name is Anna, and I moved from Bergen to Oslo in March to work as a nurse."),
    ("assistant", "Welcome to Oslo, Anna! How do you like your new work?"),
    ("user", "I like it. My dog Rex is less happy, because the flat is small and has no garden."),
    ("assistant", "Perhaps long walks in the park help. Is there one near your flat?"),
    ("user", "Frogner park is ten minutes away. We go there every morning before my shift begins."),
    ("assistant", "That sounds like a good start of the day for both of you."),
    ("user", "In the summer my sister Ingrid visits us for two weeks, and we want to walk in the mountains."),
    ("assistant", "Jotunheimen is beautiful in July. Shall I remember the plan?"),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint's URL."""
    with language_model.running(tmp_path_factory.mktemp("model") / "log") as url:
        yield url


def until(client: httpx.Client, path: str, holds: Any) -> Any:
    """Ask until an answer is as it should become."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not holds(answer := client.get(path).json()):
        assert time.monotonic() < deadline, answer
        time.sleep(0.5)
    return answer


def counted(client: httpx.Client, sample: str) -> float:
    """Return the sum of a metric's samples that match."""
    found = re.findall(rf"^{sample} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return sum(map(float, found))


def test_a_conversation_becomes_a_digest_and_facts_or_a_failure_that_is_counted(model: str, tmp_path: Path) -> None:
    config = {
        "storage": {"dataDir": str(tmp_path / "data")},
        "engine": "native",
        "models": {
            "chat": {
                "url": model,
                "model": "smollm2",
                "contextTokens": language_model.CONTEXT_TOKENS,
                "timeoutSeconds": LIMIT_SECONDS,
            }
        },
        "shortTerm": {"tokenBudget": 100},
        "mediumTerm": {"digestTokens": 128},
        "extraction": {"maxRetries": 0, "minTurns": 1_000},
        "server": {"port": 0},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    with (
        memplane("serve", "--config", str(tmp_path / "config.yaml")) as service,
        httpx.Client(base_url=service.url(), timeout=60) as client,
    ):
        turns = [{"role": role, "content": text} for role, text in SAID]
        written = client.post("/v1/write", json={"session_id": "s1", "turns": turns}).raise_for_status().json()
        job = client.post("/v1/sessions/s1/end", json={}).raise_for_status().json()["jobs"][0]

        detail = until(client, "/v1/sessions/s1", lambda answer: answer["digests"])
        digest = detail["digests"][0]
        assert digest["summary"].strip()
        assert digest["upto_seq"] in written["seqs"]
        shown = client.post("/v1/recall", json={"query": "Where does Anna live?", "session_id": "s1"}).json()
        assert shown["medium_term"]["summary"] == digest["summary"]

        ended = until(client, f"/v1/jobs/{job}", lambda answer: answer["state"] in ("done", "dead"))
        stored = client.get("/v1/facts").json()["items"]
        assert all(fact["text"].strip() for fact in stored)
        if ended["state"] == "dead":
            assert ended["error"]
            assert stored == []
            assert counted(client, r'memplane_jobs_total\{kind="extract",outcome="dead"\}') == 1

        kept = client.get("/v1/sessions/s1/turns").json()["turns"]
        assert [turn["content"] for turn in kept] == [text for _, text in SAID]
        for purpose in ("digest", "extraction"):
            assert counted(client, rf'memplane_model_tokens_total\{{.*purpose="{purpose}".*\}}') > 0, purpose
        assert service.end()[0] == 0
