"""How overlays keep strangers out: by certificates and users, or by nothing but the network, and then they say so."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from duetime.cli.authority import names_of

from tests.deploy.rendering import K8S, OVERLAYS, PLAIN, SECURE, Manifest, Pods, of_kind, pods, render

SERVERS = ("store", "gateway", "scheduler", "retry")
TLS_DIR = "/etc/duetime/tls"
TLS_FILES = {
    "DUETIME_TLS_CERT_FILE": f"{TLS_DIR}/tls.crt",
    "DUETIME_TLS_KEY_FILE": f"{TLS_DIR}/tls.key",
    "DUETIME_TLS_CA_FILE": f"{TLS_DIR}/ca.crt",
}
# The console calls with a user's token: it shows no client certificate, and has one for browsers.
CONSOLE_FILES = {
    "DUETIME_CONSOLE_TLS_CERT_FILE": f"{TLS_DIR}/tls.crt",
    "DUETIME_CONSOLE_TLS_KEY_FILE": f"{TLS_DIR}/tls.key",
    "DUETIME_TLS_CA_FILE": f"{TLS_DIR}/ca.crt",
}

secure_overlay = pytest.mark.parametrize("overlay", SECURE)
every_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def role_of(pod: Pods) -> str:
    return pod.name.split("-")[1]


def variables(pod: Pods) -> dict[str, Any]:
    """Of its last container, the one that calls and is called: names with values, or with where they come from."""
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in pod.containers[-1].get("env", [])}


def pods_of(overlay: str, *roles: str) -> list[Pods]:
    return [pod for pod in pods(overlay) if role_of(pod) in roles]


@secure_overlay
def test_processes_have_the_certificate_of_their_role_and_no_other(overlay: str) -> None:
    for pod in pods(overlay):
        mounted = [volume for volume in pod.spec.get("volumes", []) if "secret" in volume]
        if role_of(pod) not in (*SERVERS, "console", "webhooks", "spark"):
            assert mounted == [], pod.name
            continue
        (volume,) = mounted
        assert volume["secret"] == {"secretName": f"duetime-{role_of(pod)}-tls", "defaultMode": 0o440}
        # The volume gets this group, so that user 10001 reads it.
        assert pod.spec["securityContext"]["fsGroup"] == 10001
        (mount,) = [one for one in pod.containers[-1]["volumeMounts"] if one["name"] == volume["name"]]
        # A file that is mounted by subPath is never renewed.
        assert mount == {"name": volume["name"], "mountPath": TLS_DIR, "readOnly": True}
        assert variables(pod).items() >= (CONSOLE_FILES if role_of(pod) == "console" else TLS_FILES).items()


@secure_overlay
def test_processes_need_certificates_clients_need_tokens(overlay: str) -> None:
    for pod in pods(overlay):
        assert not {"DUETIME_INSECURE", "DUETIME_CLUSTER_SECRET"} & variables(pod).keys(), pod.name
    (gateway,) = pods_of(overlay, "gateway")
    assert variables(gateway)["DUETIME_GATEWAY_AUTH"] == "required"
    for pod in pods_of(overlay, *SERVERS, "webhooks"):
        assert variables(pod)[f"DUETIME_{role_of(pod).upper()}_METRICS_TLS"] == "on"


def test_prometheus_knows_pods_by_a_name_that_all_certificates_have() -> None:
    (monitor,) = of_kind("production", "ServiceMonitor").values()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    monitored = (*SERVERS, "console", "webhooks")
    assert all(endpoint["tlsConfig"]["serverName"] in certificates()[role]["dnsNames"] for role in monitored)
    trusted = endpoint["tlsConfig"]["ca"]["secret"]
    assert (trusted["name"], trusted["key"]) == (certificates()["gateway"]["secretName"], "ca.crt")


@pytest.mark.parametrize("overlay", PLAIN)
def test_plain_overlay_says_that_it_is(overlay: str) -> None:
    for pod in pods_of(overlay, *SERVERS):
        assert variables(pod)["DUETIME_INSECURE"] == "1"
        assert not TLS_FILES.keys() & variables(pod).keys()


@every_overlay
def test_services_declare_their_protocol_to_proxies(overlay: str) -> None:
    expected = "https" if overlay in SECURE else "kubernetes.io/h2c"
    told = {
        port["appProtocol"]
        for name, service in of_kind(overlay, "Service").items()
        for port in service["spec"]["ports"]
        if name not in ("duetime-metrics", "duetime-postgres", "duetime-console")
    }
    assert told == {expected}


@every_overlay
def test_the_console_shows_its_pages_by_https_where_there_are_certificates(overlay: str) -> None:
    (port,) = of_kind(overlay, "Service")["duetime-console"]["spec"]["ports"]
    assert port["appProtocol"] == ("https" if overlay in SECURE else "http")
    (console,) = pods_of(overlay, "console")
    told = variables(console)
    assert told["DUETIME_CONSOLE_SERVER"] == "duetime-gateway:9800"
    assert ("DUETIME_INSECURE" in told) == (overlay in PLAIN)
    assert "DUETIME_CLUSTER_SECRET" not in told
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        scheme = console.containers[-1][probe]["httpGet"].get("scheme", "HTTP")
        assert scheme == ("HTTPS" if overlay in SECURE else "HTTP")


@secure_overlay
def test_spark_calls_the_port_that_asks_for_its_certificate(overlay: str) -> None:
    (spark,) = pods_of(overlay, "spark")
    service = of_kind(overlay, "Service")["duetime-gateway-certified"]["spec"]
    (port,) = service["ports"]
    assert f"grpc://duetime-gateway-certified:{port['port']}" in spark.containers[0]["command"]
    (gateway,) = pods_of(overlay, "gateway")
    (own,) = [one for one in gateway.spec["containers"][0]["ports"] if one["name"] == port["targetPort"]]
    assert own["containerPort"] == port["port"]
    assert service.get("type", "ClusterIP") == "ClusterIP"


def certificates() -> dict[str, Manifest]:
    """Specs of the certificates of roles, by role."""
    return {
        name.removeprefix("duetime-"): one["spec"]
        for name, one in of_kind("production", "Certificate").items()
        if not one["spec"].get("isCA")
    }


def test_cert_manager_makes_the_secrets_that_are_mounted_with_the_roles_that_they_are_for() -> None:
    made = certificates()
    assert set(made) == {*SERVERS, "console", "webhooks", "spark", "keda"}
    for role, spec in made.items():
        assert spec["secretName"] == f"duetime-{role}-tls"
        assert spec["uris"] == [f"spiffe://duetime/{role}"]
        assert spec["usages"] == ["digital signature", "server auth", "client auth"]
        assert spec["privateKey"]["rotationPolicy"] == "Always"
        assert hours(spec["renewBefore"]) * 2 < hours(spec["duration"])


def hours(text: str) -> int:
    found = re.fullmatch(r"(\d+)h", text)
    assert found is not None
    return int(found[1])


def called() -> dict[str, set[str]]:
    """The hosts as which processes of each role are called, as the manifests of production have it."""
    (settings,) = (one for name, one in of_kind("production", "ConfigMap").items() if "settings" in name)
    (gateway,) = pods_of("production", "gateway")
    (scaled,) = of_kind("production", "ScaledObject").values()
    addresses = {
        "store": [part.partition("=")[2] for part in settings["data"]["stores"].split(",")],
        "retry": [variables(gateway)["DUETIME_GATEWAY_RETRY_ADDRESS"]],
        "gateway": [
            "duetime-gateway.duetime.svc:9800",
            "duetime-gateway-certified:9802",
            scaled["spec"]["triggers"][0]["metadata"]["scalerAddress"],
        ],
    }
    return {role: {address.rpartition(":")[0] for address in found} for role, found in addresses.items()}


def test_certificates_have_the_names_by_which_processes_are_called() -> None:
    made = certificates()
    for role, hosts in called().items():
        assert hosts <= set(made[role]["dnsNames"])
        # Those that `duetime certs init` makes, too.
        assert hosts <= set(names_of(role))
    services = of_kind("production", "Service")
    for role in SERVERS:
        inner = {name for name in made[role]["dnsNames"] if re.fullmatch(r"duetime-[a-z0-9-]+", name)}
        assert inner <= services.keys()


def test_authority_of_the_certificates_is_the_namespaces_own() -> None:
    issuers = of_kind("production", "Issuer")
    (authority,) = [one for one in of_kind("production", "Certificate").values() if one["spec"].get("isCA")]
    assert issuers[authority["spec"]["issuerRef"]["name"]]["spec"] == {"selfSigned": {}}
    # Certificates from before and after a renewal of it are good to each other.
    assert authority["spec"]["privateKey"]["rotationPolicy"] == "Never"
    for spec in certificates().values():
        assert issuers[spec["issuerRef"]["name"]]["spec"]["ca"]["secretName"] == authority["spec"]["secretName"]


def test_keda_shows_its_own_certificate() -> None:
    (scaled,) = of_kind("production", "ScaledObject").values()
    (trigger,) = scaled["spec"]["triggers"]
    signed = of_kind("production", "TriggerAuthentication")[trigger["authenticationRef"]["name"]]
    told = {one["parameter"]: (one["name"], one["key"]) for one in signed["spec"]["secretTargetRef"]}
    secret = certificates()["keda"]["secretName"]
    assert told == {
        "caCert": (secret, "ca.crt"),
        "tlsClientCert": (secret, "tls.crt"),
        "tlsClientKey": (secret, "tls.key"),
    }


def test_production_takes_given_secrets_when_cert_manager_is_left_out(tmp_path: Path) -> None:
    root = tmp_path / "k8s"
    shutil.copytree(K8S, root)
    overlay = root / "overlays" / "production" / "kustomization.yaml"
    line = "  - ../../components/cert-manager\n"
    text = overlay.read_text()
    assert text.count(line) == 1
    overlay.write_text(text.replace(line, ""))
    rest = [one for one in render("production") if one["kind"] not in ("Certificate", "Issuer")]
    assert list(render("production", root)) == rest
