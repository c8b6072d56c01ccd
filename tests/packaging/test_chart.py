"""The chart: closed values, the CRDs of crds/, few permissions, restricted pods, and alerts on metrics that exist."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.errors import ProgramFailed
from manifests import render
from memory_operator import names
from memory_operator.cluster import kinds
from memory_operator.crd.conditions import ConditionType, Reason
from memory_operator.desired.plan import REMOVED_KINDS
from memory_operator.metrics import Metrics
from memory_operator.settings import OperatorSettings, from_environment
from memory_service.observability.metrics import METRICS, PREFIX

Manifest = dict[str, Any]
Template = Callable[..., list[Manifest]]
CHART = render.CHART
CLUSTER_KINDS = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "Namespace",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
EVERYTHING = (
    "metrics.rules.enabled=true",
    "metrics.dashboard.enabled=true",
    "metrics.serviceMonitor.enabled=true",
    "metrics.namespaces={monitoring}",
    "stores.serviceMonitors=true",
    "injection.enabled=true",
    "development.postgres.enabled=true",
    "development.postgres.password=a-word",
    "development.postgres.storage.size=1Gi",
)
FREE = {"global", "affinity"}
"""Values whose content is Kubernetes' own; the API server checks it."""


@pytest.fixture(scope="module")
def template() -> Template:
    """Render the chart with some values set, each set once however often it is asked for."""
    known: dict[tuple[str, ...], list[Manifest]] = {}

    def rendered(*values: str) -> list[Manifest]:
        if values not in known:
            known[values] = render.template(*(part for value in values for part in ("--set", value)))
        return known[values]

    return rendered


def of_kind(objects: list[Manifest], kind: str) -> list[Manifest]:
    return [item for item in objects if item["kind"] == kind]


def only(objects: list[Manifest], kind: str, name: str | None = None) -> Manifest:
    found = [item for item in of_kind(objects, kind) if name is None or item["metadata"]["name"] == name]
    assert len(found) == 1, f"{kind} {name}: {[item['metadata']['name'] for item in found]}"
    return found[0]


def operator_pod(objects: list[Manifest]) -> Manifest:
    spec: Manifest = only(objects, "Deployment", "memplane-operator")["spec"]["template"]["spec"]
    return spec


def rules(objects: list[Manifest]) -> Iterator[tuple[Manifest, Manifest]]:
    """Each rule that the operator has, with the role that it is in."""
    for item in objects:
        is_test = "helm.sh/hook" in (item["metadata"].get("annotations") or {})
        is_for_people = "rbac.authorization.k8s.io/aggregate-to-edit" in (item["metadata"].get("labels") or {})
        if item["kind"] in ("Role", "ClusterRole") and not is_test and not is_for_people:
            for rule in item["rules"]:
                yield item, rule


def may(objects: list[Manifest], verb: str, group: str, resource: str) -> bool:
    return any(
        verb in rule["verbs"] and group in rule["apiGroups"] and resource in rule["resources"]
        for _, rule in rules(objects)
    )


# --- values


def test_helm_has_nothing_to_say_about_the_chart(template: Template) -> None:
    assert "0 chart(s) failed" in render.helm("lint", "--strict", str(CHART))


