"""Fills the generated parts of the reference pages from the code; `make docs` runs it.

A page holds prose and regions between `<!-- generated: NAME -->` and `<!-- end -->`. What stands in a region is made
here; tests/packaging/test_docs.py fails when a region is not what would be made now.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import click
import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from memory_service import client
from memory_service.cli import reasons
from memory_service.cli.main import cli
from memory_service.cli.settings import SETTINGS
from memory_service.client import results
from memory_service.client.agent import AgentMemory, Prelude, SaveMemory, SearchMemory
from memory_service.client.client import MemoryClient
from memory_service.contract.config import ServiceConfig
from memory_service.observability.metrics import METRICS, PREFIX

DOCS = Path(__file__).resolve().parent
REGION = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

SETTING_MEANINGS = {
    "storage.type": "`local`: one folder, one process. `external`: Postgres.",
    "storage.lockWaitSeconds": "How long to wait for a folder that another process serves; 0 refuses at once.",
    "storage.dsnFile": "external: a file that holds the Postgres URL; read again when it changes.",
    "storage.schema": "external: the schema that holds this store's tables.",
    "storage.poolSize": "external: connections at most, beside one each for leases and for upkeep.",
    "engine": "What turns turns into facts when a chat model is set.",
    "models.chat.url": "Base URL of an OpenAI-compatible chat endpoint.",
    "models.chat.model": "The model's name there.",
    "models.chat.apiKeyFile": "A file that holds the key.",
    "models.chat.headers": "Headers sent with every call.",
    "models.chat.timeoutSeconds": "Longest time of one call.",
    "models.chat.maxRetries": "Repeats of a call that failed for a passing reason.",
    "models.chat.contextTokens": "The model's context; prompts are cut to it.",
    "models.embedding.url": "Base URL of an OpenAI-compatible embedding endpoint.",
    "models.embedding.model": "The model's name there.",
    "models.embedding.apiKeyFile": "A file that holds the key.",
    "models.embedding.headers": "Headers sent with every call.",
    "models.embedding.dimensions": "Size of its vectors; required with `url`.",
    "models.embedding.timeoutSeconds": "Longest time of one call for stored text.",
    "models.embedding.queryTimeoutSeconds": "Longest wait for a query's vector; then the recall goes by words alone.",
    "models.embedding.maxRetries": "Repeats of a call that failed for a passing reason.",
    "extraction.concurrency": "Extractions and folds, one beside the other, that run at once in one process.",
    "extraction.maxRetries": "Repeats of a job before it is dead.",
    "extraction.systemPrompt": "Instructions that take the place of the built-in ones.",
    "shortTerm.tokenBudget": "Tokens of the window.",
    "shortTerm.hardEventCap": "Turns of the window at most.",
    "mediumTerm.compactionTrigger": "Window tokens at which older turns are folded; unset: `shortTerm.tokenBudget`.",
    "mediumTerm.compactionTarget": "Window tokens that a fold leaves; unset: half of the trigger.",
    "mediumTerm.digestRetention": "Digest versions kept.",
    "mediumTerm.digestTokens": "Tokens of a digest at most.",
    "mediumTerm.systemPrompt": "Instructions that take the place of the built-in ones.",
    "longTerm.enabled": "Whether recalls look at facts and episodes.",
    "longTerm.episodes": "Whether turns stay searchable verbatim.",
    "longTerm.defaultTopK": "Items of a recall that does not say how many.",
    "longTerm.scoreFloor": "Least score of a match; unset: 0.2, calibrated for the built-in embedder.",
    "retention.turnsSeconds": "Age from which turns are deleted, and digests that tell of nothing newer; the digest of"
    " a session that goes on keeps what it tells.",
    "retention.factsSeconds": "Age, since the last change, from which facts are deleted; pinned ones stay.",
    "identity.auth": "`none`, `static` or `cluster`.",
    "identity.tokensFile": "static: the file of tokens; read again when it changes.",
    "identity.issuer": "cluster: the tokens' issuer.",
    "identity.operatorAudience": "cluster: audience of the operator's token.",
    "identity.operator": "cluster: the operator's ServiceAccount.",
    "identity.admins": "cluster: ServiceAccounts that are admins.",
    "identity.users.issuers": "cluster: issuers of users: `issuer`, `audiences`, `jwksUrl` or `jwksFile`, `claim`, and"
    " `jwksCaFile`: PEM of the only authority of `jwksUrl`'s certificate, read again with the keys.",
    "identity.revocation": "`required` refuses every token while TokenReview cannot be asked.",
    "identity.kubeCaFile": "cluster: authority of the API server's certificate.",
    "identity.kubeTokenFile": "cluster: the service's own token.",
    "identity.allowUnauthenticated": "none: listen on other addresses than loopback too, and let anybody in.",
    "identity.allowedOrigins": "Values of `Origin` that are let in; any other is refused.",
    "bindings.directory": "The folder that bindings are mounted in.",
    "bindings.namespace": "Namespace of the ConfigMaps.",
    "bindings.configMapPrefix": "Their name without the number.",
    "server.host": "Address to listen on.",
    "server.port": "Port; 0 picks a free one and prints it.",
    "server.tls": "`certFile` and `keyFile`; both are read again when they change.",
    "server.maxInFlight": "Requests at once; more are answered 503 unread. A quarter is for those that change nothing.",
    "server.graceSeconds": "Time to finish after SIGTERM.",
    "worker.mode": "`inline`: jobs run in the serving process. `separate`: by `memplane work`, on Postgres only.",
    "worker.concurrency": "Other jobs that run at once in one process: vectors and upkeep.",
    "worker.leaseSeconds": "How long a silent worker keeps a job.",
    "worker.pollSeconds": "How often an idle worker looks for jobs.",
    "worker.sweepSeconds": "How often sessions, vectors and erased bytes are looked after.",
}
"""What a setting does, where its field has no description of its own."""


def cell(text: str) -> str:
    """Return a text as it may stand in a table's cell."""
    return " ".join(str(text).split()).replace("|", "\\|")


