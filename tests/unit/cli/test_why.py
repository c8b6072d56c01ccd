"""`memplane why`: what it says of statuses that the operator writes, and how it reads and ends."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_operator.cluster import kinds
from memory_operator.crd import agent_memory, conditions
from memory_operator.crd.base import ObjectKey
from memory_operator.desired import agent as desired_agent
from memory_operator.status.snapshot import ProbeResult
from memory_service.cli import diagnosis, snippet
from memory_service.cli.diagnosis import Explanation, Kind, Known, Ref, explain
from memory_service.cli.main import cli
from memory_service.cli.reasons import ADVICE, OF_OPERATOR, OF_SERVICE
from memory_service.cli.shape import WORKLOADS, Misshapen
from memory_service.contract.health import Part, Reason
from memory_service.contract.pods import BINDING_LABEL
from tests.unit.memory_operator.world import World, report

Json = dict[str, Any]
RUN_BY_US: Json = {"template": {"spec": {"containers": [{"name": "agent", "image": "agent:1"}]}}}
WELL = {
    "Ok",
    "Available",
    "RolloutComplete",
    "LocalMemory",
    "Accepted",
    "Bound",
    "MemoryHealthy",
    "Reachable",
    "ProbeDisabled",
}
STORE = Ref(Kind.MEMORY_STORE, "a", "notes")
AGENT = Ref(Kind.AGENT_MEMORY, "a", "helper")
MODEL = Ref(Kind.MODEL_API, "a", "chat")


@pytest.fixture
def world() -> World:
    return World()


def objects(world: World) -> dict[Ref, Mapping[str, Any]]:
    """What `kubectl get` would print of all our objects."""
    return {
        Ref(Kind(kind), key.namespace, key.name): body
        for (kind, key), body in world.cluster.objects.items()
        if kind in set(Kind)
    }


def said(world: World, ref: Ref) -> Explanation:
    return explain(ref, Known(objects(world), {}, {}))


def wrong(found: Explanation) -> list[tuple[Ref, str]]:
    return [(one.object, one.reason) for one in found.findings if one.is_wrong]


def steps(found: Explanation) -> list[tuple[Ref, str]]:
    return [(step.object, step.reason) for step in found.steps]


async def bound(world: World, **spec: Any) -> ObjectKey:
    """A ready store with an agent that is bound to it; returns the store."""
    store = await world.ready_store()
    world.agent(**spec)
    await world.settle()
    await world.make_ready(store)
    if "agent" in spec and "template" in spec["agent"]:
        world.pods("helper", 1)
    await world.settle(10)
    assert said(world, AGENT).is_well
    return store


# --- what is explained -----------------------------------------------------------------------------------------------


def test_every_reason_that_the_operator_and_a_health_report_give_is_explained() -> None:
    assert set(OF_OPERATOR) == {reason.value for reason in conditions.Reason}
    assert set(OF_SERVICE) == {reason.value for reason in Reason}


def test_every_type_of_condition_has_its_place() -> None:
    assert sorted(diagnosis._ORDER) == sorted(kind.value for kind in conditions.ConditionType)


def test_what_is_well_asks_for_nothing_and_everything_else_says_what_to_do() -> None:
    assert {reason for reason, advice in ADVICE.items() if not advice.do} == WELL


@pytest.mark.parametrize("reason", sorted(set(ADVICE) - WELL))
@pytest.mark.parametrize("ref", [STORE, AGENT, MODEL], ids=lambda ref: str(ref.kind))
def test_each_reason_becomes_sentences_and_a_step(ref: Ref, reason: str, repository: Path) -> None:
    found = explain(ref, Known({ref: body_of(ref, Ready=("False", reason))}, {}, {}))
    assert not found.is_well
    assert found.headline == f"{ref} is not Ready."
    assert [(one.reason, one.means) for one in found.findings] == [(reason, ADVICE[reason].means)]
    (step,) = found.steps
    assert step.do
    assert (repository / step.page).is_file()
    assert all("{" not in command and command.startswith("kubectl ") for command in step.commands)


def body_of(ref: Ref, **told: tuple[str, str]) -> Json:
    """An object with these conditions: a status and a reason each."""
    return {
        "kind": ref.kind.value,
        "metadata": {"name": ref.name, "namespace": ref.namespace, "generation": 1},
        "spec": {},
        "status": {
            "observedGeneration": 1,
            "conditions": [
                {"type": kind, "status": status, "reason": reason, "message": f"{kind} says so."}
                for kind, (status, reason) in told.items()
            ],
        },
    }


def test_a_reason_of_a_newer_operator_is_told_as_it_is() -> None:
    found = explain(STORE, Known({STORE: body_of(STORE, Ready=("False", "MoonTooClose"))}, {}, {}))
    assert wrong(found) == [(STORE, "MoonTooClose")]
    assert found.steps[0].do == "read the message"


def test_kinds_are_called_as_kubectl_calls_them(repository: Path) -> None:
    called = {}
    for file in (repository / "crds").glob("*.yaml"):
        spec = yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]["names"]
        called[spec["kind"]] = (spec["singular"], spec["plural"], *spec["shortNames"])
    assert {kind.value: found for kind, found in diagnosis.NAMES.items()} == called


# --- what is said of real statuses -----------------------------------------------------------------------------------


async def test_all_is_well_when_the_agent_is_bound(world: World) -> None:
    await bound(world)
    found = said(world, AGENT)
    assert found.headline == "AgentMemory a/helper is well."
    assert (found.effect, wrong(found), found.steps) == ("", [], ())


async def test_an_outage_is_followed_to_the_store_and_calls_the_agent_forgetful(world: World) -> None:
    store = await bound(world, agent=RUN_BY_US)
    world.pods("notes-memory", 0)
    world.says(store, report(ready=False, failing={Part.STORAGE: Reason.STORAGE_UNREACHABLE}))
    await world.settle(14)
    found = said(world, AGENT)
    assert found.headline == "AgentMemory a/helper is degraded."
    assert "forgetful, not unavailable" in found.effect
    assert "restart" in found.effect
    assert wrong(found) == [(AGENT, "StoreNotReady"), (STORE, "StorageUnreachable")]
    assert steps(found) == [(STORE, "StorageUnreachable")], "the cause alone, not what follows from it"
    assert found.steps[0].commands == ("kubectl --namespace a logs --selector memplane.dev/store=notes --tail 50",)
    assert said(world, STORE).effect.startswith("Agents that are bound to it run on")


async def test_a_strict_agent_is_told_that_its_tools_fail(world: World) -> None:
    await bound(world, failureMode="strict")
    world.cluster.remove(kinds.MEMORY_STORE, "a", "notes")
    await world.settle(14)
    found = said(world, AGENT)
    assert "save_memory and forget fail" in found.effect
    assert steps(found) == [(AGENT, "StoreNotFound")]


async def test_an_agent_that_was_never_started_is_said_to_wait_for_its_store(world: World) -> None:
    world.agent(agent=RUN_BY_US)
    await world.settle(10)
    found = said(world, AGENT)
    assert found.headline == "AgentMemory a/helper is not Ready."
    assert "first start waits for the store" in found.effect
    assert tuple(reason for _, reason in wrong(found)) == ("WaitingForStore", "StoreNotFound")


async def test_a_chain_ends_at_the_model_that_holds_everything_up(world: World) -> None:
    world.answers["chat"] = ProbeResult(conditions.Reason.UNREACHABLE, "Nothing answers.")
    world.put(kinds.MODEL_API, "chat", {"baseURL": "http://models/v1"})
    world.store(models={"summarization": {"modelAPI": "chat", "model": "m"}})
    world.agent()
    await world.settle(10)
    world.context.watch_model(ObjectKey("a", "chat"))
    await world.settle(10)
    found = said(world, AGENT)
    assert [ref for ref, _ in wrong(found)][-1] == MODEL
    assert steps(found)[-1] == (MODEL, "Unreachable")
    assert not any(ref.kind is Kind.MEMORY_STORE and reason == "WaitingForModelAPI" for ref, reason in steps(found))
    assert "A store that has not started waits" in said(world, MODEL).effect


async def test_a_store_that_does_not_allow_the_namespace_is_named_as_what_to_change(world: World) -> None:
    await world.ready_store()
    world.agent("far", "b", memoryStoreNamespace="a")
    await world.settle(10)
    found = said(world, Ref(Kind.AGENT_MEMORY, "b", "far"))
    assert {reason for _, reason in wrong(found)} == {"StoreNotAllowed"}
    (step,) = found.steps
    assert "access.allowedNamespaces" in step.do


async def test_a_second_binding_of_one_account_says_whose_it_is(world: World) -> None:
    await world.ready_store()
    world.agent("first", agent={"serviceAccountName": "one"})
    await world.settle(2)
    world.agent(agent={"serviceAccountName": "one"})
    await world.settle(10)
    found = said(world, AGENT)
    assert [reason for _, reason in wrong(found)] == ["ServiceAccountTaken"], "said once, not by each condition"
    assert found.headline == "AgentMemory a/helper is not Ready."
    assert "'first'" in found.findings[0].message
    assert "answer from their own window" in found.effect


async def test_a_broken_spec_names_the_field_once(world: World) -> None:
    world.agent("default")
    await world.settle()
    found = said(world, Ref(Kind.AGENT_MEMORY, "a", "default"))
    assert [reason for _, reason in wrong(found)] == ["InvalidSpec"]
    assert "spec.agent.serviceAccountName" in found.findings[0].message


async def test_late_work_of_a_store_is_told_although_its_agents_are_served(world: World) -> None:
    store = await bound(world)
    revision = world.context.ledger.revision(store) or ""
    world.says(store, report(revision, failing={Part.JOBS: Reason.JOBS_DEAD}))
    await world.settle(10)
    assert said(world, STORE).headline == "MemoryStore a/notes is Ready, and not all of it is well."
    found = said(world, AGENT)
    assert found.headline == "AgentMemory a/helper is well itself; what it leans on is not."
    assert found.effect.startswith("Agents are served.")
    assert found.steps[0].page == "docs/how-to/runbooks/memplane-jobs-dead.md"


async def test_a_paused_store_is_well_and_says_that_it_is_paused(world: World) -> None:
    await world.ready_store()
    world.store(paused=True)
    await world.settle(2)
    found = said(world, STORE)
    assert found.is_well
    assert "Paused" in {one.condition for one in found.findings}


async def test_a_store_scaled_to_nothing_says_how_to_bring_it_back(world: World) -> None:
    await world.ready_store()
    world.store(replicas=0)
    await world.settle(10)
    assert said(world, STORE).steps[0].do == "set `spec.replicas` to 1 or more"


async def test_an_agent_that_has_been_started_is_not_said_to_wait_for_its_first_start(world: World) -> None:
    store = await world.ready_store()
    world.agent(agent=RUN_BY_US)
    await world.settle()
    assert wrong(said(world, AGENT)) == [(AGENT, "BindingPending")]
    assert "if its pods run" in said(world, AGENT).effect
    world.pods("notes-memory", 0)
    world.says(store, report(ready=False, failing={Part.STORAGE: Reason.STORAGE_UNREACHABLE}))
    await world.settle(14)
    assert world.get(kinds.AGENT_MEMORY, "helper")["status"]["started"] is True
    found = said(world, AGENT)
    assert (AGENT, "WaitingForStore") in wrong(found)
    assert found.effect.startswith("The store does not know this agent: if its pods run")


@pytest.mark.parametrize("reason", ["HealthUnreachable", "HealthUnknown"])
def test_a_store_that_the_operator_cannot_ask_is_not_said_to_be_away_from_its_agents(reason: str) -> None:
    store = body_of(STORE, Ready=("Unknown", reason))
    told = "StoreUnreachable" if reason == "HealthUnreachable" else "StoreNotReady"
    agent = degraded(told)
    alone = explain(STORE, Known({STORE: store}, {}, {}))
    both = explain(AGENT, Known({AGENT: agent, STORE: store}, {}, {}))
    not_yet = explain(AGENT, Known({AGENT: degraded(None), STORE: store}, {}, {}))
    for found in (alone, both, not_yet):
        assert not found.is_well
        assert "One that reaches the store is served as ever" in found.effect
        assert "recalls nothing" not in found.effect
        assert "recall nothing" not in found.effect
    agent["spec"]["failureMode"] = "strict"
    strict = explain(AGENT, Known({AGENT: agent, STORE: store}, {}, {}))
    assert strict.effect.endswith("while it does not reach the store, save_memory and forget fail.")


def test_what_a_store_says_of_itself_goes_before_what_its_agent_was_told() -> None:
    away = body_of(STORE, Ready=("False", "WorkloadUnavailable"))
    unread = explain(AGENT, Known({AGENT: degraded("StoreUnreachable")}, {STORE: "it may not be"}, {}))
    read = explain(AGENT, Known({AGENT: degraded("StoreUnreachable"), STORE: away}, {}, {}))
    assert "One that reaches the store is served as ever" in unread.effect
    assert "recalls nothing" in read.effect


def test_an_agent_that_a_store_does_not_allow_is_forgetful_however_the_store_is() -> None:
    store = body_of(STORE, Ready=("Unknown", "HealthUnreachable"))
    found = explain(AGENT, Known({AGENT: degraded("StoreNotAllowed"), STORE: store}, {}, {}))
    assert "recalls nothing" in found.effect


def test_an_object_that_no_operator_has_looked_at_says_so() -> None:
    body: Json = {"kind": "MemoryStore", "metadata": {"name": "notes", "namespace": "a", "generation": 1}, "spec": {}}
    found = explain(STORE, Known({STORE: body}, {}, {}))
    assert found.headline == "MemoryStore a/notes has not been looked at by an operator."
    assert "component=operator" in found.steps[0].commands[0]


def test_a_status_that_is_older_than_the_spec_says_so() -> None:
    body = body_of(STORE, Ready=("True", "Available"))
    body["metadata"]["generation"] = 3
    found = explain(STORE, Known({STORE: body}, {}, {}))
    assert not found.is_well
    assert found.findings[0].message == "The status is of generation 1, the spec of 3."


def test_an_object_that_is_being_deleted_is_not_well() -> None:
    body = body_of(STORE, Ready=("True", "Available"))
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = explain(STORE, Known({STORE: body}, {}, {}))
    assert (found.is_well, found.headline) == (False, "MemoryStore a/notes is being deleted.")


def test_pods_that_do_not_run_are_told_with_what_holds_them_up() -> None:
    body = body_of(STORE, Ready=("False", "WorkloadUnavailable"))
    found = explain(STORE, Known({STORE: body}, {}, {STORE: [POD, READY_POD]}))
    assert found.remarks == (
        "Pod a/notes-memory-1 is not ready: Pending; container 'service' waits: CrashLoopBackOff, started 4 times.",
    )


POD: Json = {
    "kind": "Pod",
    "metadata": {"name": "notes-memory-1", "namespace": "a", "labels": {"memplane.dev/store": "notes"}},
    "status": {
        "phase": "Pending",
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [
            {"name": "service", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
        ],
    },
}
READY_POD: Json = {
    "kind": "Pod",
    "metadata": {"name": "notes-memory-2", "namespace": "a", "labels": {"memplane.dev/store": "notes"}},
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}


# --- the snippet -----------------------------------------------------------------------------------------------------


async def binding(world: World, **agent: Any) -> Json:
    """A bound agent's object."""
    await world.ready_store()
    world.agent(**({"agent": agent} if agent else {}))
    await world.settle(10)
    return world.get(kinds.AGENT_MEMORY, "helper")


