"""How an agent finds its store by name, and what its binding says.

Each value is taken from the first of these that has it: explicit arguments, the binding folder, the environment;
the endpoint goes on to the store's Service in the agent's namespace, and to the laptop's default address.

The folder (`/var/run/memplane` unless MEMPLANE_BINDING_DIR names another) is projected from a ConfigMap beside the
agent's token:

    token           the agent's ServiceAccount token; read again when it changes
    *.json          one document per bound store, the fields of `ProjectedBinding`; read again when they change
    ca.crt          the authority of the store's certificate (PEM), if its document has no `ca`

`resolve` is pure; `BindingSource` reads the files.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from memory_service.client.errors import InvalidRequest, from_validation, invalid
from memory_service.client.subjects import agent_of, audiences_of, unseen_agent_of
from memory_service.contract.expectations import expectation
from memory_service.contract.pods import BINDING_FOLDER, CA_FILE, TOKEN_FILE
from memory_service.contract.problems import FieldError
from memory_service.contract.scopes import FailureMode, Scope, Tools

logger = logging.getLogger(__name__)

NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
PORT = 8800
LOCAL_ENDPOINT = f"http://127.0.0.1:{PORT}"
TOKEN_FILE_VARIABLE = "MEMPLANE_TOKEN_FILE"


class ProjectedBinding(BaseModel):
    """One JSON document of the binding folder: written by the operator, read by the client.

    Unlike other files of ours, keys that are not known are ignored: an agent's client may be older than the operator.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel, populate_by_name=True)

    store: str | None = None
    namespace: str | None = None
    endpoint: str | None = None
    audience: str | None = None
    agent: str | None = None
    scope: Scope | None = None
    read_scopes: tuple[Scope, ...] | None = None
    tools: Tools | None = None
    failure_mode: FailureMode | None = None
    token_budget: int | None = None
    rolling_summary: bool | None = None
    ca: str | None = None


@dataclass(frozen=True, slots=True)
class ResolvedBinding:
    """Where a store is and what the agent may do there. `endpoint_source` says which of the places named it."""

    endpoint: str
    endpoint_source: str
    store: str | None = None
    namespace: str | None = None
    audience: str | None = None
    agent: str | None = None
    scope: Scope | None = None
    read_scopes: tuple[Scope, ...] = ()
    tools: Tools | None = None
    failure_mode: FailureMode = FailureMode.SOFT
    token_budget: int | None = None
    rolling_summary: bool = True
    ca: str | None = None


def service_endpoint(store: str, namespace: str) -> str:
    """Return the address of a store's Service."""
    return f"http://{store}-memory.{namespace}.svc:{PORT}"


def from_environment(env: Mapping[str, str]) -> ProjectedBinding:
    """Return what the variables of a templated agent say; an empty one counts as unset.

    Raises:
        InvalidRequest: a value is not one of those expected.
    """
    names = {
        "endpoint": "MEMPLANE_ENDPOINT",
        "audience": "MEMPLANE_AUDIENCE",
        "agent": "AGENT_IDENTITY",
        "scope": "MEMPLANE_SCOPE",
        "tools": "MEMPLANE_TOOLS",
        "failure_mode": "MEMPLANE_FAILURE_MODE",
        "token_budget": "MEMPLANE_TOKEN_BUDGET",
        "rolling_summary": "MEMPLANE_ROLLING_SUMMARY",
    }
    given: dict[str, Any] = {field: env[name] for field, name in names.items() if env.get(name)}
    if env.get("MEMPLANE_READ_SCOPES"):
        given["read_scopes"] = [part.strip() for part in env["MEMPLANE_READ_SCOPES"].split(",") if part.strip()]
    try:
        return ProjectedBinding.model_validate(given)
    except ValidationError as error:
        variables = {**names, "read_scopes": "MEMPLANE_READ_SCOPES"}
        raise invalid(
            "a variable of the environment cannot be used",
            [
                FieldError(field=variables.get(_snake(item["loc"]), str(item["loc"])), expected=expectation(item))
                for item in error.errors(include_url=False, include_input=False)
            ],
        ) from error


def _snake(location: tuple[int | str, ...]) -> str:
    first = str(location[0]) if location else ""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in first)