def table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


# Configuration -------------------------------------------------------------------------------------------------------


def settings() -> Iterator[tuple[str, str, str, str]]:
    """Yield path, type, default and meaning of every setting."""
    yield from _settings(ServiceConfig, ())


def _settings(model: type[BaseModel], above: tuple[str, ...]) -> Iterator[tuple[str, str, str, str]]:
    for name, field in model.model_fields.items():
        path = (*above, field.alias or name)
        default = None if field.default_factory is not None else field.default
        if isinstance(default, BaseModel):
            yield from _settings(type(default), path)
            continue
        dotted = ".".join(path)
        meaning = field.description or SETTING_MEANINGS[dotted]
        yield dotted, _kind(field.annotation), _default(default), meaning


def _kind(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Annotated:
        return _kind(typing.get_args(annotation)[0])
    arguments = [one for one in typing.get_args(annotation) if one is not type(None)]
    origin = typing.get_origin(annotation)
    if origin is dict:
        return "mapping"
    if origin is tuple:
        return "list"
    if arguments:
        return _kind(arguments[0])
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(f"`{one.value}`" for one in annotation)
    names = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    return names.get(annotation, "section")


def _default(value: Any) -> str:
    if value is None or value is PydanticUndefined:
        return "unset"
    if isinstance(value, Enum):
        value = value.value
    if value in ((), ""):
        return "empty"
    return f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value}`"


def configuration() -> str:
    """Return the table of settings."""
    ways = {".".join(s.path): ", ".join(f"`{way}`" for way in (s.flag, s.variable) if way) for s in SETTINGS}
    rows = [(f"`{path}`", kind, default, ways.get(path, ""), does) for path, kind, default, does in settings()]
    return table(("setting", "type", "default", "flag, variable", "meaning"), rows)


# Command line --------------------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command that does something, by its full name."""
    context = click.Context(cli, info_name="memplane")
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {below}", command.commands[below]) for below in command.commands)
        else:
            yield name, command


def command_line() -> str:
    """Return every command with its arguments and options."""
    parts = []
    for name, command in commands():
        context = click.Context(command, info_name=f"memplane {name}")
        usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
        shown = [f"### memplane {name}\n\n{' '.join((command.help or '').split())}\n\n```text\n{usage}\n```\n"]
        options = [one for one in command.params if isinstance(one, click.Option)]
        own = [one for one in options if one.name not in CONNECTION_OPTIONS or not _is_connected(options)]
        rows = [(_option(one, context), _help(one)) for one in own]
        if rows:
            shown.append(table(("option", "meaning"), rows))
        parts.append("\n".join(shown))
    return "\n".join(parts)


CONNECTION_OPTIONS = ("server", "token_file", "user_token_file", "agent", "user", "timeout_seconds", "wants_json")


def _is_connected(options: list[click.Option]) -> bool:
    return any(one.name == "server" for one in options)


def connection_options() -> str:
    """Return the options that every command of a client has."""
    command = dict(commands())["recall"]
    context = click.Context(command, info_name="memplane recall")
    options = [one for one in command.params if isinstance(one, click.Option) and one.name in CONNECTION_OPTIONS]
    return table(("option", "meaning"), [(_option(one, context), _help(one)) for one in options])


def _option(option: click.Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if option.is_flag:
        return names
    return f"{names} `{option.make_metavar(context)}`"


def _help(option: click.Option) -> str:
    text = option.help or ""
    if option.envvar:
        text += f" Variable: `{option.envvar}`."
    if option.multiple and "often" not in text:
        text += " May be given often."
    if option.show_default:
        text += f" Default: `{option.default}`."
    return text.strip()


# Reasons -------------------------------------------------------------------------------------------------------------


def reasons_of_conditions() -> str:
    """Return what the operator's own reasons mean and ask for."""
    return _reasons(reasons.OF_OPERATOR)


def reasons_of_parts() -> str:
    """Return what the reasons of a health report mean and ask for."""
    return _reasons(reasons.OF_SERVICE)


def _reasons(advice: Mapping[str, reasons.Advice]) -> str:
    return table(("reason", "means", "do"), [(f"`{reason}`", one.means, one.do) for reason, one in advice.items()])


# HTTP API ------------------------------------------------------------------------------------------------------------

_METHODS = ("get", "post", "patch", "delete")
TAGS = {
    "memory": "Memory",
    "facts": "Facts",
    "sessions": "Sessions",
    "jobs": "Jobs",
    "admin": "Admin",
    "health": "Health and metrics",
}


def document() -> Mapping[str, Any]:
    """Return the golden OpenAPI document."""
    loaded: Mapping[str, Any] = json.loads((DOCS / "reference" / "openapi.json").read_text())
    return loaded


def http_routes() -> str:
    """Return every route by its tag."""
    found: dict[str, list[str]] = {tag: [] for tag in TAGS}
    for path, operations in document()["paths"].items():
        for method in _METHODS:
            if method in operations:
                operation = operations[method]
                found[operation.get("tags", ["health"])[0]].append(_route(method, path, operation))
    return "\n".join(f"### {title}\n\n" + "\n".join(found[tag]) for tag, title in TAGS.items())


def _route(method: str, path: str, operation: Mapping[str, Any]) -> str:
    lines = [f"#### {method.upper()} {path}", "", operation["description"], ""]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body:
        lines.append(f"- Body: {_schema(body)}")
    for parameter in operation.get("parameters", []):
        if parameter["name"] == "Idempotency-Key" and method == "get":
            continue
        where = f"{parameter['in']} `{parameter['name']}`"
        lines.append(f"- {where[0].upper()}{where[1:]}: {_schema(parameter['schema'])}")
    for status, answer in operation["responses"].items():
        if int(status) >= 400:
            continue
        content = answer.get("content", {}).get("application/json", {}).get("schema") or {}
        what = _schema(content) if content else "no JSON"
        lines.append(f"- Answers {status}: {what}")
    return "\n".join(lines) + "\n"


def http_bodies() -> str:
    """Return every body and its fields."""
    parts = []
    for name, schema in sorted(document()["components"]["schemas"].items()):
        says = " ".join(schema.get("description", "").split())
        text = f"#### {name}\n\n{says}\n"
        if "enum" in schema:
            text += "\nOne of " + ", ".join(f"`{value}`" for value in schema["enum"]) + ".\n"
        elif schema.get("properties"):
            required = schema.get("required", [])
            rows = [
                (f"`{field}`", _schema(about), _presence(field, about, required), about.get("description", ""))
                for field, about in schema["properties"].items()
            ]
            text += "\n" + table(("field", "type", "default", "meaning"), rows)
        parts.append(text)
    return "\n".join(parts)


def _presence(field: str, about: Mapping[str, Any], required: list[str]) -> str:
    if field in required:
        return "required"
    if about.get("default") is None:
        return ""
    return f"`{json.dumps(about['default'])}`"


def _schema(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return " or ".join(dict.fromkeys(_schema(one) for one in schema[choice] if one.get("type") != "null"))
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_schema(schema['items'])}{_bounds(schema, 'Items')}"
    if schema.get("format") == "date-time":
        return "time"
    names = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    return names.get(schema.get("type", ""), "any JSON" if "type" not in schema else "object") + _bounds(schema)


def _bounds(schema: Mapping[str, Any], of: str = "Length") -> str:
    low = schema.get(f"min{of}", schema.get("minimum"))
    high = schema.get(f"max{of}", schema.get("maximum"))
    if low is None and high is None:
        return ""
    said = f"from {low}" if high is None else f"{low} to {high}" if low is not None else f"at most {high}"
    return f", {said} of them" if of == "Items" else f" ({said})"


# Kinds ---------------------------------------------------------------------------------------------------------------

KINDS = {"MemoryStore": "memorystores", "AgentMemory": "agentmemories", "ModelAPI": "modelapis"}
AS_IN_KUBERNETES = {
    *("affinity", "tolerations", "topologySpreadConstraints", "imagePullSecrets", "selector", "conditions"),
    *("env", "envFrom", "ports", "resources", "securityContext", "volumeMounts", "volumes"),
    *("livenessProbe", "readinessProbe", "startupProbe"),
}
"""Fields that Kubernetes' own documentation explains: one row each, which names what of them is taken."""
NO_BOUNDS = dict.fromkeys(("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"))
"""In a status, which nobody writes by hand."""


def definition(kind: str) -> Mapping[str, Any]:
    """Return the schema of a kind of ours, as its CRD has it."""
    file = DOCS.parent / "crds" / f"memplane.dev_{KINDS[kind]}.yaml"
    loaded: Mapping[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    found: Mapping[str, Any] = loaded["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def fields(schema: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Yield path, schema and whether it is required of every field below an object."""
    for name, about in schema.get("properties", {}).items():
        yield f"{above}{name}", about, name in schema.get("required", ())
        if name not in AS_IN_KUBERNETES:
            yield from fields(about, f"{above}{name}.")
            yield from fields(about.get("items", {}), f"{above}{name}[].")


def _fields_of(kind: str) -> str:
    parts = []
    for part in ("spec", "status"):
        rows = []
        for path, about, is_required in fields(definition(kind)["properties"][part]):
            default = "required" if is_required else f"`{json.dumps(about['default'])}`" if "default" in about else ""
            says = about.get("description", "").replace("<", "\\<")
            below = about.get("properties") or about.get("items", {}).get("properties")
            if path.rpartition(".")[2] in AS_IN_KUBERNETES and below:
                says += f" As in Kubernetes, of which these are taken: {', '.join(f'`{one}`' for one in below)}."
            row = (f"`{path}`", _schema(about), default, says)
            rows.append(row if part == "spec" else (row[0], _schema({**about, **NO_BOUNDS}), row[3]))
        columns = ("field", "type", "default", "meaning") if part == "spec" else ("field", "type", "meaning")
        parts.append(f"### {kind}: {part}\n\n{table(columns, rows)}")
        if part == "spec" and (said := dict.fromkeys(_rules(definition(kind)))):
            parts.append("Refused with these sentences:\n\n" + "".join(f"- {cell(one)}\n" for one in said))
    return "\n".join(parts)


def _rules(schema: Mapping[str, Any]) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield rule["message"]
    for name, below in schema.get("properties", {}).items():
        if name not in AS_IN_KUBERNETES:
            yield from _rules(below)
    for holder in ("items", "additionalProperties"):
        if isinstance(schema.get(holder), Mapping):
            yield from _rules(schema[holder])


def kind_memory_store() -> str:
    """Return every field of a MemoryStore."""
    return _fields_of("MemoryStore")


def kind_agent_memory() -> str:
    """Return every field of an AgentMemory."""
    return _fields_of("AgentMemory")


def kind_model_api() -> str:
    """Return every field of a ModelAPI."""
    return _fields_of("ModelAPI")


# Client --------------------------------------------------------------------------------------------------------------


def client_verbs() -> str:
    """Return the client's methods with their signatures and what they say of themselves."""
    parts = [_methods("MemoryClient", MemoryClient, ("recall", "write", "remember", "list", "forget", "deliver"))]
    made = MemoryClient("http://127.0.0.1:8800", outbox=None, env={})
    for name in ("facts", "sessions", "jobs", "receipts", "health", "admin"):
        group = type(getattr(made, name))
        parts.append(_methods(f"MemoryClient.{name}", group, tuple(n for n in vars(group) if not n.startswith("_"))))
    names = ("before_run", "after_run", "search_memory", "save_memory", "tools")
    parts.append(_methods("AgentMemory", AgentMemory, names))
    return "\n".join(parts)


def _methods(title: str, owner: type, names: tuple[str, ...]) -> str:
    lines = [f"### {title}", "", *_paragraphs(owner), ""]
    for name in names:
        method = inspect.getattr_static(owner, name)
        lines += [
            f"#### {title}.{name}",
            "",
            "```python example",
            _signature(name, method),
            "```",
            "",
            *_paragraphs(method),
            "",
        ]
    return "\n".join(lines)


