"""The ServiceAccount of a store and the little that it may do: watch its own bindings, review tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memory_operator import names
from memory_operator.crd.base import ObjectKey
from memory_operator.crd.memory_store import MemoryStore
from memory_operator.desired.metadata import Manifest, child, store_labels
from memory_operator.settings import OperatorSettings


def account_name(store: MemoryStore) -> str:
    """Return the ServiceAccount of a store's pods."""
    return store.spec.service_account_name or names.memory(store.id.name)


def service_account(store: MemoryStore) -> list[Manifest]:
    """Return the account, unless the spec names one: that is somebody else's to keep, and never ours to remove."""
    if store.spec.service_account_name is not None:
        return []
    return [
        child(
            store.id,
            "v1",
            "ServiceAccount",
            names.memory(store.id.name),
            store_labels(store.id.name),
            automountServiceAccountToken=False,
        )
    ]


def bindings_role(
    store: MemoryStore, config_maps: Sequence[str], earlier_accounts: Sequence[str] = ()
) -> list[Manifest]:
    """Return the Role that allows to watch these ConfigMaps, and its binding to the accounts of the store's pods."""
    name, labels = names.memory(store.id.name), store_labels(store.id.name)
    rules = [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": list(config_maps),
            "verbs": ["get", "list", "watch"],
        }
    ]
    subjects = [
        {"kind": "ServiceAccount", "name": account, "namespace": store.id.namespace}
        for account in (account_name(store), *earlier_accounts)
    ]
    role_ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    api = "rbac.authorization.k8s.io/v1"
    return [
        child(store.id, api, "Role", name, labels, rules=rules),
        child(store.id, api, "RoleBinding", name, labels, roleRef=role_ref, subjects=subjects),
    ]


def token_review_binding(accounts: Iterable[ObjectKey], settings: OperatorSettings) -> Manifest:
    """Return the one ClusterRoleBinding that lets the stores' accounts (namespace and name) review tokens."""
    subjects = [
        {"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace}
        for account in sorted(set(accounts))
    ]
    manifest: Manifest = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {
            "name": settings.token_review_binding,
            "labels": {names.NAME_LABEL: "memplane", names.MANAGED_BY_LABEL: names.MANAGED_BY},
        },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": settings.token_review_role,
        },
    }
    if subjects:
        manifest["subjects"] = subjects
    return manifest
