"""Layering of the configuration file, variables and flags."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_service.cli.masking import masked_dsn
from memory_service.cli.settings import SETTINGS, Layered, SettingsError, described, layer
from memory_service.contract.config import AuthMode, ServiceConfig, StorageType, WorkerMode
from memory_service.contract.endpoints import request_url

FILE: dict[str, Any] = {"server": {"port": 1000, "host": "10.0.0.1"}, "shortTerm": {"tokenBudget": 111}}


def source(layered: Layered, name: str) -> str:
    return layered.sources[name]


def test_nothing_given_is_what_works_on_a_laptop() -> None:
    layered = layer(None, {}, {})
    assert layered.config == ServiceConfig()
    assert set(layered.sources.values()) == {"default"}


def test_the_last_layer_wins_and_each_setting_names_its_source() -> None:
    layered = layer(FILE, {"MEMPLANE_PORT": "2000", "MEMPLANE_AUTH": "static"}, {"port": 3000}, file_name="m.yaml")
    assert layered.config.server.port == 3000
    assert layered.config.server.host == "10.0.0.1"
    assert layered.config.identity.auth is AuthMode.STATIC
    assert source(layered, "server.port") == "--port"
    assert source(layered, "server.host") == "m.yaml"
    assert source(layered, "identity.auth") == "MEMPLANE_AUTH"
    assert source(layered, "storage.type") == "default"


VALUES = {
    "data_dir": "/d",
    "dsn": "postgresql://h/d",
    "dsn_file": "/f",
    "lock_wait": "7",
    "host": "127.0.0.2",
    "port": "81",
    "auth": "static",
    "tokens": "/t",
    "window_tokens": "99",
    "embedding_dimensions": "12",
    "worker": "separate",
}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_each_variable_and_each_flag_sets_its_setting(setting: Any) -> None:
    value = VALUES.get(setting.name, f"http://{setting.name}")
    companions = {
        "chat_url": {"MEMPLANE_CHAT_MODEL": "m"},
        "chat_model": {"MEMPLANE_CHAT_URL": "http://u"},
        "embedding_url": {"MEMPLANE_EMBEDDING_MODEL": "m", "MEMPLANE_EMBEDDING_DIMENSIONS": "3"},
        "embedding_model": {"MEMPLANE_EMBEDDING_URL": "http://u", "MEMPLANE_EMBEDDING_DIMENSIONS": "3"},
        "worker": {"MEMPLANE_DSN": "postgresql://h/d"},
    }.get(setting.name, {})
    name = ".".join(setting.path)
    by_variable = layer(None, {**companions, setting.variable: value}, {})
    assert source(by_variable, name) == setting.variable
    if setting.flag is not None:
        by_flag = layer(None, companions, {setting.name: setting.parse(value)})
        assert source(by_flag, name) == setting.flag
        assert by_flag.config == by_variable.config
        assert by_flag.config != ServiceConfig()


def test_a_dsn_means_external_and_a_folder_means_local() -> None:
    assert layer(None, {"MEMPLANE_DSN": "postgresql://h/d"}, {}).config.storage.type is StorageType.EXTERNAL
    assert layer(None, {"MEMPLANE_DSN_FILE": "/dsn"}, {}).config.storage.type is StorageType.EXTERNAL
    local = layer(None, {"MEMPLANE_DSN": "postgresql://h/d"}, {"data_dir": "/d"}).config.storage
    assert (local.type, local.data_dir, local.dsn) == (StorageType.LOCAL, "/d", None)
    file = {"storage": {"type": "external", "dsn_file": "/old"}}
    external = layer(file, {}, {"dsn": "postgresql://new/d"}).config.storage
    assert (external.type, external.dsn, external.dsn_file) == (StorageType.EXTERNAL, "postgresql://new/d", None)


@pytest.mark.parametrize("name", ["dsn", "dsnFile"])
def test_a_dsn_in_a_file_means_external(name: str) -> None:
    assert layer({"storage": {name: "postgresql://h/d"}}, {}, {}).config.storage.type is StorageType.EXTERNAL


@pytest.mark.parametrize(
    ("file", "field"),
    [
        ({"storage": {"type": "local", "dsn": "postgresql://h/d"}}, "storage.dsn"),
        ({"storage": {"type": "local", "dsnFile": "/dsn"}}, "storage.dsnFile"),
        ({"storage": {"type": "external", "dataDir": "/data"}}, "storage.dataDir"),
        ({"storage": {"dataDir": "/data", "dsnFile": "/dsn"}}, "storage.dataDir"),
        ({"storage": {"dsn": "postgresql://h/d", "dsnFile": "/dsn"}}, "storage.dsnFile"),
        ({"server": {"port": 9000, "metricsPort": 9000}}, "server.metricsPort"),
        ({"mediumTerm": {"enabled": True}}, "mediumTerm.enabled"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(file: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingsError, match=field) as refused:
        layer(file, {}, {})
    assert "h/d" not in str(refused.value)


@pytest.mark.parametrize(
    ("budget", "trigger", "target"),
    [(100, 101, None), (100, 60, 60), (100, 40, 60), (100, None, 100), (100, None, 120), (2, 1, None)],
)
def test_marks_that_are_not_in_order_are_refused(budget: int, trigger: int | None, target: int | None) -> None:
    marks = {"compactionTrigger": trigger, "compactionTarget": target}
    with pytest.raises(SettingsError, match="compactionTarget < compactionTrigger <= tokenBudget"):
        layer({"shortTerm": {"tokenBudget": budget}, "mediumTerm": marks}, {}, {})


def test_marks_are_derived_from_the_budget_and_kept_where_they_are_given() -> None:
    def marks(**given: int) -> tuple[int, int]:
        config = layer({"shortTerm": {"tokenBudget": 100}, "mediumTerm": given}, {}, {}).config
        return config.compaction_trigger, config.compaction_target

    assert marks() == (100, 50)
    assert marks(compactionTrigger=60) == (60, 30)
    assert marks(compactionTrigger=60, compactionTarget=59) == (60, 59)
    assert marks(compactionTarget=99) == (100, 99)


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ("shortTerm", "tokenBudget"),
        ("shortTerm", "hardEventCap"),
        ("mediumTerm", "compactionTrigger"),
        ("mediumTerm", "compactionTarget"),
        ("mediumTerm", "digestRetention"),
        ("retention", "turnsSeconds"),
    ],
)
def test_a_bound_of_nothing_is_refused_by_name(section: str, name: str) -> None:
    with pytest.raises(SettingsError, match=f"{section}.{name}"):
        layer({section: {name: 0}}, {}, {})


def test_two_places_in_one_layer_are_refused() -> None:
    with pytest.raises(SettingsError, match="MEMPLANE_DATA_DIR and MEMPLANE_DSN"):
        layer(None, {"MEMPLANE_DSN": "postgresql://h/d", "MEMPLANE_DATA_DIR": "/d"}, {})


def test_both_spellings_of_a_key_are_taken_and_overridden() -> None:
    for file in ({"short_term": {"token_budget": 50}}, {"shortTerm": {"tokenBudget": 50}}):
        assert source(layer(file, {}, {}, file_name="f"), "shortTerm.tokenBudget") == "f"
        assert layer(file, {}, {"window_tokens": 60}).config.short_term.token_budget == 60


def test_an_empty_section_of_the_file_is_no_section() -> None:
    assert layer({"storage": {}}, {"MEMPLANE_PORT": "5"}, {}).config.server.port == 5


def test_an_empty_variable_counts_as_unset() -> None:
    assert layer(None, {"MEMPLANE_PORT": "", "MEMPLANE_DSN": ""}, {}).config == ServiceConfig()


def test_a_kubernetes_service_link_is_not_taken_for_a_port() -> None:
    layered = layer(None, {"MEMPLANE_PORT": "tcp://10.1.2.3:8800"}, {})
    assert layered.config.server.port == 8800
    assert layered.ignored == ("MEMPLANE_PORT",)


@pytest.mark.parametrize(
    ("file", "env", "flags", "words"),
    [
        ({}, {"MEMPLANE_PORT": "eighty"}, {}, ["server.port", "MEMPLANE_PORT", "0 to 65535", "'eighty'"]),
        ({}, {}, {"port": 70_000}, ["server.port", "--port", "0 to 65535", "70000"]),
        ({}, {"MEMPLANE_AUTH": "open"}, {}, ["identity.auth", "MEMPLANE_AUTH", "none, static, cluster"]),
        ({"sever": {"port": 1}}, {}, {}, ["sever", "m.yaml", "no such setting", "docs/reference"]),
        ({"server": {"prot": 1}}, {}, {}, ["server.prot", "m.yaml", "no such setting"]),
        ({"server": 5}, {}, {}, ["server", "m.yaml"]),
        ({}, {}, {"chat_url": "http://u"}, ["models.chat", "--chat-url", "both `url` and `model`"]),
        (
            {},
            {"MEMPLANE_EMBEDDING_URL": "http://u", "MEMPLANE_EMBEDDING_MODEL": "m"},
            {},
            ["models.embedding", "MEMPLANE_EMBEDDING", "`dimensions` is required"],
        ),
        (
            {},
            {"MEMPLANE_CHAT_URL": "models.internal:8000", "MEMPLANE_CHAT_MODEL": "m"},
            {},
            ["models.chat.url", "MEMPLANE_CHAT_URL", "`http://`", "'models.internal:8000'"],
        ),
        ({}, {}, {"worker": "separate"}, ["separate", "external"]),
        ({"shortTerm": {"tokenBudget": -1}}, {}, {}, ["shortTerm.tokenBudget", "m.yaml", "at least 1", "'-1'"]),
    ],
)
def test_an_error_names_the_field_its_source_what_was_expected_and_what_to_do(
    file: dict[str, Any], env: dict[str, str], flags: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(SettingsError) as caught:
        layer(file, env, flags, file_name="m.yaml")
    for word in words:
        assert word in str(caught.value)
    assert all(flaw.next_step for flaw in caught.value.flaws)


def test_secrets_are_never_shown() -> None:
    env = {
        "MEMPLANE_DSN": "postgresql://ada:s3cret@h/d?sslpassword=s3cret&x=1",
        "MEMPLANE_CHAT_API_KEY": "s3cret",
        "MEMPLANE_EMBEDDING_API_KEY": "s3cret",
    }
    file = {"models": {"chat": {"headers": {"X-Key": "s3cret"}}}}
    layered = layer(file, env, {})
    assert "s3cret" not in str(list(described(layered)))
    assert "s3cret" not in repr(layered)
    assert layered.secrets == {
        ("models", "chat", "apiKeyFile"): "s3cret",
        ("models", "embedding", "apiKeyFile"): "s3cret",
    }
    with pytest.raises(SettingsError) as caught:
        layer({"storage": {"schema": "NOT A NAME"}, **file}, env, {})
    assert "s3cret" not in str(caught.value)
    for url in ("https://ada:s3cret@models/v1", "https://s3cret@models/v1"):
        with pytest.raises(SettingsError, match="`apiKeyFile`") as caught:
            layer(None, {"MEMPLANE_CHAT_URL": url, "MEMPLANE_CHAT_MODEL": "m"}, {})
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://models/v1#s3cret", "`#`"),
        ("http://models/v1?a=s3cret#", "`#`"),
        ("http://models:port/v1?a=s3cret", "with a host"),
        ("http://models:0/v1", "with a host"),
        ("http://::1:8000/v1", "with a host"),
        ("http://[::1/v1", "with a host"),
        ("http:///v1", "with a host"),
        ("http://models/v 1?a=s3cret", "with a host"),
        ("http+unix://%2Frun%2Fmodels.sock/v1", "with a host"),
        ("unix:///run/models.sock", "with a host"),
        ("http://models/v1/chat/completions?a=s3cret", "`/chat/completions`"),
        ("http://models/v1/embeddings/", "`/embeddings`"),
    ],
)
def test_a_model_url_below_which_nothing_can_be_asked_is_refused_with_what_to_change(url: str, says: str) -> None:
    for name in ("CHAT", "EMBEDDING"):
        with pytest.raises(SettingsError) as caught:
            layer(None, {f"MEMPLANE_{name}_URL": url, f"MEMPLANE_{name}_MODEL": "m"}, {})
        assert says in str(caught.value)
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://models:8000", "http://models:8000/v1/chat/completions"),
        ("http://models:8000/", "http://models:8000/v1/chat/completions"),
        ("http://models?api-version=1", "http://models/v1/chat/completions?api-version=1"),
        ("https://models/openai/v1/", "https://models/openai/v1/chat/completions"),
        ("https://models/v1//?", "https://models/v1/chat/completions"),
        ("https://models/v1/?a=b/&c=%2F", "https://models/v1/chat/completions?a=b/&c=%2F"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1/chat/completions"),
    ],
)
def test_a_path_is_put_behind_the_path_of_a_model_url(url: str, asked: str) -> None:
    taken = layer(None, {"MEMPLANE_CHAT_URL": url, "MEMPLANE_CHAT_MODEL": "m"}, {}).config.models.chat.url
    assert taken is not None
    assert request_url(taken, "chat/completions") == asked


@pytest.mark.parametrize(
    "file",
    [
        {"models": {"chat": {"apiKey": "s3cret"}}},
        {"models": {"chat": {"baseURL": "http://ada:s3cret@x"}}},
        {"models": {"chat": "s3cret"}},
        {"models": {"chat": {"headers": "s3cret"}}},
        {"identity": "s3cret"},
        {"identity": {"admins": "s3cret"}},
        {"password": "s3cret"},
        {"storage": {"dsn_": "host=h password=s3cret"}},
    ],
)
def test_what_stands_at_a_name_that_is_not_known_is_not_repeated(file: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as caught:
        layer(file, {}, {})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://models/v1?api_key=s3cret&x=s3cret", "http://models/v1?api_key=***&x=***"),
        ("http://models/v1?s3cret", "http://models/v1?***"),
        ("http://models:8000/v1", "http://models:8000/v1"),
    ],
)
def test_what_a_url_may_carry_is_masked(url: str, shown: str) -> None:
    layered = layer({"identity": {"jwks": url}}, {}, {})
    assert ("identity.jwks", shown, "the configuration file") in list(described(layered))
    with pytest.raises(SettingsError) as caught:
        layer({"models": {"chat": {"timeoutSeconds": url}}}, {}, {})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize(
    ("section", "name"),
    [
        ("extraction", "idleSeconds"),
        ("retention", "turnsSeconds"),
        ("server", "graceSeconds"),
        ("worker", "pollSeconds"),
    ],
)
def test_a_number_that_counts_nothing_is_refused(section: str, name: str, value: float) -> None:
    with pytest.raises(SettingsError, match=f"{section}.{name}.*a finite number"):
        layer({section: {name: value}}, {}, {})


@given(
    user=st.text("abc", min_size=1),
    password=st.text("xyzXYZ0189%!*", min_size=6),
    kind=st.sampled_from(["postgresql://{u}:{p}@h:5432/d", "host=h user={u} password={p}", "password='{p}' host=h"]),
)
def test_no_password_survives_the_mask(user: str, password: str, kind: str) -> None:
    shown = masked_dsn(kind.format(u=user, p=password))
    assert password not in shown
    assert "h" in shown


def test_worker_mode_follows_its_flag() -> None:
    layered = layer(None, {"MEMPLANE_DSN": "postgresql://h/d"}, {"worker": "separate"})
    assert layered.config.worker.mode is WorkerMode.SEPARATE
    assert source(layered, "worker.mode") == "--no-worker"


WORDS = st.text(max_size=12) | st.sampled_from(
    ["0", "-1", "nan", "1e9", "0x10", "1_0", "٣", " 5 ", "9" * 5_000, "true", "\x00", "\udcff", "http://[", "http://h",
     "https://u:p@h/#x", "postgresql://u:pa@h/d", "tcp://x", "local", "external", "none", "cluster", "inline"]
)  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(WORDS | st.integers() | st.none(), below, max_size=3),
    max_leaves=5,
)


def _paths(section: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in section.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from _paths(value, (*above, name))


PATHS = sorted(_paths(ServiceConfig().model_dump(mode="json", by_alias=True)))


def _file(given: list[tuple[tuple[str, ...], Any]]) -> dict[Any, Any]:
    file: dict[Any, Any] = {}
    for path, value in given:
        here = file
        for name in path[:-1]:
            if not isinstance(here.get(name), dict):
                here[name] = {}
            here = here[name]
        here[path[-1]] = value
    return file


@given(
    st.lists(st.tuples(st.sampled_from(PATHS) | st.tuples(WORDS), ANYTHING), max_size=3),
    st.dictionaries(st.sampled_from([setting.variable for setting in SETTINGS]), WORDS, max_size=3),
)
def test_whatever_a_file_and_variables_say_they_are_a_configuration_or_refused_by_name(
    given: list[tuple[tuple[str, ...], Any]], env: dict[str, str]
) -> None:
    try:
        found: Layered | SettingsError = layer(_file(given), env, {})
    except SettingsError as refused:
        found = refused
    if isinstance(found, SettingsError):
        assert found.flaws
        assert all(flaw.field and flaw.expected and flaw.next_step for flaw in found.flaws)
    else:
        assert ServiceConfig.model_validate(found.config.model_dump()) == found.config
        assert "pa@" not in json.dumps([list(line) for line in described(found)])