def _signature(name: str, method: Callable[..., Any]) -> str:
    found = inspect.signature(method)
    shown = ["*" if one.kind is one.KEYWORD_ONLY else "" for one in found.parameters.values()]
    parameters, starred = [], False
    for mark, one in zip(shown, found.parameters.values(), strict=True):
        if one.name == "self":
            continue
        if mark and not starred:
            parameters.append("*")
            starred = True
        parameters.append(f"**{one.name}" if one.kind is one.VAR_KEYWORD else _parameter(one))
    kind = "async def" if inspect.iscoroutinefunction(method) else "def"
    answer = str(found.return_annotation)
    parameters = [one.replace("'", '"') for one in parameters]
    line = f"{kind} {name}({', '.join(parameters)}) -> {answer}: ..."
    if len(line) <= 110:
        return line
    return f"{kind} {name}(\n" + "".join(f"    {one},\n" for one in parameters) + f") -> {answer}: ..."


def _parameter(one: inspect.Parameter) -> str:
    if one.kind is one.VAR_POSITIONAL:
        return f"*{one.name}"
    default = (
        ""
        if one.default is one.empty
        else f" = {one.default!r}"
        if not isinstance(one.default, Enum)
        else f" = {one.default.value!r}"
    )
    return f"{one.name}: {one.annotation}{default}"


