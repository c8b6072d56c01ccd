"""Layers a ServiceConfig: the configuration file, then MEMPLANE_* variables, then flags; the last wins.

Pure: it gets the file's content, the variables and the flags, and returns the configuration with the source of each
setting. Reading the file and keeping secrets that came as variables is left to the commands.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from pydantic.alias_generators import to_snake

from memory_service.cli.masking import masked
from memory_service.contract.config import ServiceConfig
from memory_service.contract.expectations import expectation

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting that a variable or a flag can set; `path` is its place in the file."""

    name: str
    path: Path
    variable: str
    flag: str | None
    parse: Callable[[str], Any]
    expected: str
    is_secret: bool = False


@dataclass(frozen=True, slots=True)
class Flaw:
    """One thing that is wrong: which setting, where it came from, what was expected, what to do next."""

    field: str
    source: str
    expected: str
    next_step: str
    got: str | None = None

    def __str__(self) -> str:
        got = f", got {self.got!r}" if self.got is not None else ""
        return f"{self.field} (from {self.source}): {self.expected}{got}; {self.next_step}"


class SettingsError(Exception):
    """The configuration cannot be used; `flaws` says why, one by one."""

    def __init__(self, *flaws: Flaw) -> None:
        super().__init__("\n".join(str(flaw) for flaw in flaws))
        self.flaws = flaws


@dataclass(frozen=True, slots=True)
class Layered:
    """The configuration, each setting's source, and secrets that came as variables.

    `secrets` maps the path of a `…File` setting to the secret that such a file would hold.
    """

    config: ServiceConfig = field(repr=False)
    sources: Mapping[str, str]
    secrets: Mapping[Path, str] = field(default_factory=dict, repr=False)
    ignored: tuple[str, ...] = ()


def _whole(text: str) -> int:
    return int(text)


def _number(text: str) -> float:
    return float(text)


def _text(text: str) -> str:
    return text


_A_TEXT = "a text is expected"
SETTINGS: tuple[Setting, ...] = (
    Setting("data_dir", ("storage", "dataDir"), "MEMPLANE_DATA_DIR", "--data-dir", _text, "a folder is expected"),
    Setting("dsn", ("storage", "dsn"), "MEMPLANE_DSN", "--dsn", _text, "a Postgres URL is expected", is_secret=True),
    Setting("dsn_file", ("storage", "dsnFile"), "MEMPLANE_DSN_FILE", None, _text, "a file is expected"),
    Setting(
        "lock_wait",
        ("storage", "lockWaitSeconds"),
        "MEMPLANE_LOCK_WAIT",
        "--lock-wait",
        _number,
        "seconds from 0 to 86400 are expected",
    ),
    Setting("host", ("server", "host"), "MEMPLANE_HOST", "--host", _text, "an address is expected"),
    Setting(
        "port", ("server", "port"), "MEMPLANE_PORT", "--port", _whole, "a whole number from 0 to 65535 is expected"
    ),
    Setting("auth", ("identity", "auth"), "MEMPLANE_AUTH", "--auth", _text, "one of none, static, cluster is expected"),
    Setting("tokens", ("identity", "tokensFile"), "MEMPLANE_TOKENS_FILE", "--tokens", _text, "a file is expected"),
    Setting("chat_url", ("models", "chat", "url"), "MEMPLANE_CHAT_URL", "--chat-url", _text, "a URL is expected"),
    Setting("chat_model", ("models", "chat", "model"), "MEMPLANE_CHAT_MODEL", "--chat-model", _text, _A_TEXT),
    Setting(
        "chat_api_key",
        ("models", "chat", "apiKeyFile"),
        "MEMPLANE_CHAT_API_KEY",
        None,
        _text,
        "a key is expected",
        is_secret=True,
    ),
    Setting(
        "embedding_url",
        ("models", "embedding", "url"),
        "MEMPLANE_EMBEDDING_URL",
        "--embedding-url",
        _text,
        "a URL is expected",
    ),
    Setting(
        "embedding_model",
        ("models", "embedding", "model"),
        "MEMPLANE_EMBEDDING_MODEL",
        "--embedding-model",
        _text,
        _A_TEXT,
    ),
    Setting(
        "embedding_dimensions",
        ("models", "embedding", "dimensions"),
        "MEMPLANE_EMBEDDING_DIMENSIONS",
        None,
        _whole,
        "a whole number from 1 to 4096 is expected",
    ),
    Setting(
        "embedding_api_key",
        ("models", "embedding", "apiKeyFile"),
        "MEMPLANE_EMBEDDING_API_KEY",
        None,
        _text,
        "a key is expected",
        is_secret=True,
    ),
    Setting(
        "window_tokens",
        ("shortTerm", "tokenBudget"),
        "MEMPLANE_WINDOW_TOKENS",
        "--window-tokens",
        _whole,
        "a whole number of at least 1 is expected",
    ),
    Setting("issuer", ("identity", "issuer"), "MEMPLANE_ISSUER", "--issuer", _text, "an issuer's URL is expected"),
    Setting("jwks", ("identity", "jwks"), "MEMPLANE_JWKS", "--jwks", _text, "a URL or a file is expected"),
    Setting("audience", ("identity", "audience"), "MEMPLANE_AUDIENCE", "--audience", _text, "an audience is expected"),
    Setting("bindings", ("bindings", "directory"), "MEMPLANE_BINDINGS", "--bindings", _text, "a folder is expected"),
    Setting(
        "worker", ("worker", "mode"), "MEMPLANE_WORKER", "--no-worker", _text, "one of inline, separate is expected"
    ),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}
