"""What kubectl says of our kinds reads well, and a wrong manifest is refused with what to write instead."""

from __future__ import annotations

import pytest
import yaml

from e2e.cluster import home
from e2e.cluster.clusters import Namespace
from e2e.installation import agent_memory, local_store, memory_store, wait_for
from tests.packaging.pages import blocks, difference

REFUSED = {
    "a storage type that does not exist": (
        memory_store("wrong", storage={"type": "redis"}),
        'supported values: "local", "external"',
    ),
    "external without a Secret": (memory_store("wrong", storage={"type": "external"}), "connectionSecretRef"),
    "two replicas of a local store": (local_store("wrong", replicas=2), "local"),
    "a misspelt field": (local_store("wrong", replica=1), 'unknown field "spec.replica"'),
    "a field that comes with later work": (local_store("wrong", backup={"schedule": "@daily"}), "backup"),
    "a name that is too long": (local_store("x" * 53), "52 characters"),
    "remote without a store": (agent_memory("wrong", None, type="remote"), "memoryStore"),
    "tools without a store": (agent_memory("wrong", None, tools="all"), "memoryStore"),
    "a template and a workload": (
        agent_memory(
            "wrong",
            agent={
                "template": {"spec": {"containers": [{"name": "a", "image": "b"}]}},
                "workloadRef": {"kind": "Deployment", "name": "a"},
            },
        ),
        "template",
    ),
}


@pytest.fixture(scope="module")
def ready(team: Namespace) -> Namespace:
    return team


def columns(text: str) -> list[str]:
    return text.splitlines()[0].split()


def shown() -> list[tuple[str, str]]:
    """The commands of the page about kubectl, each with what it says that they print."""
    found = blocks(home.REPOSITORY / "docs" / "reference" / "kubectl.md")
    commands = [(at, block.body.strip()) for at, block in enumerate(found) if block.language == "sh"]
    assert all(found[at + 1].language == "text" for at, _ in commands)
    return [(command.removeprefix("kubectl "), found[at + 1].body) for at, command in commands]


@pytest.mark.parametrize(("command", "expected"), shown(), ids=[command for command, _ in shown()])
def test_kubectl_prints_what_the_page_shows(ready: Namespace, command: str, expected: str) -> None:
    # The state of the page is one in which nothing has happened for a while.
    said = ""

    def is_as_shown() -> bool:
        nonlocal said
        said = ready.kubectl(*command.split())
        return difference(said, expected) is None

    ready.cluster.wait_until(
        f"{command!r} as shown", is_as_shown, seconds=30, explain=lambda: f"{difference(said, expected)}\nin\n{said}"
    )


def test_get_memplane_lists_every_kind(ready: Namespace) -> None:
    said = ready.kubectl("get", "memplane")
    assert "memorystore.memplane.dev/team" in said
    assert "agentmemory.memplane.dev/assistant" in said


def test_get_shows_what_matters_and_wide_shows_more(ready: Namespace) -> None:
    assert columns(ready.kubectl("get", "memstore")) == ["NAME", "TYPE", "READY", "REPLICAS", "FACTS", "AGE"]
    wide = ready.kubectl("get", "memstore", "team", "-o", "wide")
    assert {"ENDPOINT", "QUEUE", "EMBEDDING"} <= set(columns(wide))
    row = wide.splitlines()[1].split()
    assert row[:4] == ["team", "local", "True", "1"]
    assert f"http://team-memory.{ready.name}.svc.cluster.local:8800" in row
    agents = ready.kubectl("get", "agentmem")
    assert columns(agents)[:5] == ["NAME", "STORE", "SCOPE", "READY", "DEGRADED"]
    assert agents.splitlines()[1].split()[:5] == ["assistant", "team", "private", "True", "False"]


def test_describe_says_how_it_is_and_what_happened(ready: Namespace) -> None:
    said = ready.kubectl("describe", "memorystore", "team")
    for word in ("Storage Ready", "StorageReady", "RevocationAvailable"):
        assert word in said or word.replace(" ", "") in said
    events = said.partition("Events:")[2]
    assert "Normal" in events
    assert "memplane.dev/operator" in events


def test_wait_ends_when_it_is_ready(ready: Namespace) -> None:
    ready.kubectl("wait", "--for=condition=Ready", "memorystore/team", "agentmemory/assistant", "--timeout=30s")
    ready.apply(agent_memory("lonely", "missing"))
    wait_for(ready, "agentmemory", "lonely", "Ready", "False", reason="WaitingForStore", seconds=20)
    said = ready.kubectl.refusal("wait", "--for=condition=Ready", "agentmemory/lonely", "--timeout=1s")
    assert "timed out" in said


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("memorystore.spec.storage", ["local: one pod with a volume; external: Postgres."]),
        ("memorystore.spec.storage.local.persistentVolume.size", ["How large; may grow, never shrink."]),
        ("agentmemory.spec", ["memoryStore", "waitForDependencies"]),
        ("modelapi.spec", ["baseURL", "apiKeySecretRef"]),
    ],
)
def test_explain_has_a_sentence_for_each_field(ready: Namespace, path: str, words: list[str]) -> None:
    said = " ".join(ready.kubectl("explain", path).split())
    assert all(word in said for word in words), said


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_manifest_is_refused_with_what_to_write(ready: Namespace, case: str) -> None:
    manifest, words = REFUSED[case]
    said = ready.kubectl.refusal("apply", "-f", "-", stdin=yaml.safe_dump(manifest))
    assert words in said, said


def test_the_storage_type_cannot_change(ready: Namespace) -> None:
    change = '{"spec": {"storage": {"type": "external", "external": {"connectionSecretRef": {"name": "x"}}}}}'
    said = ready.kubectl.refusal("patch", "memorystore", "team", "--type=merge", "--patch", change)
    assert "storage.type is fixed once the store is made; make a second store and move the data by export" in said


def test_the_snippet_for_a_workload_of_ones_own_can_be_read(ready: Namespace) -> None:
    ready.apply(agent_memory("own", agent={"workloadRef": {"kind": "Deployment", "name": "own"}}))
    wait_for(ready, "agentmemory", "own", "Ready", "True", seconds=60)
    said = ready.kubectl("get", "agentmemory", "own", "-o", "jsonpath={.status.snippet}")
    template = yaml.safe_load(said)["template"]
    assert template["metadata"]["labels"] == {"memplane.dev/binding": "own"}
    token = template["spec"]["volumes"][0]["projected"]["sources"][1]["serviceAccountToken"]
    assert token["audience"] == f"memplane:{ready.name}/team"
