"""The console as compose and Kubernetes start it: its settings are settings of it, and nothing opens it by mistake."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from duetime_console import health
from duetime_console.settings import Settings
from duetime_core.access.exposure import refuse_exposed
from duetime_core.errors import StartupError

from tests.deploy.composing import PLAIN, PROJECT, SECURE, services_of
from tests.deploy.rendering import OVERLAYS, pods

PREFIX = "DUETIME_CONSOLE_"


def settings_of(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of a process that is started with these variables alone. Raises: StartupError."""
    for name in [name for name in os.environ if name.startswith("DUETIME_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return Settings.read()


def composed(files: tuple[str, ...], **given: str) -> dict[str, str]:
    """Variables of its container, by the image and the compose files."""
    image = dict(re.findall(rf"\b({PREFIX}\w+)=(\S+)", (PROJECT / "Dockerfile").read_text()))
    told: dict[str, Any] = services_of(files)["console"]["environment"]
    return image | {
        name: re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: given.get(found[1], found[2]), value)
        for name, value in told.items()
    }


def refuse(settings: Settings) -> None:
    for listener in (settings.listener, *settings.metrics_listener):
        refuse_exposed(listener, settings.insecure)


def test_compose_publishes_it_on_loopback_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(composed(PLAIN), monkeypatch)
    refuse(settings)
    assert (settings.server, settings.port, settings.metrics_port) == ("gateway:9800", 9880, 9815)
    beyond = settings_of(composed(PLAIN, DUETIME_CONSOLE_BIND="10.0.0.7"), monkeypatch)
    with pytest.raises(StartupError, match=r"10\.0\.0\.7 is reachable from other machines"):
        refuse(beyond)
    refuse(settings_of(composed(PLAIN, DUETIME_CONSOLE_BIND="10.0.0.7", DUETIME_INSECURE="1"), monkeypatch))


def test_compose_shows_it_by_https_where_there_are_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(composed(SECURE, DUETIME_CONSOLE_BIND="10.0.0.7"), monkeypatch)
    refuse(settings)
    assert settings.https
    assert settings.server_ca_file == "/etc/duetime/tls/ca.crt"
    assert not settings.insecure


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_gives_it_settings_that_it_knows(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (pod,) = [one for one in pods(overlay) if one.name == "duetime-console"]
    (container,) = pod.containers
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    told = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
    given = {variable["name"] for variable in container["env"] if "secretKeyRef" in variable.get("valueFrom", {})}
    assert given == {"DUETIME_CONSOLE_SECRET", "DUETIME_CONSOLE_TOKEN"}
    assert {name.removeprefix(PREFIX).lower() for name in given} <= Settings.model_fields.keys()
    settings = settings_of(told, monkeypatch)
    refuse(settings)
    assert (settings.port, settings.metrics_port) == (ports["http"], ports["metrics"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_passes_a_prometheus_url(overlay: str) -> None:
    (pod,) = [one for one in pods(overlay) if one.name == "duetime-console"]
    given = {variable["name"]: variable.get("valueFrom", {}) for variable in pod.containers[0]["env"]}
    assert given["DUETIME_CONSOLE_PROMETHEUS_URL"]["configMapKeyRef"]["key"] == "prometheus-url"


def test_component_of_monitoring_lets_it_reach_prometheus_and_nothing_else() -> None:
    folder = PROJECT / "deploy" / "k8s" / "components" / "monitoring"
    assert "console.yaml" in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    policy = yaml.safe_load((folder / "console.yaml").read_text())["spec"]
    assert policy["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "duetime-console"}
    (rule,) = policy["egress"]
    assert rule["to"] == [{"namespaceSelector": {"matchLabels": {"duetime.io/metrics": "scrape"}}}]
    assert [one["port"] for one in rule["ports"]] == [9090]


def test_compose_queries_prometheus_only_if_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of(composed(PLAIN), monkeypatch).prometheus_url == ""
    url = "http://prometheus:9090"
    told = composed(PLAIN, DUETIME_CONSOLE_PROMETHEUS_URL=url)
    assert settings_of(told, monkeypatch).prometheus_url == url
    assert services_of(PLAIN)["prometheus"]["ports"] == [
        "${OBSERVABILITY_BIND:-127.0.0.1}:${PROMETHEUS_PORT:-9090}:9090"
    ]


def test_health_is_asked_at_the_port_that_the_settings_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings_of({"DUETIME_CONSOLE_PORT": "1", "HOME": str(tmp_path)}, monkeypatch)
    assert health.main() == 1
    assert "refused" in capsys.readouterr().out
