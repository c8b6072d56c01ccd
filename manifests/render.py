"""`make manifests`: the chart's copy of the CRDs, and plain YAML for those who do not use Helm.

crds.yaml has the CRDs, install.yaml the namespace and an operator for all namespaces. Both are what the chart renders,
without what only Helm reads. Apply them with `kubectl apply --server-side`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from e2e.cluster import programs  # noqa: E402  (the repository's root is put on the path first)
from e2e.cluster.commands import run  # noqa: E402
from e2e.cluster.tiers import Tier  # noqa: E402

Manifest = dict[str, Any]
CHART = REPOSITORY / "charts" / "memplane"
NAMESPACE = "memplane-system"
_HEADER = "# Rendered from charts/memplane by `make manifests`; do not edit.\n"
_HELM_LABELS = ("helm.sh/chart", "app.kubernetes.io/managed-by")
_HELM_ANNOTATIONS = "helm.sh/"


def helm(*arguments: str) -> str:
    """Run helm and return what it printed; it is fetched first if it is not there."""
    programs.require(("helm", "kubectl"), Tier.CONTROL_PLANE)
    return run([programs.path("helm"), *arguments], timeout_seconds=60)


def template(*arguments: str, release: str = "memplane", namespace: str = NAMESPACE) -> list[Manifest]:
    """Return the objects that the chart renders with these arguments of `helm template`."""
    text = helm("template", release, str(CHART), "--namespace", namespace, *arguments)
    return [item for item in yaml.safe_load_all(text) if item]


def plain(manifest: Mapping[str, Any]) -> Manifest:
    """Return an object without the labels and annotations that only Helm reads."""
    meta = dict(manifest["metadata"])
    meta["labels"] = {key: value for key, value in (meta.get("labels") or {}).items() if key not in _HELM_LABELS}
    annotations = meta.pop("annotations", None) or {}
    kept = {key: value for key, value in annotations.items() if not key.startswith(_HELM_ANNOTATIONS)}
    if kept:
        meta["annotations"] = kept
    return {**manifest, "metadata": meta}


def _text(manifests: Sequence[Manifest]) -> str:
    return _HEADER + yaml.safe_dump_all(manifests, sort_keys=False, allow_unicode=True, width=120, explicit_start=True)


def rendered() -> dict[Path, str]:
    """Return every file that this script writes, by its path."""
    files = {CHART / "files" / "crds" / path.name: path.read_text() for path in (REPOSITORY / "crds").glob("*.yaml")}
    objects = [plain(item) for item in template("--no-hooks")]
    crds = [item for item in objects if item["kind"] == "CustomResourceDefinition"]
    others = [item for item in objects if item["kind"] != "CustomResourceDefinition"]
    labels = {"app.kubernetes.io/name": "memplane", "pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    files[REPOSITORY / "manifests" / "crds.yaml"] = _text(crds)
    files[REPOSITORY / "manifests" / "install.yaml"] = _text([namespace, *others])
    return files


def main() -> None:
    """Write the files; the chart's CRDs first, since the chart is rendered with them."""
    for path in (CHART / "files" / "crds").glob("*.yaml"):
        path.unlink()
    for path in (REPOSITORY / "crds").glob("*.yaml"):
        (CHART / "files" / "crds" / path.name).write_text(path.read_text())
    for path, text in rendered().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
