"""Alert rules and dashboards: they name metrics that exist, and promtool finds them right."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.deploy.composing import REPLICATED, services_of

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = PROJECT / "deploy" / "observability"
RULES = sorted((FOLDER / "alerts").glob("*.yml"))
RULE_TESTS = sorted((FOLDER / "alerts" / "tests").glob("*.yml"))

LITERAL = re.compile(r'"(duetime_[a-z0-9_]+)"')
NAMED = re.compile(r"\b(?:duetime|process)_[a-z0-9_]+\b")
RECORDED = re.compile(r"\bduetime:[a-z0-9_:]+\b")
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds"}


@pytest.fixture(scope="module")
def dashboards() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dashboards", FOLDER / "dashboards.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def known_metrics() -> set[str]:
    """Names that the code gives to metrics, as they are exported."""
    names = {
        name
        for folder in ("core", "services", "console")
        for path in (PROJECT / folder).rglob("*.py")
        for name in LITERAL.findall(path.read_text())
    }
    return PROCESS | {name + ending for name in names for ending in ("", "_total", "_bucket", "_sum", "_count")}


@cache
def rules() -> list[dict[str, Any]]:
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def promtool(*arguments: str | Path) -> str:
    """Its output; a test without promtool is skipped by name, unless it is asked for."""
    program = shutil.which("promtool")
    if program is None:
        if os.environ.get("DUETIME_TEST_REQUIRE_PROMTOOL"):
            pytest.fail("promtool is missing: Debian's package prometheus has it")
        pytest.skip("promtool is missing: Debian's package prometheus has it")
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def unknown(expression: str) -> set[str]:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    return (set(NAMED.findall(expression)) - known_metrics()) | (set(RECORDED.findall(expression)) - recorded)


def test_rules_name_metrics_that_exist() -> None:
    found = {rule.get("alert") or rule["record"]: unknown(rule["expr"]) for rule in rules()}
    assert len(found) > 30
    assert {name: names for name, names in found.items() if names} == {}
    assert unknown("rate(duetime_store_no_such_total[5m]) > duetime:no_such:ratio") != set()


def test_dashboards_name_metrics_that_exist(dashboards: ModuleType) -> None:
    queries = [
        (panel.title, query)
        for dashboard in dashboards.DASHBOARDS
        for row in dashboard.rows
        for panel in row
        for query, _ in panel.queries
    ]
    assert len(queries) > 40
    assert {title: unknown(query) for title, query in queries if unknown(query)} == {}


def test_dashboard_files_equal_the_module_s_output(dashboards: ModuleType) -> None:
    files = {path.stem: path.read_text() for path in (FOLDER / "grafana" / "dashboards").glob("*.json")}
    assert files == {dashboard.name: dashboards.to_json(dashboard) for dashboard in dashboards.DASHBOARDS}


def test_dashboards_fill_their_rows_and_use_the_provisioned_source() -> None:
    source = yaml.safe_load((FOLDER / "grafana/provisioning/datasources/duetime.yml").read_text())["datasources"][0]
    for path in (FOLDER / "grafana" / "dashboards").glob("*.json"):
        dashboard = json.loads(path.read_text())
        widths: dict[int, int] = {}
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            widths[place["y"]] = widths.get(place["y"], 0) + place["w"]
            assert panel["datasource"] == {"type": source["type"], "uid": source["uid"]}
        assert set(widths.values()) == {24}, path.name


def test_alerts_have_severity_and_advice() -> None:
    text = (PROJECT / "docs" / "runbooks.md").read_text()
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }
    names = [alert["alert"] for alert in alerts()]
    assert len(names) == len(set(names))
    for alert in alerts():
        assert alert["labels"]["severity"] in ("page", "ticket"), alert["alert"]
        assert alert["annotations"].keys() == {"summary", "description", "runbook"}, alert["alert"]
        page, _, anchor = alert["annotations"]["runbook"].partition("#")
        assert (page, anchor in anchors) == ("docs/runbooks.md", True), alert["alert"]


def test_operations_page_lists_every_alert() -> None:
    text = (PROJECT / "docs" / "operations.md").read_text()
    assert [alert["alert"] for alert in alerts() if f"`{alert['alert']}`" not in text] == []


def test_prometheus_scrapes_every_process_and_loads_the_rules() -> None:
    config = yaml.safe_load((FOLDER / "prometheus" / "prometheus.yml").read_text())
    jobs = {job["job_name"] for job in config["scrape_configs"]}
    processes = ("store", "gateway", "scheduler", "retry", "webhooks", "console")
    assert jobs == {f"duetime-{name}" for name in processes}
    for name in ("prometheus.yml", "secure.yml"):
        promtool("check", "config", "--syntax-only", FOLDER / "prometheus" / name)


def test_promtool_takes_the_rules() -> None:
    assert "SUCCESS" in promtool("check", "rules", *RULES)


@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.stem)
def test_promtool_raises_the_alerts_that_it_should(path: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", path)


def test_prometheus_scrapes_the_services_and_ports_of_the_compose_file() -> None:
    services = services_of(REPLICATED)
    ports = dict(re.findall(r"DUETIME_([A-Z]+)_METRICS_PORT=(\d+)", (PROJECT / "Dockerfile").read_text()))
    config = yaml.safe_load((FOLDER / "prometheus" / "prometheus.yml").read_text())
    for job in config["scrape_configs"]:
        process = job["job_name"].removeprefix("duetime-").upper()
        for found in job["dns_sd_configs"]:
            assert set(found["names"]) <= services.keys()
            assert found["port"] == int(ports[process])