def from_files(files: Mapping[str, str], store: str | None) -> ProjectedBinding:
    """Return what the folder's documents say about a store; with one document and no name, about that one.

    Raises:
        InvalidRequest: a document is not JSON of the expected shape, or several fit and no name chooses.
    """
    found: list[ProjectedBinding] = []
    for name in sorted(files):
        if not name.endswith(".json"):
            continue
        given: Any = None
        try:
            given = json.loads(files[name])
            document = ProjectedBinding.model_validate(given)
        except ValidationError as error:
            raise from_validation(error, f"the binding {name!r}", given) from error
        except (ValueError, RecursionError) as error:
            raise invalid(f"the binding {name!r} is not JSON: {error}; the operator writes it again") from error
        if store is None or (document.store or name.removesuffix(".json")) == store:
            found.append(document)
    if not found:
        return ProjectedBinding()
    if len(found) > 1:
        names = ", ".join(sorted(str(document.store) for document in found))
        raise invalid(f"this agent is bound to several stores ({names}): name one, MemoryClient.bind('<store>')")
    chosen = found[0]
    return chosen.model_copy(update={"ca": chosen.ca or files.get(CA_FILE) or None})


def resolve(
    store: str | None,
    *,
    explicit: ProjectedBinding,
    files: Mapping[str, str],
    env: Mapping[str, str],
    pod_namespace: str | None,
) -> ResolvedBinding:
    """Return the binding that these places give together; see the module for their order.

    Raises:
        InvalidRequest: a place holds something that cannot be read.
    """
    folder = from_files(files, store)
    environment = from_environment(env)
    merged: dict[str, Any] = {}
    for place in (environment, folder, explicit):
        merged.update({name: value for name, value in place if value is not None})
    store = store or merged.get("store")
    namespace = merged.pop("namespace", None) or _namespace_of(merged.get("agent")) or pod_namespace
    merged.pop("store", None)
    endpoint = merged.pop("endpoint", None)
    if explicit.endpoint:
        source = "argument"
    elif folder.endpoint:
        source = "binding folder"
    elif environment.endpoint:
        source = "MEMPLANE_ENDPOINT"
    elif store and namespace:
        endpoint, source = service_endpoint(store, namespace), "service name"
    else:
        endpoint, source = LOCAL_ENDPOINT, "default"
    return ResolvedBinding(
        endpoint=str(endpoint).rstrip("/"), endpoint_source=source, store=store, namespace=namespace, **merged
    )


def _namespace_of(agent: str | None) -> str | None:
    """Return the namespace in an identity `kaos://agent/<namespace>/<name>`, unless it is a laptop's `local`."""
    parts = (agent or "").split("/")
    return parts[3] if len(parts) == 5 and parts[3] != "local" else None


