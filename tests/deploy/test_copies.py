"""Shards with copies in Kubernetes: pod n is a copy of shard n // 3, and one copy of a shard is stopped at a time."""

from typing import Any

import pytest
from duetime_core.node.settings import parse_stores
from duetime_store.settings import StoreSettings

from tests.deploy.rendering import Manifest, Pods, of_kind, pods, render

OVERLAY = "replicated"
COPIES = 3
SHARDS = 2
PODS = range(COPIES * SHARDS)
INDEX = "apps.kubernetes.io/pod-index"
NODE = "kubernetes.io/hostname"


@pytest.fixture
def store() -> Pods:
    (found,) = (one for one in pods(OVERLAY) if one.name == "duetime-store")
    return found


@pytest.fixture
def told(store: Pods) -> dict[str, Any]:
    """Variables of the container by name."""
    return {one["name"]: one for one in store.spec["containers"][0]["env"]}


def settings_of(told: dict[str, Any], pod: int, patch: pytest.MonkeyPatch) -> StoreSettings:
    """The settings of a pod, by its variables with plain values and its index."""
    assert told["DUETIME_STORE_ORDINAL"]["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.labels['{INDEX}']"
    values = {name: one["value"] for name, one in told.items() if name.startswith("DUETIME_STORE_") and "value" in one}
    # There are no certificates here.
    del values["DUETIME_STORE_METRICS_TLS"]
    for name, value in {**values, "DUETIME_STORE_ORDINAL": str(pod)}.items():
        patch.setenv(name, value)
    return StoreSettings.read([])


def test_each_pod_is_a_copy_of_its_shard_at_its_service(
    store: Pods, told: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.resource["spec"]["replicas"] == len(PODS)
    # One pod alone is never ready: it has no leader.
    assert store.resource["spec"]["podManagementPolicy"] == "Parallel"
    found = [settings_of(told, pod, monkeypatch) for pod in PODS]
    assert [(one.shard, one.copy_number) for one in found] == [(pod // COPIES, pod % COPIES + 1) for pod in PODS]
    assert len({one.copies_group for one in found}) == SHARDS
    assert all(one.copies_rejoin for one in found)
    assert len({(one.advertise_host, one.advertise_port) for one in found}) == 1
    services = of_kind(OVERLAY, "Service")
    for pod, one in zip(PODS, found, strict=True):
        host, _, port = one.members[one.copy_number].rpartition(":")
        service = services[host]["spec"]
        assert service["selector"][INDEX] == str(pod)
        assert {each["port"]: each["targetPort"] for each in service["ports"]} == {9801: "grpc", int(port): "copies"}
        assert service["publishNotReadyAddresses"] is True
    ports = {one["name"]: one["containerPort"] for one in store.spec["containers"][0]["ports"]}
    assert ports["copies"] == int(port)


def test_callers_know_all_copies_of_each_shard() -> None:
    (settings,) = (one for name, one in of_kind(OVERLAY, "ConfigMap").items() if name.startswith("duetime-settings"))
    expected = {
        shard: "|".join(f"duetime-store-{shard * COPIES + place}:9801" for place in range(COPIES))
        for shard in range(SHARDS)
    }
    assert parse_stores(settings["data"]["stores"]) == expected
    names = set(of_kind(OVERLAY, "Certificate")["duetime-store"]["spec"]["dnsNames"])
    assert {f"duetime-store-{pod}{domain}" for pod in PODS for domain in ("", ".duetime.svc")} <= names


def test_one_copy_of_a_shard_is_stopped_at_a_time(store: Pods) -> None:
    budgets = [
        one
        for one in of_kind(OVERLAY, "PodDisruptionBudget").values()
        if one["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] == "duetime-store"
    ]
    chosen: list[list[int]] = []
    for budget in budgets:
        # Kubernetes counts the pods of the whole StatefulSet for maxUnavailable, and none may be stopped.
        assert budget["spec"].keys() == {"minAvailable", "selector"}
        assert budget["spec"]["minAvailable"] == COPIES - 1
        (rule,) = budget["spec"]["selector"]["matchExpressions"]
        assert (rule["key"], rule["operator"]) == (INDEX, "In")
        chosen.append(sorted(map(int, rule["values"])))
    assert sorted(chosen) == [[shard * COPIES + place for place in range(COPIES)] for shard in range(SHARDS)]


def test_copies_are_on_different_nodes_and_in_different_zones(store: Pods) -> None:
    (term,) = store.spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term == {"topologyKey": NODE, "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "duetime-store"}}}
    (spread,) = store.spec["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["maxSkew"]) == ("topology.kubernetes.io/zone", 1)
    assert spread["labelSelector"] == term["labelSelector"]


def test_all_else_is_the_production_overlay() -> None:
    def rest(overlay: str) -> list[Manifest]:
        concerned = {"StatefulSet", "ConfigMap", "PodDisruptionBudget", "Service", "Certificate", "NetworkPolicy"}
        text = [one for one in render(overlay) if one["kind"] not in concerned]
        (name,) = (one for one in of_kind(overlay, "ConfigMap") if one.startswith("duetime-settings"))
        return [_renamed(one, name) for one in text]

    assert rest(OVERLAY) == rest("production")


def _renamed(value: Any, name: str) -> Any:
    """The resource with one name for the map of settings, whose hash differs."""
    if isinstance(value, dict):
        return {key: _renamed(one, name) for key, one in value.items()}
    if isinstance(value, list):
        return [_renamed(one, name) for one in value]
    return "duetime-settings" if value == name else value
