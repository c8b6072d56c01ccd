"""What is rendered: golden files for whole stores and agents, and rules that hold for every rendering."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_operator import names
from memory_operator.crd import agent_memory, memory_store, model_api
from memory_operator.crd.agent_memory import AgentMemory
from memory_operator.crd.memory_store import MemoryStore
from memory_operator.crd.model_api import ModelApi
from memory_operator.crd.quantity import canonical, is_larger
from memory_operator.desired import agent as agents
from memory_operator.desired import bindings, config
from memory_operator.desired.metadata import Manifest, canonical_json
from memory_operator.desired.ownership import desired_digest, is_ours, live_digest, own_annotations
from memory_operator.desired.plan import REMOVED_KINDS, Observed, desired_digests, plan
from memory_operator.desired.store import StoreInputs, desired_objects
from memory_operator.desired.volume import ExistingClaim
from memory_operator.errors import InvalidSpec
from memory_operator.settings import OperatorSettings

Json = dict[str, Any]
GOLDEN = Path(__file__).parent / "golden"
SETTINGS = OperatorSettings(service_image="example.com/memplane:1")


def body(kind: str, name: str, spec: Json, namespace: str = "team") -> Json:
    meta = {
        "name": name,
        "namespace": namespace,
        "uid": "5f0c3c1e-0000-4000-8000-000000000001",
        "generation": 3,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return {"kind": kind, "metadata": meta, "spec": spec}


def store(**spec: Any) -> MemoryStore:
    return memory_store.parse(body("MemoryStore", "notes", {"storage": {"type": "local"}, **spec}))


def agent(**spec: Any) -> AgentMemory:
    return agent_memory.parse(body("AgentMemory", "helper", {"memoryStore": "notes", **spec}))


def model(**spec: Any) -> ModelApi:
    return model_api.parse(body("ModelAPI", "gpt", {"baseURL": "https://api.example.com/v1", **spec}))


EVERYTHING = store(
    storage={"type": "external", "external": {"connectionSecretRef": {"name": "db"}, "schema": "kept"}},
    replicas=3,
    engine="native",
    models={
        "summarization": {"modelAPI": "gpt", "model": "gpt-x"},
        "embedding": {"modelAPI": "gpt", "model": "embed-x", "dimensions": 768},
    },
    shortTerm={"tokenBudget": 2000},
    mediumTerm={"compactionTrigger": 1500, "compactionTarget": 500},
    retention={"turns": "30d"},
    access={"allowedNamespaces": {"names": ["b", "a"], "selector": {"matchLabels": {"team": "x"}}}},
    identity={
        "users": {
            "issuers": [
                {"issuer": "https://i", "audiences": ["m"], "jwksURL": "https://i/keys"},
                {
                    "issuer": "https://j",
                    "audiences": ["m"],
                    "jwksURL": "https://j/keys",
                    "caConfigMapRef": {"name": "company-ca"},
                },
            ]
        },
        "admins": [{"namespace": "ops", "name": "admin"}],
        "revocation": "required",
    },
    tls={"secretRef": {"name": "tls"}, "caBundle": "PEM"},
    container={"resources": {"limits": {"memory": "2048Mi"}}, "env": [{"name": "LOG_LEVEL", "value": "debug"}]},
    nodeSelector={"disk": "fast"},
    tolerations=[{"operator": "Exists"}],
    priorityClassName="high",
    imagePullSecrets=[{"name": "pull"}],
    podLabels={"team": "x"},
)
TEMPLATE = {
    "template": {
        "metadata": {"labels": {"app": "chat"}},
        "spec": {
            "containers": [
                {
                    "name": "chat",
                    "image": "chat:1",
                    "ports": [{"name": "http", "containerPort": 8000, "protocol": "TCP"}],
                    "env": [{"name": "MEMPLANE_TOOLS", "value": "read"}],
                    "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}},
                }
            ]
        },
    }
}


def render(what: str) -> list[Manifest]:
    """The objects of one example."""
    match what:
        case "local-store":
            return list(desired_objects(StoreInputs(store(), SETTINGS, parts={0: {"team.helper.json": "{}"}})).objects)
        case "external-store":
            key = {"name": "key", "key": "api"}
            inputs = StoreInputs(
                EVERYTHING,
                OperatorSettings(
                    service_image="example.com/memplane:1",
                    service_monitors=True,
                    service_monitor_labels={"release": "prometheus"},
                    metrics_namespaces=("monitoring",),
                ),
                models={"gpt": model(apiKeySecretRef=key, headers={"X-Team": "x"}, timeoutSeconds=30)},
            )
            return list(desired_objects(inputs).objects)
        case "templated-agent":
            bound = agent(
                agent=TEMPLATE, tools="all", scope="user", readScopes=["user", "private"], failureMode="strict"
            )
            inputs_ = agents.AgentInputs(
                bound, SETTINGS, EVERYTHING, "PEM", "https://notes-memory.team.svc.cluster.local:8800"
            )
            return list(agents.desired_objects(inputs_)[0])
        case _:
            return list(agents.desired_objects(agents.AgentInputs(agent(), SETTINGS, store()))[0])


@pytest.mark.parametrize("what", ["local-store", "external-store", "templated-agent", "projected-agent"])
def test_the_rendering_is_the_golden_file(what: str) -> None:
    """UPDATE_GOLDEN=1 writes the files again; read the difference before you commit it."""
    text = yaml.safe_dump_all(render(what), sort_keys=True, default_flow_style=False)
    file = GOLDEN / f"{what}.yaml"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        file.write_text(text)
    assert file.read_text() == text


def pods(objects: list[Manifest]) -> list[Json]:
    return [item["spec"]["template"]["spec"] for item in objects if item["kind"] == "Deployment"]


@pytest.mark.parametrize("what", ["local-store", "external-store"])
def test_store_pods_keep_the_restricted_pod_security_standard(what: str) -> None:
    for pod in pods(render(what)):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] != 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"] is True
        allowed = {"configMap", "secret", "emptyDir", "projected", "persistentVolumeClaim"}
        assert all(set(volume) - {"name"} <= allowed for volume in pod["volumes"])
        assert pod["enableServiceLinks"] is False


def test_every_secret_is_an_optional_volume_and_never_a_variable() -> None:
    for pod in pods(render("external-store")):
        secrets = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
        assert {secret["secretName"] for secret in secrets} == {"db", "key", "tls"}
        assert all(secret["optional"] for secret in secrets)
        assert "secretKeyRef" not in canonical_json(pod)


def test_a_pod_that_another_one_takes_over_from_serves_on_until_callers_have_heard_of_it() -> None:
    (pod,) = pods(render("external-store"))
    pause = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert 0 < pause <= pod["terminationGracePeriodSeconds"] - config.GRACE_SECONDS
    (alone,) = pods(render("local-store"))
    assert "lifecycle" not in alone["containers"][0], "the next pod waits for the end of this one"


def test_all_children_but_a_retained_claim_belong_to_their_owner() -> None:
    for item in render("local-store"):
        is_owned = bool(item["metadata"].get("ownerReferences"))
        assert is_owned == (item["kind"] != "PersistentVolumeClaim"), item["kind"]


def test_a_users_own_variable_wins() -> None:
    deployment = next(item for item in render("templated-agent") if item["kind"] == "Deployment")
    variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    assert [item["value"] for item in variables if item["name"] == "MEMPLANE_TOOLS"] == ["read"]


@pytest.mark.parametrize(("given_", "links"), [({}, False), ({"enableServiceLinks": True}, True)])
def test_a_template_says_itself_whether_it_wants_service_links(given_: Json, links: bool) -> None:
    template = {"template": {"spec": {**TEMPLATE["template"]["spec"], **given_}}}
    made = agents.deployment(agents.AgentInputs(agent(agent=template), SETTINGS))
    assert made is not None
    assert made["spec"]["template"]["spec"]["enableServiceLinks"] is links


SPECS = st.fixed_dictionaries(
    {"storage": st.just({"type": "external", "external": {"connectionSecretRef": {"name": "db"}}})},
    optional={
        "replicas": st.integers(0, 5),
        "engine": st.sampled_from(["mem0", "native"]),
        "nodeSelector": st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz")),
        "podLabels": st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz")),
        "container": st.fixed_dictionaries(
            {},
            optional={
                "resources": st.fixed_dictionaries(
                    {"limits": st.fixed_dictionaries({"cpu": st.sampled_from(["1000m", "1", 2, "0.5"])})}
                )
            },
        ),
        "retention": st.fixed_dictionaries({}, optional={"turns": st.sampled_from(["1d", "2h30m"])}),
        "paused": st.booleans(),
    },
)


@given(SPECS, st.dictionaries(st.sampled_from(["a.x.json", "a.y.json", "b.x.json"]), st.sampled_from(["{}", "[]"])))
@settings(max_examples=60)
def test_the_same_spec_renders_the_same_bytes_twice_and_then_plans_nothing(spec: Json, rows: dict[str, str]) -> None:
    def rendered(order: dict[str, str]) -> list[Manifest]:
        parsed = memory_store.parse(body("MemoryStore", "notes", spec))
        return list(desired_objects(StoreInputs(parsed, SETTINGS, parts=bindings.layout(order, {}))).objects)

    once, twice = rendered(rows), rendered(dict(reversed(rows.items())))
    assert canonical_json(once) == canonical_json(twice)
    uid = body("MemoryStore", "notes", spec)["metadata"]["uid"]
    observed = {(item["kind"], item["metadata"]["name"]): Observed(desired_digest(item), uid) for item in once}
    assert plan(uid, desired_digests(twice), frozenset(), observed).apply == ()
    assert plan(uid, desired_digests(twice), frozenset(), observed).delete == ()


def test_a_plan_removes_what_is_ours_and_unwanted_but_never_a_claim() -> None:
    observed = {
        ("PodDisruptionBudget", "x"): Observed("d", "me"),
        ("PersistentVolumeClaim", "x"): Observed("d", "me"),
        ("Role", "x"): Observed("d", "me"),
        ("Deployment", "held"): Observed("d", "me"),
        ("Service", "theirs"): Observed("d", "other"),
    }
    made = plan("me", {}, {("Deployment", "held")}, observed)
    assert made.delete == (("PodDisruptionBudget", "x"),)


def _kinds_that_come_and_go(renderings: list[list[Manifest]]) -> set[str]:
    names_of = [set(desired_digests(objects)) for objects in renderings]
    return {kind for kind, _ in set.union(*names_of) - set.intersection(*names_of)}


def test_what_a_plan_may_remove_is_what_a_change_of_a_spec_makes_unwanted() -> None:
    external = {"type": "external", "external": {"connectionSecretRef": {"name": "db"}}}
    stores = [store(storage=external), store(storage=external, replicas=1, serviceAccountName="own")]
    rendered = [list(desired_objects(StoreInputs(item, SETTINGS)).objects) for item in stores]
    many_agents = {0: {"team.a.json": "{}"}, 1: {"team.b.json": "{}"}}
    rendered.append(list(desired_objects(StoreInputs(stores[0], SETTINGS, parts=many_agents)).objects))
    specs = [agent(agent=TEMPLATE), agent(), agent_memory.parse(body("AgentMemory", "helper", {"type": "local"}))]
    of_agents = [list(agents.desired_objects(agents.AgentInputs(item, SETTINGS, stores[0]))[0]) for item in specs[:2]]
    of_agents.append(list(agents.desired_objects(agents.AgentInputs(specs[2], SETTINGS))[0]))
    assert _kinds_that_come_and_go(rendered) | _kinds_that_come_and_go(of_agents) == REMOVED_KINDS


def test_a_plan_leaves_the_object_of_another_owner_alone() -> None:
    made = plan("me", {("Service", "x"): "e"}, frozenset(), {("Service", "x"): Observed("d", "other")})
    assert made.conflicts == (("Service", "x"),)
    assert made.apply == ()


def test_an_existing_claim_keeps_what_cannot_change() -> None:
    existing = ExistingClaim("10Gi", "old", ("ReadWriteOnce",))
    wanted = store(storage={"type": "local", "local": {"persistentVolume": {"size": "5Gi", "storageClassName": "new"}}})
    objects = desired_objects(StoreInputs(wanted, SETTINGS, existing_claim=existing)).objects
    claim = next(item for item in objects if item["kind"] == "PersistentVolumeClaim")
    assert claim["spec"]["resources"]["requests"]["storage"] == "10Gi"
    assert claim["spec"]["storageClassName"] == "old"


@given(
    st.dictionaries(st.integers(0, 60).map(lambda number: f"a.{number}.json"), st.text("x", max_size=40), max_size=60),
    st.dictionaries(st.integers(0, 60).map(lambda number: f"a.{number}.json"), st.integers(0, 4), max_size=60),
)
def test_bindings_fit_into_their_parts_and_lose_none(rows: dict[str, str], placement: dict[str, int]) -> None:
    parts = bindings.layout(rows, placement, part_bytes=200)
    assert {key: text for part in parts.values() for key, text in part.items()} == rows
    assert sum(len(part) for part in parts.values()) == len(rows)
    for part in parts.values():
        assert sum(len(key) + len(text) for key, text in part.items()) <= 200
    assert list(parts) == list(range(len(parts))), "a service follows them up to the first gap"
    again = bindings.layout(rows, {key: number for number, part in parts.items() for key in part}, part_bytes=200)
    assert again == parts, "a row that fits stays where it is"


@pytest.mark.parametrize(
    ("name", "number"),
    [("notes-bindings-0", 0), ("notes-bindings-63", 63), ("notes-bindings-64", None), ("notes-bindings-99999", None),
     ("notes-bindings-x", None), ("notes-bindings-²", None), ("other-bindings-0", None), ("notes-bindings", None)],
)  # fmt: skip
def test_only_what_a_service_reads_is_a_part_of_the_bindings(name: str, number: int | None) -> None:
    assert bindings.part_number("notes", name) == number


def test_thousands_of_bindings_stay_below_the_limit_of_a_config_map() -> None:
    rows = dict(
        bindings.row(agent_memory.parse(body("AgentMemory", f"agent-{n:05}", {"memoryStore": "notes"})), store())
        for n in range(5000)
    )
    parts = bindings.layout(rows, {})
    assert len(parts) > 1
    for manifest in bindings.config_maps(store(), parts):
        assert sum(len(key) + len(text) for key, text in manifest["data"].items()) < 1_000_000


@pytest.mark.parametrize(
    ("given_", "expected"),
    [("1000m", "1"), ("0.5", "500m"), (2, "2"), ("1024Mi", "1Gi"), ("1.5Gi", "1536Mi"), ("5Gi", "5Gi"), ("0", "0"),
     ("1e3", "1k"), ("100m", "100m"), ("6000Mi", "6000Mi"), ("1Ki", "1Ki"), ("0.5Ki", "512")],
)  # fmt: skip
def test_quantities_are_written_as_the_server_writes_them(given_: str | int, expected: str) -> None:
    assert canonical(given_) == expected


def test_quantities_compare_across_units() -> None:
    assert is_larger("6000Mi", "5Gi")
    assert not is_larger("5Gi", "5120Mi")


def test_an_external_store_tells_its_service_its_name_by_which_schemas_before_it_are_found() -> None:
    external = store(storage={"type": "external", "external": {"connectionSecretRef": {"name": "db"}}})
    assert config.service_config(external, {}, SETTINGS).storage.store_name == "team/notes"
    assert config.service_config(store(), {}, SETTINGS).storage.store_name == ""


def test_each_port_of_an_agents_service_has_a_name_of_its_own() -> None:
    ports: list[list[Json]] = [
        [{"containerPort": 53}, {"containerPort": 53, "protocol": "UDP"}, {"name": "http", "containerPort": 80}],
        [{"name": "http", "containerPort": 81}, {"containerPort": 80}],
    ]
    containers = [{"name": f"c{number}", "image": "x", "ports": item} for number, item in enumerate(ports)]
    made = agents.service(agent(agent={"template": {"spec": {"containers": containers}}}))
    assert made is not None
    assert [(item["name"], item["port"], item["protocol"]) for item in made["spec"]["ports"]] == [
        ("port-53", 53, "TCP"),
        ("port-53-udp", 53, "UDP"),
        ("http", 80, "TCP"),
        ("port-81-tcp", 81, "TCP"),
    ]


@pytest.mark.parametrize("value", ["a\nb", "a\r", "\x00", "\x7f"])
def test_a_header_that_http_does_not_take_is_named_and_its_value_is_not(value: str) -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.headers\.X-Team: a value must be") as caught:
        model(headers={"X-Team": f"secret{value}", "X-Good": "a b\té"})
    assert "secret" not in str(caught.value)


def test_only_a_schema_named_after_the_uid_must_be_the_stores_own() -> None:
    """A kept claim and a schema that the spec names are adopted, though another store's UID is written in them."""
    secret = {"connectionSecretRef": {"name": "db"}}
    own = store(storage={"type": "external", "external": secret})
    adopted = store(storage={"type": "external", "external": {**secret, "schema": "kept"}})
    local = store()
    uids = [config.service_config(item, {}, SETTINGS).storage.store_uid for item in (own, adopted, local)]
    assert uids == [own.id.uid, "", ""]


