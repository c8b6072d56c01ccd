"""`memplane serve`, `work`, `migrate` and `check`: the commands that run a store, over one layered configuration."""

from __future__ import annotations

import asyncio
import inspect
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from memory_service.cli import output
from memory_service.cli.connection import Exit

if TYPE_CHECKING:
    from memory_service.cli.settings import Layered
    from memory_service.contract.config import ServiceConfig

_STORAGE_OPTIONS = (
    click.option("--config", "config_file", metavar="FILE", envvar="MEMPLANE_CONFIG", help="The configuration (YAML)."),
    click.option("--data-dir", metavar="DIR", help="Local mode: the store's folder."),
    click.option(
        "--dsn", metavar="URL", help="External mode: a Postgres URL; MEMPLANE_DSN_FILE keeps it off the screen."
    ),
    click.option("--lock-wait", type=float, metavar="SECONDS", help="Wait for a folder that is served; default: 0."),
)
_MODEL_OPTIONS = (
    click.option("--chat-url", metavar="URL", help="An OpenAI-compatible chat endpoint; none: episodes only."),
    click.option("--chat-model", metavar="NAME", help="Its model."),
    click.option("--embedding-url", metavar="URL", help="An OpenAI-compatible embedding endpoint; none: built in."),
    click.option("--embedding-model", metavar="NAME", help="Its model; MEMPLANE_EMBEDDING_DIMENSIONS says its size."),
    click.option("--window-tokens", type=int, metavar="N", help="The window's budget; default: 4096."),
)
_SERVER_OPTIONS = (
    click.option("--host", metavar="ADDRESS", help="Default: 127.0.0.1."),
    click.option("--port", type=int, metavar="N", help="Default: 8800; 0 picks one and prints it."),
    click.option("--auth", metavar="MODE", help="none (loopback only), static or cluster."),
    click.option("--tokens", metavar="FILE", help="For static: the tokens file."),
    click.option("--issuer", metavar="URL", help="For cluster: the tokens' issuer."),
    click.option("--jwks", metavar="URL|FILE", help="For cluster: the issuer's keys."),
    click.option("--audience", metavar="TEXT", help="For cluster: memplane:<namespace>/<store>."),
    click.option("--bindings", metavar="DIR", help="For cluster: the folder of mounted bindings."),
)
_WORKER_OPTION = click.option("--no-worker", is_flag=True, help="Leave background work to `memplane work`.")


