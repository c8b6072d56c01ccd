"""`memplane why`: reads an object and what it leans on, has it explained, and prints the sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import click

from memory_service.cli import output
from memory_service.cli.connection import Exit

if TYPE_CHECKING:
    from memory_service.cli.diagnosis import Explanation, Finding, JsonObject, Kind, Known, Ref
    from memory_service.cli.kubectl import Reader

_INDENT = "  "


@click.command(short_help="Explain why an agent or a store is not well.")
@click.argument("what", metavar="[KIND/NAME]", required=False)
@click.option("-n", "--namespace", metavar="NAME", help="Its namespace; default: as kubectl's context has it.")
@click.option("-f", "--file", metavar="FILE", help="Read what `kubectl get -o json` printed; `-` is standard input.")
@click.option("--context", metavar="NAME", help="kubectl's: the context of the kubeconfig.")
@click.option("--kubeconfig", metavar="FILE", help="kubectl's: the kubeconfig.")
@click.option("--snippet", is_flag=True, help="Print what binds an AgentMemory's workload, as a patch for it.")
@click.option("--container", metavar="NAME", help="For --snippet: the container that is the agent.")
@click.option("-o", "--output", "form", type=click.Choice(["text", "json"]), default="text", help="text or json.")
def why(
    *,
    what: str | None,
    namespace: str | None,
    file: str | None,
    context: str | None,
    kubeconfig: str | None,
    snippet: bool,
    container: str | None,
    form: str,
) -> None:
    """Explain why an AgentMemory, a MemoryStore or a ModelAPI is not Ready or is degraded: what that means for the
    agent, where the cause is, and what to do. It reads with kubectl, and changes nothing.

    With --file and no KIND/NAME every such object of the file is explained. Ends with 0 when all is well, 1 when
    something is wrong, 2 when the object or kubectl is not there or what was read is no such object, 3 when the cluster
    does not answer.
    """
    from memory_service.cli.diagnosis import Kind
    from memory_service.cli.kubectl import Kubectl, Printed, Unreadable
    from memory_service.cli.shape import Misshapen

    if what is None and file is None:
        raise click.UsageError("give KIND/NAME, such as agentmemory/assistant, or --file")
    if snippet and what is None:
        raise click.UsageError("--snippet needs agentmemory/NAME")
    if file is not None and (context is not None or kubeconfig is not None):
        raise click.UsageError("give --file, or --context and --kubeconfig for kubectl; not both")
    try:
        reader: Reader
        if file is not None:
            reader = printed = Printed(file, namespace)
            bodies = (
                [_checked(one, Kind(one["kind"]), f"{one['kind']} {one['metadata']['name']}") for one in printed.own()]
                if what is None
                else [_asked(reader, what)]
            )
            if not bodies:
                raise Unreadable(f"{file!r} holds no AgentMemory, MemoryStore or ModelAPI")
        else:
            reader = Kubectl(context, kubeconfig, namespace)
            bodies = [_asked(reader, what or "")]
        if snippet:
            _print_snippet(reader, bodies[0], container, is_live=file is None)
            return
        found = [_explained(reader, body) for body in bodies]
    except Unreadable as error:
        _end(error, error.code)
    except Misshapen as error:
        _end(error, Exit.USAGE)
    if form == "json":
        shown: list[Any] = [asdict(one) for one in found]
        output.as_json(shown if what is None else shown[0])
    else:
        for number, one in enumerate(found):
            if number:
                output.line("")
            _print(one)
    if not all(one.is_well for one in found):
        raise click.exceptions.Exit(Exit.REFUSED)


def _end(error: Exception, code: Exit) -> NoReturn:
    output.note(str(error))
    raise click.exceptions.Exit(code) from error


def _kind(called: str) -> Kind:
    from memory_service.cli.diagnosis import NAMES

    plain = called.lower().partition(".")[0]
    for kind, names in NAMES.items():
        if plain in names:
            return kind
    known = ", ".join(f"{names[0]} ({names[-1]})" for names in NAMES.values())
    raise click.UsageError(f"{called!r} is no kind of ours; there are {known}")


def _asked(reader: Reader, what: str) -> JsonObject:
    called, slash, name = what.partition("/")
    if not slash or not name:
        raise click.UsageError(f"{what!r}: give KIND/NAME, such as agentmemory/assistant")
    return _read(reader, _kind(called), name, None)


def _read(reader: Reader, kind: Kind, name: str, namespace: str | None) -> JsonObject:
    from memory_service.cli.diagnosis import NAMES

    return _checked(reader.get(f"{NAMES[kind][1]}.memplane.dev", name, namespace), kind, f"{kind} {name}")


def _checked(body: object, kind: Kind, called: str) -> JsonObject:
    from memory_service.cli.shape import OURS, Misshapen, shaped

    found = shaped(body, OURS[kind], called)
    if found["kind"] != kind:
        raise Misshapen(called, f"kind is {found['kind']!r}")
    return found


def _explained(reader: Reader, body: JsonObject) -> Explanation:
    from memory_service.cli.diagnosis import Kind, Ref, explain

    target = Ref(Kind(body["kind"]), body["metadata"]["namespace"], body["metadata"]["name"])
    return explain(target, _gathered(reader, target, body), reader.shown)


def _gathered(reader: Reader, target: Ref, body: JsonObject) -> Known:
    """Read what an object leans on, and the pods of all that is not well."""
    from memory_service.cli.diagnosis import Known, findings, named_by
    from memory_service.cli.kubectl import Unreadable
    from memory_service.cli.shape import Misshapen

    objects: dict[Ref, JsonObject] = {target: body}
    unread: dict[Ref, str] = {}
    pods: dict[Ref, Sequence[JsonObject]] = {}
    waiting = [target]
    while waiting:
        ref = waiting.pop()
        if any(one.is_wrong for one in findings(ref, objects[ref])):
            pods[ref] = reader.pods(ref)
        for named in named_by(ref, objects[ref]):
            if named in objects or named in unread:
                continue
            try:
                objects[named] = _read(reader, named.kind, named.name, named.namespace)
            except (Unreadable, Misshapen) as error:
                unread[named] = str(error)
            else:
                waiting.append(named)
    return Known(objects, unread, pods)


def _print(one: Explanation) -> None:
    output.line(one.headline)
    if one.effect:
        output.line(f"\n{one.effect}")
    _section("Why", [line for finding in one.findings if finding.is_wrong for line in _told(finding)])
    seen = [line for finding in one.findings if not finding.is_wrong for line in _told(finding)]
    _section("Also seen", [*seen, *one.remarks])
    steps: list[str] = []
    for number, step in enumerate(one.steps, 1):
        steps += [f"{number}. {step.object}: {step.do}.", *(f"{_INDENT * 2}{command}" for command in step.commands)]
        steps.append(f"{_INDENT * 2}More: {step.page}")
    _section("What to do", steps)


def _told(finding: Finding) -> list[str]:
    about = f"{finding.condition} is {finding.status}, {finding.reason}" if finding.condition else finding.reason
    since = f", since {finding.since}" if finding.since else ""
    said = [finding.message] if finding.message else []
    return [f"{finding.object}: {about}{since}", *(f"{_INDENT}{it}" for it in (*said, f"That means: {finding.means}."))]


def _section(title: str, lines: Sequence[str]) -> None:
    if lines:
        output.line(f"\n{title}")
    for line in lines:
        output.line(f"{_INDENT}{line}")


def _print_snippet(reader: Reader, agent: JsonObject, container: str | None, *, is_live: bool) -> None:
    from memory_service.cli import snippet
    from memory_service.contract.pods import CONTAINER_GAP

    if agent["kind"] != "AgentMemory":
        raise click.UsageError(f"a {agent['kind']} has no snippet: --snippet is for an AgentMemory")
    if none := snippet.why_none(agent):
        output.note(none)
        raise click.exceptions.Exit(Exit.REFUSED)
    meta = agent["metadata"]
    workload = snippet.workload_of(agent)
    if container is None and workload is not None and is_live:
        container = _only_container(reader, workload, meta["namespace"])
    output.line(snippet.patch(agent, container).rstrip("\n"))
    kind, name = workload or ("Deployment", "NAME")
    if kind in snippet.FIXED:
        output.note(f"a {kind} cannot be changed once it is made: put this into its manifest and make it anew")
    else:
        target = f"{kind.lower()}/{name}"
        output.note(f"{reader.shown} --namespace {meta['namespace']} patch {target} --patch-file FILE applies it")
    if container is None:
        output.note(f"write the name of the agent's container in place of {CONTAINER_GAP}, or give --container")


def _only_container(reader: Reader, workload: tuple[str, str], namespace: str) -> str | None:
    """Return the name of a workload's one container; None when the workload is not there yet."""
    from memory_service.cli.kubectl import Missing, Unreadable
    from memory_service.cli.snippet import containers_of

    kind, name = workload
    try:
        found = containers_of(kind, reader.get(kind.lower(), name, namespace))
    except Missing:
        return None
    if len(found) > 1:
        raise Unreadable(f"{kind.lower()}/{name} has the containers {', '.join(found)}: name one with --container")
    return found[0]
