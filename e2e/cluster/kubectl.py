"""kubectl and helm against one cluster, with the few verbs tests use most as methods."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import programs
from .commands import cluster_environment, run
from .errors import ProgramFailed

Manifest = Mapping[str, Any]


@dataclass(frozen=True)
class Kubectl:
    """kubectl with a kubeconfig and, when named, a namespace."""

    kubeconfig: Path
    namespace: str | None = None

    def in_namespace(self, namespace: str) -> "Kubectl":
        return Kubectl(self.kubeconfig, namespace)

    def command(self, *arguments: str) -> list[str]:
        """The command line, for a caller that runs it."""
        scope = ["--namespace", self.namespace] if self.namespace else []
        return [str(programs.path("kubectl")), "--kubeconfig", str(self.kubeconfig), *scope, *arguments]

    def __call__(self, *arguments: str, stdin: str | None = None, timeout_seconds: float = 120) -> str:
        """Run kubectl and return what it printed.

        Raises:
            ProgramFailed: kubectl ended with an error; `output` has what it said.
        """
        return run(
            self.command(*arguments), stdin=stdin, environment=cluster_environment(), timeout_seconds=timeout_seconds
        )

    def apply(self, *manifests: Manifest | str | Path) -> str:
        """Apply objects server-side: mappings, YAML text, or paths of files."""
        said = []
        objects = [m for m in manifests if isinstance(m, Mapping)]
        if objects:
            said.append(self._apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})))
        for manifest in manifests:
            if isinstance(manifest, Path):
                said.append(self._apply(manifest.read_text()))
            elif isinstance(manifest, str):
                said.append(self._apply(manifest))
        return "".join(said)

    def _apply(self, text: str) -> str:
        return self("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """One object.

        Raises:
            ProgramFailed: there is none, or it may not be read.
        """
        found: dict[str, Any] = json.loads(self("get", kind, name, "-o", "json"))
        return found

    def find(self, kind: str, name: str) -> dict[str, Any] | None:
        """One object, or None."""
        text = self("get", kind, name, "-o", "json", "--ignore-not-found")
        found: dict[str, Any] | None = json.loads(text) if text.strip() else None
        return found

    def list(self, kind: str, *, selector: str | None = None, everywhere: bool = False) -> list[dict[str, Any]]:
        """All objects of a kind."""
        narrowed = ["--selector", selector] if selector else []
        wide = ["--all-namespaces"] if everywhere else []
        items: list[dict[str, Any]] = json.loads(self("get", kind, "-o", "json", *narrowed, *wide))["items"]
        return items

    def patch(self, kind: str, name: str, change: Manifest, *, subresource: str | None = None) -> None:
        """Merge-patch one object."""
        below = ["--subresource", subresource] if subresource else []
        self("patch", kind, name, "--type", "merge", "--patch", json.dumps(change), *below)

    def delete(self, kind: str, name: str, *, wait: bool = True, grace_seconds: int | None = None) -> None:
        """Delete one object; one that is not there is no error."""
        grace = [] if grace_seconds is None else [f"--grace-period={grace_seconds}"]
        self("delete", kind, name, "--ignore-not-found", f"--wait={str(wait).lower()}", *grace)

    def wait(self, condition: str, *what: str, seconds: float = 60) -> None:
        """Wait for `condition=Ready`, `delete` or `jsonpath=...` of `pod/x`."""
        self("wait", f"--for={condition}", f"--timeout={seconds:g}s", *what, timeout_seconds=seconds + 10)

    def execute(self, pod: str, *command: str, container: str | None = None, timeout_seconds: float = 60) -> str:
        """Run a command in a pod and return its standard output."""
        inside = ["--container", container] if container else []
        return self("exec", pod, *inside, "--", *command, timeout_seconds=timeout_seconds)

    def refusal(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl says when it is expected to be refused."""
        try:
            said = self(*arguments, stdin=stdin)
        except ProgramFailed as error:
            return error.output
        raise AssertionError(f"kubectl {' '.join(arguments)} was accepted: {said}")

    def open(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start kubectl and leave it running (port-forward, get --watch); the caller ends it."""
        return subprocess.Popen(
            self.command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=cluster_environment(),
        )


def helm(kubeconfig: Path, arguments: Sequence[str], timeout_seconds: float = 300) -> str:
    """Run helm and return what it printed; its own files stay in the kubeconfig's folder."""
    kinds = ("CACHE", "CONFIG", "DATA")
    homes = {f"HELM_{kind}_HOME": str(kubeconfig.parent / f"helm-{kind.lower()}") for kind in kinds}
    environment = cluster_environment({"KUBECONFIG": str(kubeconfig), **homes})
    return run([programs.path("helm"), *arguments], environment=environment, timeout_seconds=timeout_seconds)
