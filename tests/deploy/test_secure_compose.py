"""Promises of docker-compose.yml and deploy/compose/secure.yml together."""

import pytest
import yaml
from duetime.cli.authority import names_of
from duetime_core.access.exposure import refuse_exposed
from duetime_webhooks.settings import WebhookSettings

from tests.deploy.composing import PLAIN, PROJECT, SECURE, mounts_of, services_of, settings_of, volumes_of

SERVICES = services_of(SECURE)
ROLES = {
    "store-0": "store",
    "store-1": "store",
    "scheduler": "scheduler",
    "retry": "retry",
    "gateway": "gateway",
    "console": "console",
    "backlog": "spark",
    "demo": "public",
    "webhooks": "webhooks",
}
SERVERS = tuple(name for name in ROLES if name not in ("backlog", "demo"))
TLS_DIR = "/etc/duetime/tls"
KEY = "A" * 43 + "="
CERTS_DIR = "/etc/duetime/certs"


@pytest.mark.parametrize("name", ROLES)
def test_service_has_the_certificate_of_its_role_and_no_other(name: str) -> None:
    mounts = mounts_of(SERVICES[name])
    assert {target: volume for target, volume in mounts.items() if volume.startswith("certs")} == {
        TLS_DIR: f"certs-{ROLES[name]}"
    }
    assert f"certs-{ROLES[name]}:{TLS_DIR}:ro" in SERVICES[name]["volumes"]
    # Its former mounts are kept.
    assert mounts.items() >= mounts_of(services_of(PLAIN)[name]).items()


def test_only_the_certificate_service_sees_the_ca_key() -> None:
    holders = {name: service for name, service in SERVICES.items() if "certs" in mounts_of(service).values()}
    assert set(holders) == {"certs"}
    certs = holders["certs"]
    roles = set(ROLES.values())
    assert mounts_of(certs) == {CERTS_DIR: "certs"} | {f"{CERTS_DIR}/{role}": f"certs-{role}" for role in roles}
    assert certs["network_mode"] == "none"
    assert certs["read_only"] is True
    assert certs["cap_drop"] == ["ALL"]
    assert certs["security_opt"] == ["no-new-privileges:true"]
    assert set(certs["deploy"]["resources"]["limits"]) == {"cpus", "memory"}


def test_image_has_the_directories_so_that_volumes_are_the_users() -> None:
    """A volume takes the owner of the directory at which it is mounted first, whichever container is made first."""
    line = next(line for line in (PROJECT / "Dockerfile").read_text().splitlines() if "for name in tls certs" in line)
    made = set(line.partition(" in ")[2].partition(";")[0].split())
    assert {"tls", "certs", *(f"certs/{role}" for role in ROLES.values())} == made


def test_every_volume_is_declared() -> None:
    named = {volume for service in SERVICES.values() for volume in mounts_of(service).values()}
    assert {name for name in named if not name.startswith("./")} == volumes_of(SECURE)


def test_servers_also_wait_for_their_certificates() -> None:
    for name in SERVERS:
        needs = {needed: how["condition"] for needed, how in SERVICES[name]["depends_on"].items()}
        assert needs.pop("certs") == "service_completed_successfully"
        before = services_of(PLAIN)[name].get("depends_on", {})
        assert needs == {needed: how["condition"] for needed, how in before.items()}


def test_no_registry_is_asked_for_the_image_that_makes_certificates() -> None:
    assert SERVICES["certs"]["image"] == SERVICES["gateway"]["image"]
    assert SERVICES["certs"]["pull_policy"] == "never"
    assert "build" not in SERVICES["certs"]


def test_nothing_more_is_published() -> None:
    before = services_of(PLAIN)
    assert {name: service["ports"] for name, service in SERVICES.items() if "ports" in service} == {
        name: service["ports"] for name, service in before.items() if "ports" in service
    }


@pytest.mark.parametrize("name", [name for name in SERVERS if name != "console"])
def test_secure_process_stays_protected_at_any_published_address(name: str) -> None:
    told = {
        "DUETIME_BIND": "10.0.0.7",
        "DUETIME_INSECURE": "1",
        "DUETIME_CLUSTER_SECRET": "x" * 16,
        "DUETIME_SECRETS_KEY": KEY,
    }
    settings = settings_of(name, SERVICES[name], **told)
    for listener in settings.metrics_listener:
        refuse_exposed(listener, insecure=False)
        assert listener.tls
    assert not settings.insecure
    assert not settings.secret
    for listener in settings.listeners:
        refuse_exposed(listener, insecure=False)
        assert listener.tls
        assert listener.authenticated


def test_webhook_worker_trusts_the_gateway_and_has_its_key() -> None:
    told = SERVICES["webhooks"]["environment"]
    assert told["DUETIME_SECRETS_KEY"] == SERVICES["gateway"]["environment"]["DUETIME_SECRETS_KEY"]
    settings = settings_of("webhooks", SERVICES["webhooks"], DUETIME_SECRETS_KEY=KEY)
    assert isinstance(settings, WebhookSettings)
    assert settings.server_ca_file == f"{TLS_DIR}/ca.crt"


def test_prometheus_reads_metrics_by_tls_and_knows_nothing_but_the_authority() -> None:
    mounts = mounts_of(SERVICES["prometheus"])
    assert mounts["/etc/prometheus/tls"] == "certs-public"
    assert {volume for volume in mounts.values() if volume.startswith("certs")} == {"certs-public"}
    before = mounts_of(services_of(PLAIN)["prometheus"])
    config, plain = (
        yaml.safe_load((PROJECT / found["/etc/prometheus/prometheus.yml"]).read_text()) for found in (mounts, before)
    )
    for job in config["scrape_configs"]:
        role = job["job_name"].removeprefix("duetime-")
        assert job.pop("scheme") == "https"
        assert job.pop("tls_config") == {"ca_file": "/etc/prometheus/tls/ca.crt", "server_name": role}
    assert config == plain


def test_certificates_have_the_names_by_which_processes_are_called() -> None:
    stores = [
        part.partition("=")[2] for part in SERVICES["gateway"]["environment"]["DUETIME_GATEWAY_STORES"].split(",")
    ]
    called = {
        "store": stores,
        "retry": [SERVICES["gateway"]["environment"]["DUETIME_GATEWAY_RETRY_ADDRESS"]],
        "gateway": [SERVICES["demo"]["environment"]["DUETIME_SERVER"]],
    }
    for role, addresses in called.items():
        assert {address.partition(":")[0] for address in addresses} <= set(names_of(role))


def test_spark_uses_the_certified_port() -> None:
    port = SERVICES["gateway"]["environment"]["DUETIME_GATEWAY_CERTIFIED_PORT"]
    assert f"grpc://gateway:{port}" in (PROJECT / "deploy" / "compose" / "secure.yml").read_text()
    assert {"inside"} <= set(SERVICES["backlog"]["networks"])