def _paragraphs(thing: Any) -> list[str]:
    """Return a docstring as Markdown; what stands under `Args:` and `Raises:` becomes a list."""
    lines: list[str] = []
    for line in (inspect.getdoc(thing) or "").splitlines():
        if line in ("Args:", "Raises:"):
            lines += [f"{line}", ""]
        elif line.startswith("        "):
            lines[-1] += " " + line.strip()
        elif line.startswith("    ") and ":" in line:
            name, _, says = line.strip().partition(": ")
            lines.append(f"- `{name}`: {says}")
        else:
            lines.append(line)
    return lines


def client_results() -> str:
    """Return what the client's verbs return beside the bodies of the HTTP API."""
    models = (
        results.Recalled,
        results.Written,
        results.Remembered,
        results.Forgotten,
        results.SessionActed,
        results.Delivery,
    )
    parts = []
    for model in models:
        own = [name for name in model.model_fields if name in model.__annotations__]
        inherited = [base.__name__ for base in model.__bases__ if base.__name__ != "Wire"]
        fields = ", ".join(f"`{name}`" for name in own)
        extends = f" The fields of `{inherited[0]}`, and {fields}." if inherited else f" Fields: {fields}."
        parts.append(f"- **{model.__name__}**: {' '.join((model.__doc__ or '').split())}{extends}")
    says = " ".join((Prelude.__doc__ or "").split())
    parts.append(f"- **Prelude**: {says} Fields: {', '.join(f'`{name}`' for name in Prelude.__dataclass_fields__)}.")
    return "\n".join(parts) + "\n"