@pytest.mark.parametrize(
    "agent",
    [{}, {"serviceAccountName": "robot"}, {"workloadRef": {"kind": "Deployment", "name": "chat"}}],
    ids=["plain", "with an account", "with a workload"],
)
async def test_a_snippet_is_what_the_operator_would_write(world: World, agent: Json) -> None:
    body = await binding(world, **agent)
    wanted = yaml.safe_load(desired_agent.snippet(agent_memory.parse(body)))
    assert yaml.safe_load(snippet.patch(body, None)) == {"spec": wanted}


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob", "Pod"])
async def test_a_patch_has_the_shape_of_its_workload(world: World, kind: str) -> None:
    body = await binding(world, workloadRef={"kind": kind, "name": "chat"})
    made = yaml.safe_load(snippet.patch(body, "main"))
    workload = {"metadata": {}, "spec": {}, **made}
    assert snippet.containers_of(kind, workload) == ("main",)
    assert snippet.pod_template(kind, workload)["metadata"]["labels"] == {BINDING_LABEL: "helper"}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"memoryStore": "notes", "agent": RUN_BY_US}, "has bound its pods"),
        ({"type": "local"}, "its own"),
        ({"memoryStore": "notes"}, "no operator has looked at it"),
    ],
)
def test_an_agent_without_a_snippet_says_why(spec: Json, words: str) -> None:
    said = snippet.why_none({"kind": "AgentMemory", "metadata": {"name": "helper"}, "spec": spec})
    assert words in (said or "")


