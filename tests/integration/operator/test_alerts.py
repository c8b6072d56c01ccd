"""The chart's alerts, as Prometheus reads them: what series make of each of them stands in alerts.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.commands import run
from e2e.cluster.fixtures import promtool
from manifests import render

__all__ = ["promtool"]

CASES = Path(__file__).with_name("alerts.yaml")


@pytest.fixture(scope="module")
def groups() -> list[dict[str, Any]]:
    """The groups of the PrometheusRule that the chart renders."""
    objects = render.template("--set", "metrics.rules.enabled=true")
    (rule,) = [item for item in objects if item["kind"] == "PrometheusRule"]
    found: list[dict[str, Any]] = rule["spec"]["groups"]
    return found


@pytest.fixture
def rules(groups: list[dict[str, Any]], tmp_path: Path) -> Path:
    """A file of rules, as Prometheus loads them."""
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": groups}, allow_unicode=True))
    return path


def test_prometheus_loads_the_rules(promtool: Path, rules: Path) -> None:
    run([promtool, "check", "rules", "--lint=all", "--lint-fatal", rules])


def test_each_alert_fires_when_it_should_says_what_it_should_and_else_is_silent(promtool: Path, rules: Path) -> None:
    (rules.parent / CASES.name).write_text(CASES.read_text())
    run([promtool, "test", "rules", rules.parent / CASES.name], timeout_seconds=60)


def test_each_alert_has_series_that_fire_it_and_series_of_their_own_that_do_not(groups: list[dict[str, Any]]) -> None:
    fired, silent = set(), set()
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        fires = {item["alertname"] for item in case["alert_rule_test"] if item["exp_alerts"]}
        fired |= fires
        silent |= {item["alertname"] for item in case["alert_rule_test"]} - fires
    assert fired == silent == {rule["alert"] for group in groups for rule in group["rules"]}