_SECRET_VARIABLES = ("chat_api_key", "embedding_api_key")
_DATA_DIR, _DSN, _DSN_FILE, _TYPE = (
    ("storage", "dataDir"),
    ("storage", "dsn"),
    ("storage", "dsnFile"),
    ("storage", "type"),
)


def layer(
    file: Mapping[str, Any] | None,
    env: Mapping[str, str],
    flags: Mapping[str, Any],
    *,
    file_name: str = "the configuration file",
) -> Layered:
    """Return the configuration that the three layers give together.

    Args:
        file: the content of the configuration file, None without one.
        env: the process's variables; an empty one counts as unset.
        flags: values by the name of their setting; None counts as not given.
        file_name: how errors and sources call the file.

    Raises:
        SettingsError: with everything that is wrong.
    """
    data: dict[str, Any] = copy.deepcopy(dict(file or {}))
    sources: dict[Path, str] = {path: file_name for path, _ in _leaves(data)}
    secrets: dict[Path, str] = {}
    ignored: list[str] = []
    flaws: list[Flaw] = []

    from_env: dict[str, Any] = {}
    for setting in SETTINGS:
        text = env.get(setting.variable)
        if not text:
            continue
        if setting.name == "port" and text.startswith("tcp://"):
            # Kubernetes sets this in pods beside a Service named `memplane`; nobody meant it as a port.
            ignored.append(setting.variable)
            continue
        try:
            from_env[setting.name] = setting.parse(text)
        except ValueError:
            flaws.append(_flaw(setting, setting.variable, text))
    from_flags = {name: value for name, value in flags.items() if value is not None}

    for given, is_flag in ((from_env, False), (from_flags, True)):
        flaws += _put_layer(data, sources, secrets, given, is_flag=is_flag)
    if flaws:
        raise SettingsError(*flaws)
    try:
        config = ServiceConfig.model_validate(data)
    except ValidationError as error:
        raise SettingsError(*_validation_flaws(error, sources, file_name)) from error
    return Layered(config, _all_sources(config, sources), secrets, tuple(ignored))


def _put_layer(
    data: dict[str, Any], sources: dict[Path, str], secrets: dict[Path, str], given: Mapping[str, Any], *, is_flag: bool
) -> list[Flaw]:
    """Put one layer's values over what is there; return what is wrong with them together."""

    def source(name: str) -> str:
        setting = _BY_NAME[name]
        return str(setting.flag) if is_flag else setting.variable

    places = [name for name in ("data_dir", "dsn", "dsn_file") if name in given]
    if len(places) > 1:
        named = " and ".join(source(name) for name in places)
        return [Flaw("storage", named, "one place is expected", "leave all but one of them out")]
    if places:
        for path in (_DATA_DIR, _DSN, _DSN_FILE):
            _drop(data, path)
            sources.pop(path, None)
        _put(data, _TYPE, "local" if places == ["data_dir"] else "external")
        sources[_TYPE] = source(places[0])
    for name, value in given.items():
        setting = _BY_NAME[name]
        sources[setting.path] = source(name)
        if name in _SECRET_VARIABLES and not is_flag:
            secrets[setting.path] = str(value)
            _drop(data, setting.path)
        else:
            _put(data, setting.path, value)
    return []