# --- reading and ending ----------------------------------------------------------------------------------------------


def run(*arguments: str, **options: Any) -> Any:
    return CliRunner().invoke(cli, ["why", *arguments], **options)


def printed(*items: Mapping[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def degraded(reason: str | None = "StoreNotReady") -> Json:
    """A bound agent whose memory is degraded for a reason; without one it is not."""
    is_degraded = ("False", "MemoryHealthy") if reason is None else ("True", reason)
    body = body_of(AGENT, Ready=("True", "Bound"), MemoryDegraded=is_degraded)
    body["spec"] = {"memoryStore": "notes"}
    return body


DOWN = body_of(STORE, Ready=("False", "WorkloadUnavailable"))
FINE = body_of(STORE, Ready=("True", "Available"))


def test_what_kubectl_printed_is_explained_without_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    file = tmp_path / "objects.json"
    file.write_text(printed(degraded(), DOWN, POD))
    result = run("agentmem/helper", "-f", str(file))
    assert result.exit_code == 1, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "AgentMemory a/helper is degraded."
    assert "  MemoryStore a/notes: Ready is False, WorkloadUnavailable" in lines
    assert "    That means: no pod is ready; the message says why." in lines
    assert "  1. MemoryStore a/notes: mend what it names: image, quota, policy, account, node, volume." in lines
    assert "CrashLoopBackOff" in result.stdout
    assert "  2." not in result.stdout


def test_one_object_on_standard_input_is_enough() -> None:
    assert run("-f", "-", input=json.dumps(FINE)).exit_code == 0
    result = run("-f", "-", input=json.dumps(degraded()))
    assert result.exit_code == 1
    assert "MemoryStore a/notes was not read: '-' does not hold it." in result.stdout


def test_without_a_name_every_object_of_the_file_is_explained() -> None:
    result = run("-f", "-", input=printed(FINE, POD, degraded()))
    assert result.exit_code == 1
    assert "MemoryStore a/notes is well." in result.stdout
    assert "AgentMemory a/helper is degraded." in result.stdout


def test_a_namespace_chooses_between_objects_of_one_name() -> None:
    other = body_of(Ref(Kind.MEMORY_STORE, "b", "notes"), Ready=("False", "ScaledToZero"))
    text = printed(FINE, other)
    assert run("memstore/notes", "-f", "-", "-n", "a", input=text).exit_code == 0
    assert run("memstore/notes", "-f", "-", "-n", "b", input=text).exit_code == 1
    result = run("memstore/notes", "-f", "-", input=text)
    assert (result.exit_code, "--namespace" in result.stderr) == (2, True)


def test_machines_get_json() -> None:
    result = run("agentmemory/helper", "-f", "-", "-o", "json", input=printed(degraded(), DOWN))
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["object"] == {"kind": "AgentMemory", "namespace": "a", "name": "helper"}
    assert found["is_well"] is False
    assert [(one["reason"], one["is_wrong"]) for one in found["findings"]] == [
        ("StoreNotReady", True),
        ("WorkloadUnavailable", True),
    ]
    assert found["steps"][0]["page"] == "docs/how-to/runbooks/memplane-store-not-ready.md"
    assert isinstance(json.loads(run("-f", "-", "-o", "json", input=printed(FINE)).stdout), list)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give KIND/NAME"),
        (["agentmemory"], "give KIND/NAME"),
        (["deployment/x"], "is no kind of ours; there are agentmemory (agentmem)"),
        (["agentmem/x", "-f", "-", "--context", "c"], "not both"),
        (["-f", "-", "--snippet"], "--snippet needs"),
        (["memstore/notes", "-f", "-", "--snippet"], "--snippet is for an AgentMemory"),
        (["memstore/other", "-f", "-"], "does not hold it"),
        (["-f", "/nowhere/objects.json"], "give what `kubectl get -o json` printed"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_to_give(arguments: list[str], words: str) -> None:
    result = run(*arguments, input=printed(FINE))
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "text", ["", "not json", "[]", "{}", '{"items": 3}', '{"items": [null]}', "[" * 100_000, '{"kind": []}', "\x00"]
)
def test_a_file_that_holds_no_objects_is_refused_with_a_sentence(text: str) -> None:
    result = run("-f", "-", input=text)
    assert result.exit_code == 2
    assert "kubectl get -o json" in result.stderr
    assert "Traceback" not in result.output


def test_without_kubectl_the_way_without_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run("agentmem/helper")
    assert result.exit_code == 2
    assert "kubectl is not on the PATH" in result.stderr
    assert "--file" in result.stderr


def kubectl(folder: Path, monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, Any]) -> Path:
    """Put a `kubectl` on the PATH that answers by the object's name; returns where it logs how it was called."""
    log, program = folder / "calls", folder / "kubectl"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\nanswers = json.loads({json.dumps(json.dumps(answers))})\n"
        f"open({str(log)!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
        "asked = sys.argv[sys.argv.index('get') + 1 :]\n"
        "answer = answers.get(asked[1]) if asked[0] != 'pods' else {'items': []}\n"
        "if not isinstance(answer, dict): sys.exit(answer or 'Error from server (NotFound): it')\n"
        "print(json.dumps(answer))\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return log


def calls(log: Path) -> list[Sequence[str]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_kubectls_own_flags_are_handed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = kubectl(tmp_path, monkeypatch, {"helper": degraded(), "notes": FINE})
    result = run("agentmem/helper", "-n", "a", "--context", "my cluster", "--kubeconfig", "/k")
    assert result.exit_code == 1, result.output
    for call in calls(log):
        assert call[:6] == ["--context", "my cluster", "--kubeconfig", "/k", "--namespace", "a"]
    whats = [call[call.index("get") + 1] for call in calls(log)]
    assert whats == ["agentmemories.memplane.dev", "pods", "memorystores.memplane.dev"]
    log.unlink()
    run("agentmem/helper")
    assert "--namespace" not in calls(log)[0], "then kubectl's context says which"


def test_commands_to_look_further_go_to_the_same_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kubectl(tmp_path, monkeypatch, {"notes": DOWN})
    result = run("memstore/notes", "--context", "my cluster")
    assert "kubectl --context 'my cluster' --namespace a get pods" in result.stdout


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (None, 2, "does not exist; `--namespace` names where to look"),
        ("Error from server (Forbidden): no", 2, "may not be read by you"),
        ('error: the server doesn\'t have a resource type "agentmemories"', 2, "install the operator first"),
        ('error: context "moon" does not exist', 2, "kubectl config get-contexts"),
        ("The connection to the server 10.0.0.1:6443 was refused", 3, "cannot be read"),
    ],
)
def test_what_kubectl_cannot_do_is_said_with_what_to_do(
    answer: str | None, code: int, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kubectl(tmp_path, monkeypatch, {"helper": answer})
    result = run("agentmem/helper")
    assert result.exit_code == code
    assert words in result.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("warning: old client\n{}", "it is no JSON"),
        ("", "it is no JSON"),
        ("[]", "it is a list, and should be an object"),
        ('{"kind": "AgentMemory", "metadata": "helper"}', "metadata is 'helper', and should be an object"),
        ('{"kind": "AgentMemory", "metadata": {"name": "helper"}}', "metadata.namespace is missing"),
        ('{"kind": "Pod", "metadata": {"name": "helper", "namespace": "a"}}', "kind is 'Pod'"),
    ],
)
def test_what_something_else_prints_in_kubectls_place_is_refused_with_the_field_and_the_next_step(
    text: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "kubectl"
    program.write_text(f"#!{sys.executable}\nprint({text!r})\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run("agentmem/helper")
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert "; " in result.stderr
    assert "`kubectl get -o json`" in result.stderr


def test_a_kubectl_that_may_not_be_run_is_said_to_be_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kubectl").mkdir(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run("agentmem/helper")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "kubectl cannot be run: " in result.stderr
    assert "--file" in result.stderr


def test_a_store_of_an_odd_shape_leaves_what_the_agent_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    odd = {**DOWN, "status": {"conditions": "none"}}
    kubectl(tmp_path, monkeypatch, {"helper": degraded(), "notes": odd})
    result = run("agentmem/helper")
    assert result.exit_code == 1
    assert "MemoryStore a/notes was not read: " in result.stdout
    assert "status.conditions is 'none', and should be a list" in result.stdout


def test_a_store_that_may_not_be_read_leaves_what_the_agent_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kubectl(tmp_path, monkeypatch, {"helper": degraded(), "notes": "Error from server (Forbidden): no"})
    result = run("agentmem/helper")
    assert result.exit_code == 1
    assert "MemoryStore a/notes was not read: " in result.stdout
    assert "1. AgentMemory a/helper: look at the store." in result.stdout


def bound_to(kind: str) -> Json:
    body = body_of(AGENT, Ready=("True", "Bound"))
    body["spec"] = {"memoryStore": "notes", "agent": {"workloadRef": {"kind": kind, "name": "chat"}}}
    body["status"] |= {
        "audience": "memplane:a/notes",
        "snippet": desired_agent.snippet(
            agent_memory.parse({**body, "metadata": {**body["metadata"], "uid": "u", "creationTimestamp": CREATED}})
        ),
    }
    return body


CREATED = "2026-01-01T00:00:00Z"


def workload(*containers: str) -> Json:
    return {"spec": {"template": {"spec": {"containers": [{"name": name} for name in containers]}}}}


def test_a_snippet_names_the_workloads_own_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kubectl(tmp_path, monkeypatch, {"helper": bound_to("Deployment"), "chat": workload("main")})
    result = run("agentmem/helper", "--snippet")
    assert result.exit_code == 0, result.output
    made = yaml.safe_load(result.stdout)
    assert [one["name"] for one in made["spec"]["template"]["spec"]["containers"]] == ["main"]
    assert "kubectl --namespace a patch deployment/chat --patch-file FILE" in result.stderr


def test_of_several_containers_one_must_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kubectl(tmp_path, monkeypatch, {"helper": bound_to("Deployment"), "chat": workload("main", "side")})
    result = run("agentmem/helper", "--snippet")
    assert (result.exit_code, "main, side" in result.stderr, result.stdout) == (2, True, "")
    made = yaml.safe_load(run("agentmem/helper", "--snippet", "--container", "side").stdout)
    assert made["spec"]["template"]["spec"]["containers"][0]["name"] == "side"


def test_a_snippet_for_a_workload_that_is_not_there_yet_leaves_a_gap(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kubectl(tmp_path, monkeypatch, {"helper": bound_to("Job")})
    result = run("agentmem/helper", "--snippet")
    assert result.exit_code == 0
    assert "<your container>" in result.stdout
    assert "cannot be changed once it is made" in result.stderr


def test_an_agent_that_has_no_snippet_ends_with_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    body = body_of(AGENT, Ready=("True", "LocalMemory"))
    kubectl(tmp_path, monkeypatch, {"helper": body})
    result = run("agentmem/helper", "--snippet")
    assert (result.exit_code, "its own" in result.stderr) == (1, True)


# --- odd shapes ------------------------------------------------------------------------------------------------------


def test_a_field_that_is_null_is_as_if_it_were_not_there() -> None:
    body = body_of(STORE, Ready=("True", "Available"))
    body["status"]["observedGeneration"] = None
    body["metadata"]["deletionTimestamp"] = None
    result = run("-f", "-", input=json.dumps(body))
    assert result.exit_code == 1
    assert "The status is of generation 0, the spec of 1." in result.stdout


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("metadata",), "helper", "metadata is 'helper', and should be an object"),
        (("metadata", "name"), "x; reboot", "metadata.name is 'x; reboot', and should be a name of Kubernetes"),
        (("metadata", "generation"), True, "metadata.generation is True, and should be a whole number"),
        (("spec", "memoryStore"), ["notes"], "spec.memoryStore is a list, and should be a name of Kubernetes"),
        (("spec", "memoryStore"), "--help", "spec.memoryStore is '--help', and should be a name of Kubernetes"),
        (("spec", "agent", "workloadRef", "name"), None, "spec.agent.workloadRef.name is missing"),
        (("status", "started"), "yes", "status.started is 'yes', and should be true or false"),
        (("status", "conditions", 0), None, "status.conditions[0] is null, and should be an object"),
        (("status", "conditions", 0, "type"), {}, "status.conditions[0].type is an object, and should be a text"),
    ],
)
def test_a_field_of_another_shape_is_named_with_what_it_should_be(
    path: Sequence[str | int], value: Any, words: str
) -> None:
    body = bound_to("Deployment")
    put(body, path, value)
    result = run("-f", "-", input=json.dumps(body))
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert "; read it anew" in result.stderr


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("status", "snippet"), None, "status.bindingConfigMap is missing; see that the operator runs"),
        (("status", "snippet"), "{", "status.snippet is no YAML"),
        (("status", "snippet"), "!!bool maybe", "status.snippet is no YAML"),
        (("status", "snippet"), "[" * 5_000, "status.snippet is no YAML"),
        (("status", "snippet"), "template: {}", "status.snippet.template.spec is missing"),
        (
            ("status", "snippet"),
            "template: {spec: {containers: []}}",
            "status.snippet.template.spec.containers is empty",
        ),
        (("spec", "agent", "workloadRef", "kind"), "Service", "should be one of Deployment, StatefulSet"),
    ],
)
def test_a_snippet_that_cannot_be_made_names_the_field(path: Sequence[str | int], value: Any, words: str) -> None:
    body = bound_to("Deployment")
    put(body, path, value)
    result = run("agentmem/helper", "-f", "-", "--snippet", input=json.dumps(body))
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_a_workload_without_containers_is_named_by_its_field(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kubectl(tmp_path, monkeypatch, {"helper": bound_to("Deployment"), "chat": workload()})
    result = run("agentmem/helper", "--snippet")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the Deployment is not what" in result.stderr
    assert "spec.template.spec.containers is empty" in result.stderr


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where something is in an object, inner places too."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in inner:
        yield (*at, name)
        yield from places(item, (*at, name))


def put(value: Any, path: Sequence[str | int], item: Any) -> None:
    for name in path[:-1]:
        value = value[name]
    value[path[-1]] = item


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "spec", "x"]), inner),
    max_leaves=4,
)