def _blocks(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    if schema.get("type") == "object":
        yield path, schema
    for name, inner in (schema.get("properties") or {}).items():
        yield from _blocks(inner, f"{path}.{name}".strip("."))
    for name, inner in (schema.get("$defs") or {}).items():
        yield from _blocks(inner, f"$defs.{name}")


def test_the_values_schema_is_closed_in_every_block() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    blocks = dict(_blocks(schema))
    assert len(blocks) > 20
    open_blocks = {path for path, block in blocks.items() if "additionalProperties" not in block}
    assert open_blocks == FREE
    wide = [path for path, block in blocks.items() if block.get("additionalProperties") is True]
    assert wide == []


def _undefaulted(schema: Mapping[str, Any], defs: Mapping[str, Any], values: Any, path: str = "") -> Iterator[str]:
    """The values that the schema describes and values.yaml lacks."""
    if "$ref" in schema:
        schema = defs[schema["$ref"].rpartition("/")[2]]
    for name, inner in (schema.get("properties") or {}).items():
        where = f"{path}.{name}".strip(".")
        if name not in values:
            yield where
        else:
            yield from _undefaulted(inner, defs, values[name], where)


def test_every_value_has_a_default() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    lacking = set(_undefaulted(schema, schema["$defs"], yaml.safe_load((CHART / "values.yaml").read_text())))
    left_open = {f"pacing.{name}" for name in schema["properties"]["pacing"]["properties"]}
    assert lacking == {*left_open, "global", "development.postgres.resources.limits"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("replcas=1", "additional properties 'replcas' not allowed"),
        ("replicas=-1", "at '/replicas': minimum: got -1, want 0"),
        ("replicas=two", "at '/replicas': got string, want integer"),
        ("image.tags=x", "at '/image': additional properties 'tags' not allowed"),
        ("image.pullPolicy=Sometimes", "must be one of 'Always', 'IfNotPresent', 'Never'"),
        ("image.digest=latest", "at '/image/digest'"),
        ("watchNamespaces=default", "at '/watchNamespaces': got string, want array"),
        ("watchNamespaces={Team_A}", "at '/watchNamespaces/0'"),
        ("watchNamespaces={a,a}", "items at 0 and 1 are equal"),
        ("logLevel=info", "must be one of 'DEBUG', 'INFO', 'WARNING', 'ERROR'"),
        ("crds.kep=false", "at '/crds': additional properties 'kep' not allowed"),
        ("rbac.tokenReview=perhaps", "at '/rbac/tokenReview': got string, want boolean"),
        ("stores.networkPolicy=false", "at '/stores': additional properties 'networkPolicy' not allowed"),
        ("pacing.workers=0", "at '/pacing/workers': minimum: got 0, want 1"),
        ("pacing.serviceImage=x", "at '/pacing': additional properties 'serviceImage' not allowed"),
        ("resources.requests.memory=lots", "at '/resources/requests/memory'"),
        ("resources.request.cpu=1", "at '/resources': additional properties 'request' not allowed"),
        ("metrics.serviceMonitor.interval=often", "at '/metrics/serviceMonitor/interval'"),
        ("metrics.rules.runbookURL=ftp://x", "at '/metrics/rules/runbookURL'"),
        ("development.postgres.userID=0", "at '/development/postgres/userID': minimum: got 0, want 1"),
        ("development.postgres.database=a-b", "at '/development/postgres/database'"),
        ("postgres.enabled=true", "additional properties 'postgres' not allowed"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(template: Template, value: str, message: str) -> None:
    with pytest.raises(ProgramFailed) as refused:
        template(value)
    assert message in str(refused.value)


def test_a_digest_wins_over_a_tag(template: Template) -> None:
    digest = "sha256:" + "a" * 64
    pod = operator_pod(template("image.tag=x", f"image.digest={digest}"))
    assert pod["containers"][0]["image"] == f"ghcr.io/memplane/memplane-operator@{digest}"


def test_the_chart_has_the_version_of_the_package(repository: Path) -> None:
    version = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    images = [item["image"] for item in yaml.safe_load(chart["annotations"]["artifacthub.io/images"])]
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version
    assert images == [f"{values[block]['repository']}:{version}" for block in ("image",)] + [
        f"{values['stores']['image']['repository']}:{version}"
    ]
    assert OperatorSettings().service_image == images[1]


def _texts(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Whatever Kubernetes wants to be a text: names, namespaces, labels and variables, with its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            where = f"{path}.{key}"
            if path.endswith(("labels", "matchLabels", "annotations")) or key in (
                "name",
                "namespace",
                "serviceAccountName",
                "priorityClassName",
                "storageClassName",
            ):
                yield where, inner
            yield from _texts(inner, where)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _texts(inner, f"{path}[{number}]")


def test_a_name_that_looks_like_a_number_or_a_boolean_stays_a_text() -> None:
    words = {
        "serviceAccount.name": "0123",
        "watchNamespaces": "{123,true}",
        "fullnameOverride": "42",
        "priorityClassName": "1e3",
        "development.postgres.storage.storageClassName": "010",
    }
    sets = [part for key, value in words.items() for part in ("--set-string", f"{key}={value}")]
    flags = [part for value in EVERYTHING for part in ("--set", value)]
    objects = render.template(*flags, *sets, release="123", namespace="12345")
    found = list(_texts([item for item in objects if item["kind"] != "CustomResourceDefinition"]))
    found += list(_texts([item["metadata"] for item in of_kind(objects, "CustomResourceDefinition")]))
    assert [(path, value) for path, value in found if not isinstance(value, str | dict)] == []
    texts = {value for _, value in found if isinstance(value, str)}
    assert {"123", "12345", "0123", "true", "42", "1e3", "010"} <= texts


def test_the_chart_claims_the_highest_capability_level_up_to_which_all_are_claimed(repository: Path) -> None:
    page = (repository / "docs" / "reference" / "capabilities.md").read_text()
    levels = re.findall(r"^\| [IV]+\. ([A-Za-z ]+) \| (.*) \|$", page, re.MULTILINE)
    assert len(levels) == 5
    *_, last = itertools.takewhile(lambda level: level[1] == "claimed", levels)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["annotations"]["artifacthub.io/operatorCapabilities"].lower() == last[0].lower()


def test_the_notes_say_what_is_not_safe(template: Template) -> None:
    def notes(*values: str) -> str:
        sets = [part for value in values for part in ("--set", value)]
        text = render.helm("install", "memplane", str(CHART), "--dry-run=client", "--namespace", "x", *sets)
        return text.partition("NOTES:")[2]

    assert "Tokens travel in the clear" in notes()
    assert "WARNING" not in notes()
    warned = notes(
        "crds.keep=false",
        "rbac.tokenReview=false",
        "stores.networkPolicies=false",
        "development.postgres.enabled=true",
    )
    assert warned.count("WARNING") == 4


# --- CRDs, plain manifests


def test_the_chart_and_the_manifests_are_rendered_from_what_is_here(template: Template, repository: Path) -> None:
    wanted = render.rendered()
    stale = [str(path.relative_to(repository)) for path, text in wanted.items() if path.read_text() != text]
    assert stale == [], "run `make manifests`"
    there = {*(CHART / "files" / "crds").iterdir(), *(repository / "manifests").glob("*.yaml")}
    assert there == set(wanted)


def crds_of(repository: Path) -> dict[str, Manifest]:
    found = [yaml.safe_load(path.read_text()) for path in (repository / "crds").glob("*.yaml")]
    return {crd["metadata"]["name"]: crd for crd in found}


def test_the_rendered_crds_equal_those_of_the_repository(template: Template, repository: Path) -> None:
    plain = list(yaml.safe_load_all((repository / "manifests" / "crds.yaml").read_text()))
    for objects in (of_kind(template(), "CustomResourceDefinition"), plain):
        assert {item["metadata"]["name"]: item["spec"] for item in objects} == {
            name: crd["spec"] for name, crd in crds_of(repository).items()
        }


def test_the_crds_stay_when_the_release_goes_unless_told_otherwise(template: Template) -> None:
    def kept(*values: str) -> list[bool]:
        crds = of_kind(template(*values), "CustomResourceDefinition")
        annotations = [crd["metadata"].get("annotations") or {} for crd in crds]
        return [item.get("helm.sh/resource-policy") == "keep" for item in annotations]

    assert kept() == [True, True, True]
    assert kept("crds.keep=false") == [False, False, False]
    assert kept("crds.enabled=false") == []


def test_pods_are_given_their_binding_by_the_api_server_only_where_asked_for(template: Template) -> None:
    assert of_kind(template(), "MutatingAdmissionPolicy") == []
    everywhere = only(template("injection.enabled=true"), "MutatingAdmissionPolicy")["spec"]
    some = only(template("injection.enabled=true", "watchNamespaces={a,b}"), "MutatingAdmissionPolicy")["spec"]
    assert everywhere["failurePolicy"] == "Ignore", "memory never keeps a pod from starting"
    assert "namespaceSelector" not in everywhere["matchConstraints"]
    (watched,) = some["matchConstraints"]["namespaceSelector"]["matchExpressions"]
    assert (watched["operator"], watched["values"]) == ("In", ["a", "b"])


def test_the_deletion_of_stores_is_guarded_in_the_namespaces_that_are_served(template: Template) -> None:
    assert of_kind(template("deletionGuard.enabled=false"), "ValidatingAdmissionPolicy") == []
    everywhere = only(template(), "ValidatingAdmissionPolicy")["spec"]
    some = only(template("watchNamespaces={a,b}"), "ValidatingAdmissionPolicy")["spec"]
    assert everywhere["failurePolicy"] == "Ignore", "a fault of the guard holds no deletion up"
    assert "namespaceSelector" not in everywhere["matchConstraints"]
    (watched,) = some["matchConstraints"]["namespaceSelector"]["matchExpressions"]
    assert (watched["operator"], watched["values"]) == ("In", ["a", "b"])


def test_the_manifests_name_nothing_of_helm(repository: Path) -> None:
    for path in (repository / "manifests").glob("*.yaml"):
        assert not re.search("helm", path.read_text().partition("\n")[2], re.IGNORECASE), path.name


# --- permissions


@pytest.mark.parametrize("values", [(), ("watchNamespaces={a,b}",), EVERYTHING])
def test_the_operator_has_no_verb_on_secrets_and_no_wildcard(template: Template, values: tuple[str, ...]) -> None:
    for role, rule in rules(template(*values)):
        assert "secrets" not in rule["resources"], role["metadata"]["name"]
        assert "*" not in [*rule["resources"], *rule["verbs"], *rule["apiGroups"]], role["metadata"]["name"]
        assert not {"escalate", "impersonate", "deletecollection", "approve"} & set(rule["verbs"])
        assert not {"pods/exec", "serviceaccounts/token", "nodes"} & set(rule["resources"])
        assert "pods" not in rule["resources"] or rule["verbs"] == ["list"]


def test_the_operator_binds_one_role_and_writes_one_cluster_role_binding(template: Template) -> None:
    binding = [rule for _, rule in rules(template()) if "bind" in rule["verbs"]]
    assert [(rule["resources"], rule["resourceNames"]) for rule in binding] == [
        (["clusterroles"], ["memplane-token-review"])
    ]
    writing = [
        rule
        for _, rule in rules(template())
        if "clusterrolebindings" in rule["resources"] and set(rule["verbs"]) - {"list", "watch"}
    ]
    assert [(rule["verbs"], rule["resourceNames"]) for rule in writing] == [
        (["create", "patch"], ["memplane-token-review"])
    ]
    review = only(template(), "ClusterRole", "memplane-token-review")
    assert review["rules"] == [
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}
    ]


def _permissions(objects: list[Manifest]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for _, rule in rules(objects)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _used(settings: OperatorSettings) -> set[tuple[str, str, str]]:
    """What the operator does, by group, resource and verb."""
    used = {(kind.group, kind.plural, verb) for kind in kinds.watched(settings) for verb in ("list", "watch")}
    for kind in (*kinds.watched(settings), kinds.EVENT):
        verbs = {"create"} if kind == kinds.EVENT else set()
        if kind in kinds.CHILDREN:
            verbs |= {"get", "create", "patch"}
        if kind.name in REMOVED_KINDS:
            verbs |= {"delete"}
        if kind == kinds.CLUSTER_ROLE_BINDING:
            verbs |= {"create", "patch"}
            used |= {(kind.group, "clusterroles", "bind"), ("authentication.k8s.io", "tokenreviews", "create")}
        used |= {(kind.group, kind.plural, verb) for verb in verbs}
    used |= {(names.GROUP, f"{kind.plural}/status", "patch") for kind in kinds.OWN}
    used |= {(names.GROUP, f"{kind.plural}/finalizers", "update") for kind in (kinds.MEMORY_STORE, kinds.AGENT_MEMORY)}
    used |= {(kinds.LEASE.group, kinds.LEASE.plural, verb) for verb in ("create", "get", "update")}
    return used | {(kinds.POD.group, kinds.POD.plural, "list")}


@pytest.mark.parametrize(
    "values",
    [
        (),
        ("watchNamespaces={a,b}", "rbac.tokenReview=false"),
        ("stores.serviceMonitors=true",),
        ("stores.networkPolicies=false",),
        ("rbac.tokenReview=false",),
    ],
)
def test_the_operator_has_each_verb_that_it_uses_and_no_other(template: Template, values: tuple[str, ...]) -> None:
    settings = OperatorSettings(
        watch_namespaces=("a", "b") if "watchNamespaces={a,b}" in values else (),
        service_monitors="stores.serviceMonitors=true" in values,
        network_policies="stores.networkPolicies=false" not in values,
        token_review_role="" if "rbac.tokenReview=false" in values else "memplane-token-review",
    )
    given, used = _permissions(template(*values)), _used(settings)
    assert given - used == set(), "nobody uses these"
    assert used - given == set(), "these are missing"


def test_the_permissions_with_which_the_operator_is_tested_are_the_charts(template: Template, repository: Path) -> None:
    tested = (repository / "tests" / "integration" / "operator" / "role.yaml").read_text()
    assert _permissions(template()) == _permissions([item for item in yaml.safe_load_all(tested) if item])


def test_an_operator_of_some_namespaces_has_a_role_in_each_and_no_cluster_role(template: Template) -> None:
    objects = template(
        "watchNamespaces={a,b}",
        "rbac.tokenReview=false",
        "rbac.aggregate=false",
        "crds.enabled=false",
        "deletionGuard.enabled=false",
    )
    assert [item["kind"] for item in objects if item["kind"] in CLUSTER_KINDS] == []
    roles = {
        item["metadata"]["namespace"]
        for item in of_kind(objects, "Role")
        if item["metadata"]["name"] == "memplane-operator"
    }
    assert roles == {"a", "b"}
    assert not may(objects, "list", "", "namespaces")


def test_an_operator_of_some_namespaces_lets_their_stores_review_tokens(template: Template) -> None:
    objects = template("watchNamespaces={a,b}")
    binding = only(objects, "ClusterRoleBinding")
    assert [item["name"] for item in binding["subjects"]] == ["system:serviceaccounts:a", "system:serviceaccounts:b"]
    # An operator of all namespaces has made an object of this name, which Helm would not take over.
    assert binding["metadata"]["name"] != environment_of(template())["MEMPLANE_OPERATOR_TOKEN_REVIEW_BINDING"]
    assert not may(objects, "create", "rbac.authorization.k8s.io", "clusterrolebindings")
    assert "MEMPLANE_OPERATOR_TOKEN_REVIEW_ROLE" not in environment_of(objects)


def test_people_who_may_view_or_edit_a_namespace_may_do_so_with_our_kinds(template: Template) -> None:
    view, edit = (only(template(), "ClusterRole", f"memplane-{name}") for name in ("view", "edit"))
    assert view["rules"][0]["verbs"] == ["get", "list", "watch"]
    assert "rbac.authorization.k8s.io/aggregate-to-view" not in edit["metadata"]["labels"]
    assert {"memorystores/scale", "agentmemories/scale"} <= set(edit["rules"][0]["resources"])
    assert {kind.plural for kind in kinds.OWN} <= set(view["rules"][0]["resources"]) & set(
        edit["rules"][0]["resources"]
    )


# --- the operator's pods


def environment_of(objects: list[Manifest]) -> dict[str, str]:
    return {item["name"]: item.get("value", "from-the-pod") for item in operator_pod(objects)["containers"][0]["env"]}


def test_the_operator_understands_every_variable_that_it_is_given(template: Template) -> None:
    objects = template(
        "watchNamespaces={b,a}",
        "metrics.namespaces={m}",
        "metrics.serviceMonitor.labels.release=prometheus",
        "metrics.serviceMonitor.labels.team=a",
        "pacing.workers=3",
        "pacing.requestsPerSecond=12",
    )
    settings = from_environment(environment_of(objects))
    assert settings.watch_namespaces == ("a", "b")
    assert settings.metrics_namespaces == ("m",)
    assert settings.service_monitor_labels == {"release": "prometheus", "team": "a"}
    assert (settings.workers, settings.requests_per_second) == (3, 12)
    assert settings.service_image == "ghcr.io/memplane/memplane:0.1.0"


def test_every_setting_can_be_given_by_the_chart_or_is_for_tests_alone(template: Template) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    pacing = {re.sub("([A-Z])", r"_\1", name).lower() for name in schema["properties"]["pacing"]["properties"]}
    given = {name.removeprefix("MEMPLANE_OPERATOR_").lower() for name in environment_of(template())}
    settings = set(OperatorSettings.__dataclass_fields__)
    assert pacing | given == settings - {"health_address", "bind_address"}


def test_the_stores_admit_the_operator_by_labels_that_its_pods_have(template: Template) -> None:
    objects = template("podLabels.team=memory")
    settings = from_environment(environment_of(objects))
    pod = only(objects, "Deployment", "memplane-operator")["spec"]["template"]["metadata"]["labels"]
    assert settings.pod_labels.items() <= pod.items()
    assert pod["team"] == "memory"
    assert only(objects, "Deployment")["spec"]["selector"]["matchLabels"] == dict(settings.pod_labels)


def test_the_operator_shows_the_stores_a_token_for_its_own_audience(template: Template) -> None:
    pod = operator_pod(template())
    (source,) = next(item for item in pod["volumes"] if item["name"] == "token")["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == names.OPERATOR_AUDIENCE
    (mount,) = [item for item in pod["containers"][0]["volumeMounts"] if item["name"] == "token"]
    assert f"{mount['mountPath']}/token" == environment_of(template())["MEMPLANE_OPERATOR_TOKEN_FILE"]


def pods(objects: list[Manifest]) -> list[Manifest]:
    found = [item["spec"] for item in of_kind(objects, "Pod")]
    return found + [
        item["spec"]["template"]["spec"] for kind in ("Deployment", "StatefulSet") for item in of_kind(objects, kind)
    ]


def test_every_pod_is_restricted(template: Template) -> None:
    found = pods(template(*EVERYTHING))
    assert len(found) == 3
    for pod in found:
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["enableServiceLinks"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert [volume for volume in pod.get("volumes") or () if "hostPath" in volume] == []
        for container in pod["containers"]:
            inner = container["securityContext"]
            assert inner["allowPrivilegeEscalation"] is False
            assert inner["readOnlyRootFilesystem"] is True
            assert inner["capabilities"] == {"drop": ["ALL"]}


def test_the_operator_is_probed_where_it_answers(template: Template) -> None:
    (container,) = operator_pod(template())["containers"]
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    patience = container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"]
    assert patience >= 300
    assert container["ports"][0]["containerPort"] == from_environment(environment_of(template())).port


def test_two_operators_have_a_disruption_budget_and_one_has_none(template: Template) -> None:
    assert len(of_kind(template("replicas=2"), "PodDisruptionBudget")) == 1
    assert of_kind(template("replicas=1"), "PodDisruptionBudget") == []


def test_only_the_named_namespaces_may_scrape_the_operator(template: Template) -> None:
    assert only(template(), "NetworkPolicy")["spec"]["ingress"] == []
    (rule,) = only(template("metrics.namespaces={monitoring}"), "NetworkPolicy")["spec"]["ingress"]
    assert rule["from"][0]["namespaceSelector"]["matchExpressions"][0]["values"] == ["monitoring"]
    assert of_kind(template("networkPolicy.enabled=false"), "NetworkPolicy") == []


def test_what_needs_other_peoples_kinds_or_is_for_development_is_off(template: Template) -> None:
    rendered = {item["kind"] for item in template()}
    assert not {"ServiceMonitor", "PrometheusRule", "StatefulSet", "Secret"} & rendered
    everything = {item["kind"] for item in template(*EVERYTHING)}
    assert {"ServiceMonitor", "PrometheusRule", "StatefulSet", "Secret"} <= everything


def test_the_development_postgres_is_found_by_the_uri_in_its_secret(template: Template) -> None:
    objects = template("development.postgres.enabled=true", "development.postgres.password=a/b c")
    uri = only(objects, "Secret")["stringData"]["uri"]
    assert uri == "postgresql://postgres:a%2Fb+c@memplane-postgres.memplane-system.svc.cluster.local:5432/memory"
    service = only(objects, "Service", "memplane-postgres")
    labels = only(objects, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert (
        not service["spec"]["selector"].items()
        <= only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    )


# --- alerts and the dashboard


def known_metrics() -> set[str]:
    suffix = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
    found = {f"{PREFIX}{metric.name}{end}" for metric in METRICS for end in suffix[metric.kind]}
    for family in Metrics().registry.collect():
        found |= {f"{family.name}{end}" for end in suffix[family.type]}
    return found | {"memplane_operator_objects"}


def alerts() -> list[Manifest]:
    content = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    return [rule for group in content["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    asked = [item["query"]["query"] for item in dashboard["templating"]["list"] if item["type"] == "query"]
    return [*shown, *asked, *(rule["expr"] for rule in alerts())]


def test_alerts_and_dashboard_ask_for_metrics_that_exist() -> None:
    asked = {name for text in expressions() for name in re.findall(r"\bmemplane_[a-z_]+\b", text)}
    assert len(asked) > 20
    assert asked - known_metrics() == set()


def test_the_dashboard_shows_what_waits_to_be_rolled_out_and_no_panel_lies_on_another() -> None:
    panels = json.loads((CHART / "files" / "dashboard.json").read_text())["panels"]
    shown = {target["expr"]: panel["title"] for panel in panels for target in panel.get("targets", ())}
    assert shown["max(memplane_operator_rollouts_waiting)"] == "Roll-outs that wait"
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_alerts_and_dashboard_select_by_labels_that_exist() -> None:
    labels = {f"{PREFIX}{metric.name}": set(metric.labels) for metric in METRICS}
    for name, collector in Metrics().registry._names_to_collectors.items():
        labels[name.removesuffix("_total").removesuffix("_bucket")] = set(getattr(collector, "_labelnames", ()))
    labels["memplane_operator_objects"] = {"kind", "condition", "status", "reason"}
    from_the_scrape = {"namespace", "pod", "service", "le"}
    for text in expressions():
        for name, selector in re.findall(r"\b(memplane_[a-z_]+)\{([^}]*)\}", text):
            used = set(re.findall(r"([a-z_]+)!?=", selector))
            base = re.sub("_(total|bucket|sum|count)$", "", name)
            assert used <= labels[base] | from_the_scrape, text


def test_alerts_select_by_conditions_and_reasons_that_the_operator_writes() -> None:
    written = {"condition": set(ConditionType), "reason": set(Reason)}
    found = set()
    for rule in alerts():
        for name, values in re.findall(r"\b(condition|reason)!?[=~]+\"([^\"]*)\"", rule["expr"]):
            found.add(name)
            assert set(values.split("|")) <= written[name], rule["alert"]
    assert found == set(written)


def test_every_alert_has_a_runbook_and_every_runbook_an_alert(template: Template, repository: Path) -> None:
    rule = only(template(*EVERYTHING), "PrometheusRule")
    urls = [item["annotations"]["runbook_url"] for group in rule["spec"]["groups"] for item in group["rules"]]
    folder = "https://github.com/memplane/memplane/blob/main/"
    paths = {repository / url.removeprefix(folder) for url in urls}
    assert len(urls) == len(alerts())
    assert paths == set((repository / "docs" / "how-to" / "runbooks").glob("*.md"))
    page = (repository / "docs" / "how-to" / "alerts.md").read_text()
    rows = re.findall(r"^\| \[(\w+)\]\(runbooks/([a-z-]+)\.md\) \| (\w+) \| (\w+) \|", page, re.MULTILINE)
    assert [(row[0], row[2], row[3]) for row in rows] == [
        (item["alert"], item["labels"]["severity"], item["for"]) for item in alerts()
    ]
    assert {f"{row[1]}.md" for row in rows} == {path.name for path in paths}


def rendered_alert(objects: list[Manifest], name: str) -> Manifest:
    groups = only(objects, "PrometheusRule")["spec"]["groups"]
    (found,) = [rule for group in groups for rule in group["rules"] if rule["alert"] == name]
    alert: Manifest = found
    return alert


@pytest.mark.parametrize(
    ("values", "seconds"), [((), 1200), (("pacing.resyncSeconds=60",), 1200), (("pacing.resyncSeconds=86400",), 345600)]
)
def test_the_operator_is_late_with_a_resync_by_the_interval_that_it_has(
    template: Template, values: tuple[str, ...], seconds: int
) -> None:
    expression = rendered_alert(template("metrics.rules.enabled=true", *values), "MemplaneOperatorNotResyncing")["expr"]
    assert f"memplane_operator_resync_timestamp_seconds > {seconds})" in expression


def test_a_release_asks_for_a_leader_of_its_own(template: Template) -> None:
    expression = rendered_alert(template("metrics.rules.enabled=true"), "MemplaneOperatorNoLeader")["expr"]
    assert set(re.findall("memplane_operator_leader[^)]*", expression)) == {
        'memplane_operator_leader{namespace="memplane-system"}'
    }


def test_every_alert_says_how_bad_it_is_and_what_users_see() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["for"]


def test_the_dashboards_panels_have_ids_of_their_own_and_do_not_overlap(template: Template) -> None:
    text = only(template("metrics.dashboard.enabled=true"), "ConfigMap")["data"]["memplane.json"]
    panels = json.loads(text)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