def client_tools() -> str:
    """Return the arguments of the two tools."""
    rows = []
    for tool, model in (("search_memory", SearchMemory), ("save_memory", SaveMemory)):
        for name, field in model.model_fields.items():
            presence = "required" if field.is_required() else "optional"
            rows.append((f"`{tool}`", f"`{name}`", presence, field.description or ""))
    return table(("tool", "argument", "", "meaning"), rows)


def client_errors() -> str:
    """Return the tree of exceptions."""
    tree = (inspect.getdoc(sys.modules[client.ContractError.__module__]) or "").split("\n\n", 1)[1]
    return f"```text\n{tree}\n```\n"


# Metrics -------------------------------------------------------------------------------------------------------------


def metrics() -> str:
    """Return the table of metrics."""
    rows = []
    for metric in METRICS:
        name = PREFIX + metric.name + ("_total" if metric.kind == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append((f"`{name}`", metric.kind, labels, metric.help))
    return table(("metric", "kind", "labels", "meaning"), rows)


# Pages ---------------------------------------------------------------------------------------------------------------

REGIONS: Mapping[str, Callable[[], str]] = {
    "configuration": configuration,
    "command-line": command_line,
    "connection-options": connection_options,
    "reasons-of-conditions": reasons_of_conditions,
    "reasons-of-parts": reasons_of_parts,
    "http-routes": http_routes,
    "http-bodies": http_bodies,
    "kind-memory-store": kind_memory_store,
    "kind-agent-memory": kind_agent_memory,
    "kind-model-api": kind_model_api,
    "client-verbs": client_verbs,
    "client-results": client_results,
    "client-tools": client_tools,
    "client-errors": client_errors,
    "metrics": metrics,
}


def filled(text: str) -> str:
    """Return a page with its regions made anew."""

    def fill(match: re.Match[str]) -> str:
        made = REGIONS[match.group(2)]().strip("\n")
        return f"{match.group(1)}\n{made}\n\n{match.group(3)}"

    return REGION.sub(fill, text)


def pages() -> list[Path]:
    """Return every page that has a generated region."""
    return [page for page in sorted(DOCS.rglob("*.md")) if REGION.search(page.read_text(encoding="utf-8"))]


def main() -> None:
    """Write every page whose generated regions have changed."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        made = filled(text)
        if made != text:
            page.write_text(made, encoding="utf-8")
            sys.stdout.write(f"{page.relative_to(DOCS.parent)} is written anew\n")


if __name__ == "__main__":
    main()