@st.composite
def damaged(draw: st.DrawFn, whole: Any) -> Any:
    """A copy in which up to three places hold something odd, or nothing."""
    body = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        found = list(places(body))
        if not found:
            break
        put(body, draw(st.sampled_from(found)), draw(ODD))
    return body


def everything() -> Json:
    """Objects with each field that is read."""
    agent = bound_to("Deployment")
    agent["status"] |= {"started": True, "bindingConfigMap": "helper-binding", "serviceAccountName": "helper"}
    agent["status"]["conditions"].append({"type": "MemoryDegraded", "status": "True", "reason": "StoreNotReady"})
    plain = copy.deepcopy(agent)
    plain["metadata"]["name"] = "plain"
    del plain["status"]["snippet"], plain["spec"]["agent"]["workloadRef"]
    store = copy.deepcopy(DOWN)
    store["spec"] = {"models": {"summarization": {"modelAPI": "chat", "model": "m"}}}
    model = body_of(MODEL, Ready=("False", "Unreachable"))
    return {"kind": "List", "items": [agent, plain, store, model, copy.deepcopy(POD)]}


@settings(max_examples=150, derandomize=True)
@given(damaged(everything()))
def test_no_damage_to_a_file_ends_in_anything_but_an_answer_or_a_sentence(document: Any) -> None:
    text = json.dumps(document)
    for arguments in ([], ["-o", "json"], ["agentmem/helper", "--snippet"], ["agentmem/plain", "--snippet"]):
        result = run("-f", "-", *arguments, input=text)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        assert result.exit_code in (0, 1, 2)
        if result.exit_code == 2:
            assert result.stdout == ""
            assert result.stderr.strip()


