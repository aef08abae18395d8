"""Conditions of every pod of ours in the rendered manifests; each rule breaks with the manifest."""

import re
from base64 import b64decode
from importlib.metadata import entry_points
from itertools import product

import pytest
from duetime.client.tokens import TOKEN_VARIABLE
from duetime_core.access.callers import ClusterSecret
from duetime_core.node.settings import SECRETS_KEY_VARIABLE, SHARED_VARIABLES
from duetime_webhooks.settings import WebhookSettings

from tests.deploy.composing import PROJECT
from tests.deploy.rendering import LARGE, OVERLAYS, PLAIN, Pods, of_kind, pods, quantity

CASES = [pytest.param(one, id=f"{overlay}-{one.kind}-{one.name}") for overlay in OVERLAYS for one in pods(overlay)]
SERVING = [case for case in CASES if case.values[0].serves]  # type: ignore[union-attr]
OURS = ("store", "gateway", "scheduler", "retry")
# The component of `production`.
OPTIONAL = ("webhooks",)
# Overlays whose shards have one copy; test_copies.py has the rules of the other one.
ALONE = tuple(overlay for overlay in OVERLAYS if overlay != "replicated")
DRAIN_S = 5

every_pod = pytest.mark.parametrize("pod", CASES)
serving_pod = pytest.mark.parametrize("pod", SERVING)


def test_all_workloads_are_looked_at() -> None:
    names = {one.name for one in pods("production")}
    always = {f"duetime-{name}" for name in (*OURS, "console", "migrate", "spark-backlog")}
    assert names == always | {f"duetime-{name}" for name in OPTIONAL}
    for overlay in ("local", "local-secure"):
        assert {one.name for one in pods(overlay)} == {*always, "duetime-postgres"}


def test_upgrade_by_a_stop_starts_deployments_without_replicas_by_name() -> None:
    """`kubectl apply` leaves them at 0, and so does their autoscaler."""
    page = (PROJECT / "docs" / "upgrading.md").read_text()
    unset = [name for name, one in of_kind("production", "Deployment").items() if "replicas" not in one["spec"]]
    assert unset
    assert [name for name in unset if f"deployment/{name} --replicas=" not in page] == []


@every_pod
def test_every_container_has_requests_and_limits(pod: Pods) -> None:
    for container in pod.containers:
        resources = container["resources"]
        for name in ("cpu", "memory", "ephemeral-storage"):
            assert 0 < quantity(resources["requests"][name]) <= quantity(resources["limits"][name])


@every_pod
def test_no_container_may_do_more_than_it_needs(pod: Pods) -> None:
    """Pod security "restricted", and a read-only root on top of it."""
    context = pod.spec["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == context["runAsGroup"] == 10001
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.spec.keys()
    for container in pod.containers:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        }
        assert not any("hostPort" in port for port in container.get("ports", []))


@every_pod
def test_nothing_of_the_host_is_mounted(pod: Pods) -> None:
    for volume in pod.spec.get("volumes", []):
        assert volume.keys() - {"name"} <= {"emptyDir", "configMap", "secret"}, volume
        assert "sizeLimit" in volume.get("emptyDir", {"sizeLimit": ""}), volume


@every_pod
def test_root_being_read_only_there_is_a_place_to_write(pod: Pods) -> None:
    for container in pod.containers:
        assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}


@every_pod
def test_images_have_a_version(pod: Pods) -> None:
    for container in pod.containers:
        assert re.fullmatch(r".+(:[\w.-]+|@sha256:[0-9a-f]{64})", container["image"]), container["image"]
        assert not container["image"].endswith(":latest")
        assert container.get("imagePullPolicy", "IfNotPresent") != "Always"


@every_pod
def test_no_pod_can_talk_to_the_cluster(pod: Pods) -> None:
    assert pod.spec["automountServiceAccountToken"] is False
    assert pod.spec["serviceAccountName"] == "duetime"


@every_pod
def test_no_variables_are_made_of_services(pod: Pods) -> None:
    """DUETIME_GATEWAY_PORT=tcp://… would be a setting, and a wrong one."""
    assert pod.spec["enableServiceLinks"] is False


