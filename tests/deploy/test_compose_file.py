"""Promises of docker-compose.yml, read from the file: `make compose-test` brings it up."""

from typing import Any

import pytest
import yaml
from duetime_core.access.callers import ClusterSecret
from duetime_core.access.exposure import refuse_exposed
from duetime_core.errors import StartupError
from duetime_core.node.settings import NodeSettings

from tests.deploy.composing import PROJECT, settings_of

FILE: dict[str, Any] = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
SERVERS = ("store-0", "store-1", "scheduler", "retry", "gateway")
# Started by hand for one answer; it ends by itself.
ONE_SHOT = ("demo",)


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_limits_a_restart_policy_and_bounded_logs(name: str) -> None:
    service = SERVICES[name]
    if name not in ONE_SHOT:
        assert set(service["deploy"]["resources"]["limits"]) >= {"cpus", "memory"}
    assert service["restart"]
    assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}
    assert "no-new-privileges:true" in service["security_opt"]


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "postgres"])
def test_every_service_but_the_database_is_read_only_and_without_capabilities(name: str) -> None:
    assert SERVICES[name]["read_only"] is True
    assert SERVICES[name]["cap_drop"] == ["ALL"]


def test_own_images_are_never_pulled() -> None:
    policies = {name: service.get("pull_policy") for name, service in SERVICES.items()}
    ours = {name for name, service in SERVICES.items() if service["image"].startswith("duetime/")}
    assert ours >= {"migrate", *SERVERS}
    assert {name for name, policy in policies.items() if policy == "never"} == ours


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_is_stopped_only_after_its_drain(name: str) -> None:
    assert SERVICES[name]["stop_grace_period"] == "30s"
    assert SERVICES[name]["restart"] == "unless-stopped"


def test_only_the_clusters_processes_get_the_secret() -> None:
    told = {name: service.get("environment", {}).get("DUETIME_CLUSTER_SECRET") for name, service in SERVICES.items()}
    assert {name for name, secret in told.items() if secret} == set(SERVERS)
    (default,) = {
        secret.removeprefix("${DUETIME_CLUSTER_SECRET:-").removesuffix("}") for secret in told.values() if secret
    }
    assert ClusterSecret(default)


def test_ports_are_published_on_loopback_by_default() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"gateway", "console", "prometheus", "grafana"}
    # Prometheus and Grafana ask nobody who they are, however well the gateway is shut.
    variables = {
        "gateway": "DUETIME_BIND",
        "console": "DUETIME_CONSOLE_BIND",
        "prometheus": "OBSERVABILITY_BIND",
        "grafana": "OBSERVABILITY_BIND",
    }
    for name, ports in published.items():
        assert all(port.startswith(f"${{{variables[name]}:-127.0.0.1}}:") for port in ports)
    assert FILE["networks"]["inside"] == {"internal": True}
    # The worker of webhooks only calls out.
    outside = {name for name, service in SERVICES.items() if "outside" in service["networks"]}
    assert outside == {*published, "webhooks"}


def refuse(settings: NodeSettings) -> None:
    for listener in (*settings.listeners, *settings.metrics_listener):
        refuse_exposed(listener, settings.insecure)


@pytest.mark.parametrize("name", SERVERS)
def test_every_process_starts_as_it_is(name: str) -> None:
    refuse(settings_of(name, SERVICES[name]))


def test_gateway_published_beyond_loopback_needs_consent() -> None:
    with pytest.raises(StartupError, match=r"10\.0\.0\.7 is reachable from other machines.*DUETIME_INSECURE=1"):
        refuse(settings_of("gateway", SERVICES["gateway"], DUETIME_BIND="10.0.0.7"))
    refuse(settings_of("gateway", SERVICES["gateway"], DUETIME_BIND="10.0.0.7", DUETIME_INSECURE="1"))
    # Those that nobody reaches are not concerned.
    refuse(settings_of("store-0", SERVICES["store-0"], DUETIME_BIND="10.0.0.7"))


def test_processes_start_once_their_dependencies_are_healthy() -> None:
    for name in ("scheduler", "retry", "gateway"):
        needs = {needed: how["condition"] for needed, how in SERVICES[name]["depends_on"].items()}
        assert needs["migrate"] == "service_completed_successfully"
        assert needs["store-0"] == needs["store-1"] == "service_healthy"


def test_every_mounted_file_is_there() -> None:
    mounts = [mount for service in SERVICES.values() for mount in service.get("volumes", [])]
    files = [PROJECT / mount.split(":")[0] for mount in mounts if mount.startswith("./")]
    assert files
    assert [path for path in files if not path.exists()] == []
    volumes = {mount.split(":")[0] for mount in mounts if not mount.startswith("./")}
    assert volumes == set(FILE["volumes"])