def _digest_of(data: Any) -> str:
    return desired_digest({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": data})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": -1}, {"a": -2}),
        ({"a": True}, {"a": 1}),
        ({"a": True}, {"a": "True"}),
        ({"a": 1}, {"a": "1"}),
        ({"a": None}, {}),
        ({"a": []}, {"a": {}}),
        ({"a": ["x", "y"]}, {"a": ["y", "x"]}),
        ({"a": {"b": "c"}}, {"a": {"c": "b"}}),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1}, {"b": 1}]}),
    ],
)
def test_what_differs_has_another_digest(one: Any, other: Any) -> None:
    assert _digest_of(one) != _digest_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": [{"b": 1}, {"c": [1, 2]}]}, {"a": [{"c": [1, 2]}, {"b": 1}]}),
    ],
)
def test_the_order_of_keys_and_of_objects_in_a_list_does_not_count(one: Any, other: Any) -> None:
    assert _digest_of(one) == _digest_of(other)


_LEAVES = st.none() | st.booleans() | st.integers(-2, 2) | st.text("ab", max_size=2)
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.dictionaries(st.text("ab", max_size=2), inner, max_size=3), max_leaves=10
)
_FIELD_SETS = st.recursive(
    st.just({}),
    lambda inner: st.dictionaries(st.sampled_from(["f:a", "f:b", "f:ab", "."]), inner, max_size=3),
    max_leaves=6,
)