class WatchedFile:
    """A small text file that is read again when it changes, by one `stat` a look."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._seen: tuple[int, ...] | None = None
        self._text: str | None = None

    def text(self) -> str | None:
        """Return the content without surrounding white space; None while there is no such file."""
        try:
            stat = self.path.stat()
            seen = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if seen != self._seen:
                self._text = self.path.read_text(encoding="utf-8").strip() or None
                self._seen = seen
        except (OSError, UnicodeDecodeError):
            self._seen = self._text = None
        return self._text

    def forget(self) -> None:
        """Read the file at the next look, whatever its times say."""
        self._seen = None


class BindingSource:
    """The binding as it is now.

    A folder that is away or cannot be read any more, or that has no document for the store any more, leaves the last
    binding in force: what an agent may do is the service's to say, and its memory goes nowhere else meanwhile.
    """

    def __init__(
        self,
        store: str | None,
        *,
        explicit: ProjectedBinding,
        folder: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        token_file: str | os.PathLike[str] | None = None,
        token: str | None = None,
        namespace_file: str = NAMESPACE_FILE,
    ) -> None:
        self._store = store
        self._explicit = explicit
        self._env = dict(os.environ if env is None else env)
        self.folder = Path(folder or self._env.get("MEMPLANE_BINDING_DIR") or BINDING_FOLDER)
        self._token = token
        if token is None and token_file and WatchedFile(token_file).text() is None:
            raise invalid(
                f"`token_file` {os.fspath(token_file)!r} is no file with a token that can be read; name one, or leave"
                " it out: the binding folder's `token` is taken then",
                [FieldError(field="token_file", expected="a readable file that holds a token")],
            )
        variable = self._env.get(TOKEN_FILE_VARIABLE)
        self._token_file = WatchedFile(token_file or variable or self.folder / TOKEN_FILE)
        self._named_by = "`token_file`" if token_file else TOKEN_FILE_VARIABLE if variable and token is None else None
        self._is_token_projected = token is None and self._named_by is None
        self._audiences: tuple[str, tuple[str, ...]] = ("", ())
        self._last_token: str | None = None
        self._named_store = store or explicit.endpoint or self._env.get("MEMPLANE_ENDPOINT")
        claimed = explicit.agent or self._env.get("AGENT_IDENTITY") or None
        file = os.path.abspath(self._token_file.path)
        self._unseen_agent = unseen_agent_of(file, claimed, self._named_store) if self._named_by is not None else None
        self._namespace = WatchedFile(namespace_file)
        self._seen: object = None
        self._had_document = False
        self._resolved: ResolvedBinding | None = None
        if self.missing(self.token()) is not None:
            file = os.fspath(self._token_file.path)
            logger.warning("MEMPLANE_TOKEN_FILE names no file with a token: nothing is sent", extra={"file": file})

    def current(self) -> ResolvedBinding:
        """Return the binding.

        Raises:
            InvalidRequest: the first look found something that cannot be read; later ones keep what they had.
        """
        seen = self._signature()
        if self._resolved is not None and seen == self._seen:
            return self._resolved
        files = self._read()
        if files is None and self._resolved is not None:
            return self._resolved
        try:
            has_document = from_files(files or {}, self._store) != ProjectedBinding()
            if has_document or not self._had_document or self._resolved is None:
                self._resolved = resolve(
                    self._store,
                    explicit=self._explicit,
                    files=files or {},
                    env=self._env,
                    pod_namespace=self._namespace.text(),
                )
            self._had_document = self._had_document or has_document
        except InvalidRequest:
            if self._resolved is None:
                raise
        self._seen = seen
        return self._resolved

    def token(self) -> str | None:
        """Return the agent's token as it is now; None where there is none."""
        return self._token if self._token is not None else self._token_file.text()

    def missing(self, token: str | None) -> str | None:
        """Return what is wrong where a file was named for the token and `token` is none; None where nothing is.

        Whoever names a token wants to be known by it: without it a call would be somebody else's, or nobody's.
        """
        if self._named_by is None or token is not None:
            return None
        path = os.fspath(self._token_file.path)
        return f"{self._named_by} names {path!r}, which is no file with a token that can be read; nothing is sent"

    def is_foreign(self, token: str | None, binding: ResolvedBinding) -> bool:
        """Whether a token that was read from the folder is for another store than the one that the binding names.

        So it is for a while when an agent is moved: the folder changes at once, a pod's token never. Whoever is shown
        a token can be its agent elsewhere, until it expires.
        """
        if binding.audience is None or not self._is_token_projected or token is None:
            return False
        if token != self._audiences[0]:
            self._audiences = (token, audiences_of(token))
        return bool(self._audiences[1]) and binding.audience not in self._audiences[1]

    def agent(self) -> str:
        """Return whose the entries of an outbox are that this agent puts there: see `agent_of`.

        A token file that is away for a moment does not make another agent of it. While the token of a file that was
        named was never seen, it is not known who that is: see `unseen_agent`.
        """
        self._last_token = self.token() or self._last_token
        if self._last_token is None and self._unseen_agent is not None:
            return self._unseen_agent
        try:
            claimed = self.current().agent
        except InvalidRequest:
            claimed = self._explicit.agent or self._env.get("AGENT_IDENTITY")
        return agent_of(self._last_token, claimed or None, self._named_store)

    def unseen_agent(self) -> str | None:
        """Return the name of this agent's entries from before its token was seen; None where no file was named.

        Nothing is sent under it. Whoever reads the token in that file for that store is this agent.
        """
        return self._unseen_agent

    def forget_token(self) -> None:
        """Read the token file at the next look: the service refused what was read before."""
        self._token_file.forget()

    def _signature(self) -> object:
        try:
            with os.scandir(self.folder) as entries:
                # stat follows links: a projected volume swaps one link for all of its files.
                return sorted((e.name, e.stat().st_mtime_ns, e.stat().st_ino) for e in entries if _is_ours(e.name))
        except OSError:
            return None

    def _read(self) -> dict[str, str] | None:
        """Return the folder's files, none where there is no folder; None when they cannot be read."""
        try:
            return {
                path.name: path.read_text(encoding="utf-8") for path in self.folder.iterdir() if _is_ours(path.name)
            }
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError):
            logger.warning("the binding folder cannot be read", extra={"folder": str(self.folder)}, exc_info=True)
            return None


def _is_ours(name: str) -> bool:
    return name.endswith(".json") or name == CA_FILE