@settings(max_examples=150, derandomize=True)
@given(st.sampled_from(sorted(WORKLOADS)), damaged(workload("main")))
def test_no_damage_to_a_workload_ends_in_anything_but_containers_or_a_sentence(kind: str, body: Any) -> None:
    try:
        found = snippet.containers_of(kind, body)
    except Misshapen:
        return
    assert found
    assert all(isinstance(name, str) for name in found)


@pytest.mark.parametrize("odd", [None, True, 1.5, "x", [], {}], ids=repr)
def test_one_odd_value_at_any_place_of_a_file_is_an_answer_or_a_sentence(odd: Any) -> None:
    """Damage that is drawn seldom meets the one place that matters; there are few enough to visit them all."""
    for place in places(everything()):
        document = everything()
        put(document, place, odd)
        result = run("-f", "-", input=json.dumps(document))
        assert result.exception is None or isinstance(result.exception, SystemExit), (place, result.exc_info)
        assert result.exit_code in (0, 1, 2)


def test_a_field_of_a_pod_that_has_another_shape_is_named_with_what_it_should_be() -> None:
    document = everything()
    put(document["items"][-1], ("status", "containerStatuses", 0, "restartCount"), "3")
    result = run("-f", "-", input=json.dumps(document))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "status.containerStatuses[0].restartCount is '3', and should be a whole number" in result.stderr


def test_explaining_loads_neither_the_client_nor_a_server() -> None:
    heavy = ("httpx", "pydantic", "fastapi", "kubernetes", "chromadb", "memory_service.client", "memory_operator")
    code = (
        "import sys\nfrom memory_service.cli.main import cli\n"
        "try: cli(['why', '-f', '-'])\nexcept SystemExit: pass\n"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, input=printed(degraded(), DOWN)
    )
    assert done.stdout.splitlines()[-1] == "[]"