@every_pod
def test_secrets_come_from_secrets(pod: Pods) -> None:
    for container in pod.containers:
        for variable in container.get("env", []):
            if re.search("PASSWORD|SECRET|TOKEN|DATABASE_URL", variable["name"]):
                assert "secretKeyRef" in variable["valueFrom"], variable
        assert "$(" not in " ".join([*container.get("command", []), *container.get("args", [])])


@pytest.mark.parametrize("overlay", PLAIN)
def test_only_the_clusters_processes_get_the_secret(overlay: str) -> None:
    given = {
        one.name: variable["valueFrom"]
        for one in pods(overlay)
        for container in one.containers
        for variable in container.get("env", [])
        if variable["name"] == "DUETIME_CLUSTER_SECRET"
    }
    assert set(given) == {f"duetime-{name}" for name in OURS}
    references = [(one["secretKeyRef"]["name"], one["secretKeyRef"]["key"]) for one in given.values()]
    # Where the overlay makes the Secret, its name ends with a hash.
    assert len(set(references)) == 1
    assert re.fullmatch(r"duetime-cluster(-\w+)?", references[0][0])
    assert references[0][1] == "secret"
    for secret in of_kind(overlay, "Secret").values():
        if "secret" in secret.get("data", {}):
            assert ClusterSecret(b64decode(secret["data"]["secret"]).decode())


