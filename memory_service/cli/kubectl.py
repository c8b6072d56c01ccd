"""Reads objects as kubectl prints them: by asking kubectl, or from what it printed before."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from memory_service.cli.connection import Exit
from memory_service.cli.diagnosis import NAMES, JsonObject, Kind, Ref, pod_selector
from memory_service.cli.shape import LISTED, POD, Items, Misshapen, Object, shaped

_PODS = Object({"items": Items(POD)})
_REQUEST_SECONDS = 20
"""How long the API server may take for one answer: somebody sits before a screen."""


class Unreadable(Exception):
    """An object cannot be read; the sentence says why and what to do, `code` how a command ends for it."""

    def __init__(self, sentence: str, code: Exit = Exit.USAGE) -> None:
        super().__init__(sentence)
        self.code = code


class Reader(Protocol):
    """Where objects come from."""

    @property
    def shown(self) -> str:
        """How commands that are shown to a person begin."""

    def get(self, kind: str, name: str, namespace: str | None) -> object:
        """Return what is printed of an object, of whatever shape; without a namespace, that of the reader.

        Raises:
            Missing: there is none.
            Unreadable: nobody can say.
        """

    def pods(self, ref: Ref) -> Sequence[JsonObject]:
        """Return the pods that the operator runs for an object; none where they cannot be read.

        Raises:
            Misshapen: one of them is none.
        """


class Missing(Unreadable):
    """There is no such object."""


@dataclass(frozen=True)
class Kubectl:
    """The program `kubectl`, with its own flags for where the cluster is."""

    context: str | None = None
    kubeconfig: str | None = None
    namespace: str | None = None

    @property
    def _command(self) -> list[str]:
        flags = {"--context": self.context, "--kubeconfig": self.kubeconfig}
        return ["kubectl", *(part for name, value in flags.items() if value is not None for part in (name, value))]

    @property
    def shown(self) -> str:
        """How commands that are shown to a person begin."""
        return shlex.join(self._command)

    def get(self, kind: str, name: str, namespace: str | None) -> object:
        """Return what is printed of an object; without a namespace, from that of the context."""
        return self._read([kind, name], namespace or self.namespace, f"{kind}/{name}")

    def pods(self, ref: Ref) -> Sequence[JsonObject]:
        """Return the pods that the operator runs for an object; none where they cannot be read."""
        selector = pod_selector(ref)
        if selector is None:
            return ()
        try:
            printed = self._read(["pods", "--selector", selector], ref.namespace, "pods")
        except Unreadable:
            return ()  # They only add to what the status says.
        items: Sequence[JsonObject] = shaped(printed, _PODS, f"what kubectl printed of pods with {selector}")["items"]
        return items

    def _read(self, what: Sequence[str], namespace: str | None, shown: str) -> object:
        scope = ["--namespace", namespace] if namespace is not None else []
        command = [*self._command, *scope, f"--request-timeout={_REQUEST_SECONDS}s", "get", *what, "-o", "json"]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=3 * _REQUEST_SECONDS,
                check=False,
            )
        except FileNotFoundError as error:
            raise Unreadable(
                "kubectl is not on the PATH: install it, or print the objects where it is "
                "(`kubectl get agentmem,memstore,mapi -o json`) and give the file with --file"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise Unreadable(f"kubectl did not end in {3 * _REQUEST_SECONDS} s", Exit.UNAVAILABLE) from error
        except (OSError, ValueError) as error:
            raise Unreadable(
                f"kubectl cannot be run: {error}; mend that, or give what it printed elsewhere with --file"
            ) from error
        if done.returncode == 0:
            return _decoded(done.stdout, f"what kubectl printed of {shown}")
        said = done.stderr.strip().splitlines() or [f"kubectl ended with {done.returncode}"]
        raise _failure(shown, said[-1])


def _decoded(text: str, called: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(
            f"{called} is not what `kubectl get -o json` prints: it is no JSON ({error}); "
            "see that nothing else prints there, such as a program around kubectl"
        ) from error


def _failure(shown: str, said: str) -> Unreadable:
    """Return what kubectl's last line means to somebody who asked for an object."""
    if "(NotFound)" in said:
        return Missing(f"{shown} does not exist; `--namespace` names where to look ({said})")
    if "doesn't have a resource type" in said:
        return Unreadable(f"the cluster knows no {shown.partition('/')[0]}: install the operator first ({said})")
    if "(Forbidden)" in said or "(Unauthorized)" in said or "must be logged in" in said:
        return Unreadable(f"{shown} may not be read by you: ask for the verb `get` on it ({said})")
    if "context" in said and "does not exist" in said:
        return Unreadable(f"{said}; `kubectl config get-contexts` lists them")
    return Unreadable(f"{shown} cannot be read: {said}", Exit.UNAVAILABLE)


class Printed:
    """What `kubectl get -o json` printed: one object, or a List of them."""

    shown = "kubectl"

    def __init__(self, file: str, namespace: str | None) -> None:
        self._file = file
        self._namespace = namespace
        self._objects = list(_objects(file))

    def own(self) -> list[JsonObject]:
        """Return the objects that can be explained, in the file's order."""
        kinds = {kind.value for kind in Kind}
        return [one for one in self._objects if one["kind"] in kinds and self._is_within(one, self._namespace)]

    def get(self, kind: str, name: str, namespace: str | None) -> object:
        """Return the object of that name; without a namespace there must be one alone."""
        wanted = namespace or self._namespace
        plural = kind.partition(".")[0]
        found = [
            one
            for one in self._objects
            if plural in _called(one["kind"]) and one["metadata"]["name"] == name and self._is_within(one, wanted)
        ]
        if not found:
            raise Missing(f"{self._file!r} does not hold it")
        if len(found) > 1:
            raise Unreadable(f"{self._file!r} holds several {kind}/{name}: name one with --namespace")
        return found[0]

    def pods(self, ref: Ref) -> Sequence[JsonObject]:
        """Return the object's pods that the file holds."""
        label, _, value = (pod_selector(ref) or "").partition("=")
        return [
            shaped(one, POD, f"Pod {one['metadata']['name']} in {self._file!r}")
            for one in self._objects
            if one["kind"] == "Pod"
            and self._is_within(one, ref.namespace)
            and one["metadata"].get("labels", {}).get(label) == value
        ]

    @staticmethod
    def _is_within(one: JsonObject, namespace: str | None) -> bool:
        return namespace is None or one["metadata"].get("namespace") == namespace


def _called(kind: str) -> tuple[str, ...]:
    return NAMES[Kind(kind)] if kind in set(Kind) else (kind.lower(),)


def _objects(file: str) -> Iterator[JsonObject]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise Unreadable(f"{file!r} cannot be read: {error}; give what `kubectl get -o json` printed") from error
    document = _decoded(text, repr(file))
    if not isinstance(document, Mapping) or "items" not in document:
        yield shaped(document, LISTED, repr(file))
        return
    items = document["items"]
    if not isinstance(items, list):
        raise Misshapen(repr(file), "items is no list")
    for number, item in enumerate(items):
        yield shaped(item, LISTED, repr(file), f"items[{number}]")