def _with(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


storage_options = _with(*_STORAGE_OPTIONS)
_all_options = _with(*_STORAGE_OPTIONS, *_SERVER_OPTIONS, *_MODEL_OPTIONS, _WORKER_OPTION)


@click.command(short_help="Serve a store.")
@_all_options
def serve(config_file: str | None, no_worker: bool, **flags: Any) -> None:
    """Serve a store. Without any option: on this machine alone, with data in your user data folder, and no key.

    Prints `listening on http://HOST:PORT` to standard error when it is ready.
    """
    with _configured(config_file, _flags(flags, no_worker)) as config:
        _run("memory_service.process.serve", "run", config)


@click.command(short_help="Do background work for a store on Postgres.")
@_with(*_STORAGE_OPTIONS, *_MODEL_OPTIONS)
def work(config_file: str | None, **flags: Any) -> None:
    """Do the background work of a store on Postgres that is served with --no-worker."""
    with _configured(config_file, _flags(flags, no_worker=False)) as config:
        _run("memory_service.process.work", "run", config)


@click.command(short_help="Bring a store's schema up to date.")
@_with(*_STORAGE_OPTIONS, *_MODEL_OPTIONS)
def migrate(config_file: str | None, **flags: Any) -> None:
    """Bring a store's schema up to date, and do nothing else; `serve` does it too."""
    with _configured(config_file, _flags(flags, no_worker=False)) as config:
        _run("memory_service.bootstrap", "migrate", config)
    output.note("the schema is up to date")


@click.command(short_help="Print each setting with its source.")
@_all_options
@click.option("--json", "wants_json", is_flag=True, help="Print JSON.")
def check(config_file: str | None, no_worker: bool, wants_json: bool, **flags: Any) -> None:
    """Print the configuration that the other commands would use, each setting with its source; secrets are masked."""
    from memory_service.cli.settings import described

    layered = layered_settings(config_file, _flags(flags, no_worker))
    rows = list(described(layered))
    missing = _missing_files(layered)
    if wants_json:
        output.as_json(
            {
                "settings": {name: {"value": value, "source": source} for name, value, source in rows},
                "ignored": list(layered.ignored),
                "missing_files": missing,
            }
        )
    else:
        output.table(("setting", "value", "source"), [(n, "unset" if v is None else v, s) for n, v, s in rows])
    for name in layered.ignored:
        output.note(f"ignored: {name} is a Kubernetes service link, not a port; set enableServiceLinks: false")
    for name in missing:
        output.note(f"not there yet: {name}")


def layered_settings(config_file: str | None, flags: Mapping[str, Any]) -> Layered:
    """Return the layered configuration, or end with exit code 2 and a sentence for each flaw."""
    from memory_service.cli.settings import SettingsError, layer

    try:
        return layer(_read(config_file), os.environ, flags, file_name=config_file or "no file")
    except SettingsError as error:
        for flaw in error.flaws:
            output.note(f"error: {flaw}")
        raise click.exceptions.Exit(Exit.USAGE) from error


def _flags(flags: Mapping[str, Any], no_worker: bool) -> dict[str, Any]:
    return {**flags, "worker": "separate" if no_worker else None}


def _read(config_file: str | None) -> Mapping[str, Any] | None:
    if not config_file:
        return None
    from memory_service.cli.settings import Flaw, SettingsError
    from memory_service.domain.documents import parse_yaml

    try:
        content = parse_yaml(Path(config_file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            Flaw("--config", config_file, f"a file that can be read is expected: {error}", "name another file")
        ) from error
    except ValueError as error:
        raise SettingsError(Flaw("--config", config_file, f"YAML is expected: {error}", "mend the file")) from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise SettingsError(
            Flaw("--config", config_file, "a mapping of settings is expected", "begin with `storage:` or `server:`")
        )
    return content


def _missing_files(layered: Layered) -> list[str]:
    from memory_service.cli.settings import described

    return [
        f"{name} = {value} (from {source})"
        for name, value, source in described(layered)
        if name.endswith("File") and isinstance(value, str) and value != "***" and not Path(value).exists()
    ]


@contextmanager
def _configured(config_file: str | None, flags: Mapping[str, Any]) -> Iterator[ServiceConfig]:
    with configured(layered_settings(config_file, flags)) as config:
        yield config


@contextmanager
def configured(layered: Layered) -> Iterator[ServiceConfig]:
    """Give secrets that came as variables a place where only this process's user reads them, while it runs."""
    with ExitStack() as kept:
        data = layered.config.model_dump(by_alias=True)
        for path, secret in layered.secrets.items():
            section = data
            for name in path[:-1]:
                section = section[name]
            section[path[-1]] = kept.enter_context(_secret_file(secret))
        yield type(layered.config).model_validate(data) if layered.secrets else layered.config


@contextmanager
def _secret_file(secret: str) -> Iterator[str]:
    """Keep a secret in memory under a file's name where the system can, else in a private file until the end."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        handle = os.memfd_create("memplane-secret")
        try:
            os.write(handle, secret.encode())
            yield f"/proc/self/fd/{handle}"
        finally:
            os.close(handle)
        return
    handle, name = tempfile.mkstemp(prefix="memplane-")
    try:
        os.chmod(name, stat.S_IRUSR | stat.S_IWUSR)
        os.write(handle, secret.encode())
        os.close(handle)
        yield name
    finally:
        os.unlink(name)


def _run(module: str, function: str, config: ServiceConfig) -> None:
    """Run the part of the service that carries a command out, and end with its exit code."""
    import importlib

    from memory_service.errors import MemoryServiceError, Misconfigured, RequestError, Unavailable

    try:
        run = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        fail(
            f"{error.name!r} is not installed: this command needs the service; install memplane[service,local] "
            "or memplane[service,postgres]",
            Exit.REFUSED,
            error,
        )
    try:
        result = run(config)
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
    except Unavailable as error:
        fail(f"unavailable ({error.reason}): {error}", Exit.UNAVAILABLE, error)
    except Misconfigured as error:
        fail(f"refused ({error.reason}): {error}", Exit.REFUSED, error)
    except (RequestError, MemoryServiceError) as error:
        fail(f"refused: {error}", Exit.REFUSED, error)
    if isinstance(result, int) and result:
        sys.exit(result)


def fail(sentence: str, code: Exit, error: Exception) -> NoReturn:
    """Say why a command ends, and end it."""
    output.note(sentence)
    raise click.exceptions.Exit(code) from error