def _cut(value: Any, owned: dict[str, Any]) -> Any:
    """The part of an object without lists that is in a field set."""
    if not owned or not isinstance(value, dict):
        return value
    inside = {path[2:]: inner for path, inner in owned.items() if path.startswith("f:")}
    return {name: _cut(value[name], inner) for name, inner in inside.items() if name in value}


@given(st.dictionaries(st.sampled_from(["a", "b", "ab"]), _VALUES, max_size=3), _FIELD_SETS)
def test_what_others_have_set_does_not_count_for_the_digest_of_an_object(live: Any, owned: dict[str, Any]) -> None:
    entry = {"manager": names.FIELD_MANAGER, "operation": "Apply", "fieldsV1": owned}
    found = live_digest({**live, "metadata": {"managedFields": [entry]}})
    wanted = _cut({**live, "metadata": {"managedFields": [entry]}}, owned)
    assert found == desired_digest({"metadata": {}, **wanted})


def test_only_what_we_applied_is_ours_and_not_what_we_wrote_otherwise() -> None:
    owned = {"f:spec": {"f:replicas": {}}, "f:metadata": {"f:annotations": {"f:note": {}}}}
    entry = {"manager": names.FIELD_MANAGER, "operation": "Update", "fieldsV1": owned}
    live = {"metadata": {"managedFields": [entry], "annotations": {"note": "x"}}, "spec": {"replicas": 1}}
    assert (live_digest(live), is_ours(live, "spec", "replicas"), own_annotations(live)) == ("", False, {})
    entry["operation"] = "Apply"
    assert live_digest(live) != ""
    assert (is_ours(live, "spec", "replicas"), own_annotations(live)) == (True, {"note": "x"})


def test_items_of_a_list_are_found_by_their_keys_in_any_order() -> None:
    ports = [{"port": 1, "protocol": "TCP", "nodePort": 7}, {"port": 2, "protocol": "TCP", "nodePort": 8}]
    path = 'k:{{"port":{},"protocol":"TCP"}}'
    ours = {"f:port": {}, "f:protocol": {}}
    owned = {"f:spec": {"f:ports": {path.format(2): ours, path.format(1): ours, path.format(3): ours}}}
    entry = {"manager": names.FIELD_MANAGER, "operation": "Apply", "fieldsV1": owned}
    live = {"metadata": {"managedFields": [entry]}, "spec": {"ports": ports, "clusterIP": "10.0.0.1"}}
    wanted = {"ports": [{"port": 1, "protocol": "TCP"}, {"port": 2, "protocol": "TCP"}]}
    assert live_digest(live) == desired_digest({"metadata": {}, "spec": wanted})
    ports[0]["port"] = 3
    assert live_digest(live) != desired_digest({"metadata": {}, "spec": wanted})