@serving_pod
def test_serving_containers_have_all_three_probes(pod: Pods) -> None:
    (container,) = pod.spec["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe].get("timeoutSeconds", 1) <= container[probe]["periodSeconds"]
        if pod.name == "duetime-console":
            assert container[probe]["httpGet"]["path"] == "/healthz"
            assert container[probe]["httpGet"]["port"] == "http"
        elif pod.name != "duetime-postgres":
            port = next(port["containerPort"] for port in container["ports"] if port["name"] == "probe")
            assert container[probe]["grpc"]["port"] == port
    if pod.name not in ("duetime-postgres", "duetime-console"):
        assert container["livenessProbe"]["grpc"]["service"] == "liveness"
        assert "service" not in container["readinessProbe"]["grpc"]


@serving_pod
def test_pods_drain_before_they_are_killed(pod: Pods) -> None:
    (container,) = pod.spec["containers"]
    stop = container["lifecycle"]["preStop"]
    pause_s = stop["sleep"]["seconds"] if "sleep" in stop else 10
    assert pause_s > 0
    assert pod.spec["terminationGracePeriodSeconds"] >= pause_s + 2 * DRAIN_S + 5


@pytest.mark.parametrize(("overlay", "name"), [*product(OVERLAYS, OURS), *product(["production"], OPTIONAL)])
def test_ports_are_the_configured_ones(overlay: str, name: str) -> None:
    (pod,) = (one for one in pods(overlay) if one.name == f"duetime-{name}")
    (container,) = pod.spec["containers"]
    told = {variable["name"]: variable.get("value") for variable in container["env"]}
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    assert told[f"DUETIME_{name.upper()}_PORT"] == ports["grpc"]
    assert told[f"DUETIME_{name.upper()}_METRICS_PORT"] == ports["metrics"]
    assert told[f"DUETIME_{name.upper()}_PROBE_PORT"] == ports["probe"]
    assert told.get("DUETIME_GATEWAY_CERTIFIED_PORT") == ports.get("certified")


@every_pod
def test_settings_are_settings_of_the_process(pod: Pods) -> None:
    """A variable that is none ends the process at its start: the ConfigMap's are not seen by any other test."""
    kinds = {entry.name: entry.load().settings_class for entry in entry_points(group="duetime.nodes")}
    kinds |= {"webhooks": WebhookSettings}
    shared = SHARED_VARIABLES | {SECRETS_KEY_VARIABLE, TOKEN_VARIABLE}
    for container in pod.containers:
        if container["name"] in kinds:
            known = {f"DUETIME_{container['name']}_{field}".upper() for field in kinds[container["name"]].model_fields}
            assert {variable["name"] for variable in container["env"]} <= known | shared


@pytest.mark.parametrize(
    ("overlay", "name"),
    [
        *product(ALONE, [*OURS, "console"]),
        *product(LARGE, OPTIONAL),
        ("replicated", "gateway"),
        ("replicated", "retry"),
    ],
)
def test_disruptions_are_bounded_and_pods_spread(overlay: str, name: str) -> None:
    budget = of_kind(overlay, "PodDisruptionBudget")[f"duetime-{name}"]["spec"]
    (pod,) = (one for one in pods(overlay) if one.name == f"duetime-{name}")
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"].items() <= pod.labels.items()
    affinity = pod.spec["affinity"]["podAntiAffinity"]
    assert any(affinity.values())
    if (overlay, name) == ("production", "store"):
        (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_find_their_pods(overlay: str) -> None:
    everyone = list(pods(overlay))
    for name, service in of_kind(overlay, "Service").items():
        selector = dict(service["spec"]["selector"])
        # Given to each pod of a StatefulSet by its controller.
        index = selector.pop("apps.kubernetes.io/pod-index", None)
        found = [pod for pod in everyone if selector.items() <= pod.labels.items()]
        assert found, name
        for port in service["spec"]["ports"]:
            for pod in found:
                assert port["targetPort"] in {one["name"] for one in pod.spec["containers"][0]["ports"]}, name
        if index is not None:
            assert int(index) < found[0].resource["spec"]["replicas"]


def test_prometheus_finds_each_pod_with_metrics() -> None:
    selector = of_kind("production", "Service")["duetime-metrics"]["spec"]["selector"]
    ports = {pod.name: [port["name"] for port in pod.containers[-1].get("ports", [])] for pod in pods("production")}
    found = {pod.name for pod in pods("production") if selector.items() <= pod.labels.items()}
    assert found == {name for name, named in ports.items() if "metrics" in named}
    assert "duetime-webhooks" in found


@pytest.mark.parametrize("overlay", ALONE)
def test_every_shard_has_a_volume_a_service_and_a_place_in_the_settings(overlay: str) -> None:
    store = of_kind(overlay, "StatefulSet")["duetime-store"]["spec"]
    count = store["replicas"]
    services = of_kind(overlay, "Service")
    (settings,) = (one for name, one in of_kind(overlay, "ConfigMap").items() if name.startswith("duetime-settings"))
    expected = ",".join(f"{shard}=duetime-store-{shard}:9801" for shard in range(count))
    assert settings["data"]["stores"] == expected
    assert {f"duetime-store-{shard}" for shard in range(count)} <= services.keys()
    assert f"duetime-store-{count}" not in services
    assert len(store["volumeClaimTemplates"]) == 1
    assert set(store["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_settings_that_all_share_are_the_same_map(overlay: str) -> None:
    maps = of_kind(overlay, "ConfigMap")
    secrets = of_kind(overlay, "Secret")
    for pod in pods(overlay):
        for container in pod.containers:
            for variable in container.get("env", []):
                source = variable.get("valueFrom", {})
                if reference := source.get("configMapKeyRef"):
                    assert reference["key"] in maps[reference["name"]]["data"]
                reference = source.get("secretKeyRef", {})
                if reference and not reference.get("optional") and overlay not in LARGE:
                    assert reference["key"] in secrets[reference["name"]]["data"]


def test_no_secret_is_in_the_production_overlay() -> None:
    assert of_kind("production", "Secret") == {}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_namespace_refuses_pods_that_are_not_restricted(overlay: str) -> None:
    (namespace,) = of_kind(overlay, "Namespace").values()
    labels = namespace["metadata"]["labels"]
    assert {labels[f"pod-security.kubernetes.io/{mode}"] for mode in ("enforce", "audit", "warn")} == {"restricted"}


def test_gateway_is_scaled_by_one_autoscaler_and_by_nothing_else() -> None:
    (scaler,) = of_kind("production", "HorizontalPodAutoscaler").values()
    assert scaler["spec"]["scaleTargetRef"]["name"] == "duetime-gateway"
    assert "replicas" not in of_kind("production", "Deployment")["duetime-gateway"]["spec"]
    (scaled,) = of_kind("production", "ScaledObject").values()
    assert scaled["spec"]["scaleTargetRef"]["name"] == "duetime-scheduler"