def described(layered: Layered) -> Iterator[tuple[str, Any, str]]:
    """Yield each setting's path, value and source, in the file's order; secrets are masked."""
    shown = layered.config.model_dump(mode="json", by_alias=True)
    for path, value in _leaves(shown):
        name = ".".join(path)
        secret = layered.secrets.get(path)
        yield name, masked(path, value) if secret is None else "***", layered.sources.get(name, "default")


def _flaw(setting: Setting, source: str, got: str) -> Flaw:
    return Flaw(
        ".".join(setting.path),
        source,
        setting.expected,
        f"change {source} or leave it out",
        None if setting.is_secret else got,
    )


def _validation_flaws(error: ValidationError, sources: Mapping[Path, str], file_name: str) -> list[Flaw]:
    flaws: list[Flaw] = []
    for item in error.errors(include_url=False):
        path = tuple(str(part) for part in item["loc"])
        source = next((sources[path[:size]] for size in range(len(path), 0, -1) if path[:size] in sources), None)
        if source is None:
            below = [name for known, name in sources.items() if known[: len(path)] == path]
            # Prefer what is nearest to the person: a flag, then a variable, then the file.
            source = max(below, key=_nearness, default="default")
        got = item["input"]
        setting = next((known for known in SETTINGS if known.path == path), None)
        step = f"change it in {source}" if source != "default" else "set it"
        # What stands at a name that is not known, or in place of a section, may be anything: a key, too.
        is_shown = (
            isinstance(got, str | int | float | bool)
            and item["type"] not in _ANYTHING
            and not (setting and setting.is_secret)
            and masked(path or ("",), got) == got
        )
        flaws.append(
            Flaw(
                ".".join(path) or "the configuration",
                source,
                _expected(item, setting),
                "remove it, or look for its spelling in docs/reference" if item["type"] == "extra_forbidden" else step,
                str(got) if is_shown else None,
            )
        )
    return flaws


_ANYTHING = frozenset({"extra_forbidden", "model_type", "model_attributes_type", "dict_type", "tuple_type"})


def _expected(flaw: Mapping[str, Any], setting: Setting | None) -> str:
    if flaw["type"] == "extra_forbidden":
        return "no such setting is known"
    if setting is not None and flaw["type"] != "value_error":
        return setting.expected
    return expectation(flaw)


def _nearness(source: str) -> int:
    return 2 if source.startswith("--") else 1 if source.startswith("MEMPLANE_") else 0


def _all_sources(config: ServiceConfig, sources: Mapping[Path, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    known = {_camel_path(path): source for path, source in sources.items()}
    for path, _ in _leaves(config.model_dump(mode="json", by_alias=True)):
        found[".".join(path)] = next(
            (known[path[:size]] for size in range(len(path), 0, -1) if path[:size] in known), "default"
        )
    return found


def _camel_path(path: Path) -> Path:
    return tuple(re.sub(r"_([a-z])", lambda match: match.group(1).upper(), part) for part in path)


def _leaves(data: Mapping[str, Any], above: Path = ()) -> Iterator[tuple[Path, Any]]:
    for name, value in data.items():
        path = (*above, str(name))
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, path)
        else:
            yield path, value


def _spelling(data: Mapping[str, Any], name: str) -> str:
    """Return a key as the file spells it: both cases are taken."""
    snake = to_snake(name)
    return snake if snake in data and name not in data else name


def _put(data: dict[str, Any], path: Path, value: Any) -> None:
    for name in path[:-1]:
        key = _spelling(data, name)
        below = data.get(key)
        if not isinstance(below, dict):
            # An empty section in YAML is null.
            if below is not None:
                return
            below = data[key] = {}
        data = below
    data[_spelling(data, path[-1])] = value


def _drop(data: dict[str, Any], path: Path) -> None:
    for name in path[:-1]:
        below = data.get(_spelling(data, name))
        if not isinstance(below, dict):
            return
        data = below
    data.pop(_spelling(data, path[-1]), None)
