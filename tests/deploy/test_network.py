"""Connections permitted by the network policies, worked out from the rendered manifests as a cluster would."""

from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from duetime_webhooks.addresses import NetworkRules

from tests.deploy.rendering import LARGE, OVERLAYS, SECURE, Manifest, Pods, of_kind, pods

# (caller, called, port). All else within the namespace is closed. Probes come from the node: no policy is about them.
INNER = {
    ("gateway", "store", 9801),
    ("gateway", "retry", 9804),
    ("scheduler", "store", 9801),
    ("retry", "store", 9801),
    ("console", "gateway", 9800),
}
CERTIFIED_PORT = 9802
PORTS = {
    "gateway": (9800, CERTIFIED_PORT, 9810, 9820),
    "store": (9801, 9811, 9821),
    "scheduler": (9803, 9813, 9823),
    "retry": (9804, 9814, 9824),
    "console": (9880, 9815),
}
WORKER_PORTS = {"webhooks": (9805, 9816, 9825)}


def allowed(overlay: str) -> set[tuple[str, str, int]]:
    """Spark shows a certificate where there are any, and calls where it is asked for one."""
    more = {("webhooks", "gateway", 9800)} if overlay in LARGE else set()
    more |= {("store", "store", 9831)} if overlay == "replicated" else set()
    return {*INNER, *more, ("spark", "gateway", CERTIFIED_PORT if overlay in SECURE else 9800)}


def ports_of(overlay: str) -> dict[str, tuple[int, ...]]:
    found = PORTS | WORKER_PORTS if overlay in LARGE else PORTS
    return found | {"store": (*found["store"], 9831)} if overlay == "replicated" else found


def chosen(selector: Manifest, labels: dict[str, str]) -> bool:
    for rule in selector.get("matchExpressions", []):
        assert rule["operator"] == "In"
        if labels.get(rule["key"]) not in rule["values"]:
            return False
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def peer_matches(peer: Manifest, labels: dict[str, str]) -> bool:
    """A pod of this namespace; addresses are outside."""
    if "podSelector" not in peer:
        return False
    assert "namespaceSelector" not in peer
    return chosen(peer["podSelector"], labels)


def open_to(policy: Manifest, direction: str, other: dict[str, str] | None, port: int, names: dict[str, int]) -> bool:
    """Whether one policy lets one connection through. `other` None: from another namespace."""
    for rule in policy["spec"].get(direction, []):
        ports = [names.get(one.get("port", port), one.get("port", port)) for one in rule.get("ports", [])]
        peers: list[Any] = rule.get("from" if direction == "ingress" else "to", [])
        if port in ports and (not peers or (other is not None and any(peer_matches(peer, other) for peer in peers))):
            return True
    return False


class Network:
    """The policies of an overlay and the pods that they are about, by the last part of their names."""

    def __init__(self, overlay: str) -> None:
        self.policies = list(of_kind(overlay, "NetworkPolicy").values())
        self.pods: dict[str, Pods] = {one.name.split("-")[1]: one for one in pods(overlay)}

    def lets(self, direction: str, name: str, other: dict[str, str] | None, port: int) -> bool:
        pod = self.pods[name]
        names = {one["name"]: one["containerPort"] for one in pod.spec["containers"][0].get("ports", [])}
        about = [
            policy
            for policy in self.policies
            if chosen(policy["spec"]["podSelector"], pod.labels) and direction.title() in policy["spec"]["policyTypes"]
        ]
        assert about, f"{name} is open: no policy is about its {direction}"
        return any(open_to(policy, direction, other, port, names) for policy in about)

    def connects(self, caller: str, called: str, port: int) -> bool:
        out = self.lets("egress", caller, self.pods[called].labels, port)
        return out and self.lets("ingress", called, self.pods[caller].labels, port)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_reach_only_their_callees(overlay: str) -> None:
    network = Network(overlay)
    found = {
        (caller, called, port)
        for caller in network.pods
        for called, ports in ports_of(overlay).items()
        for port in ports
        if network.connects(caller, called, port)
    }
    assert found == allowed(overlay)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_called_and_callers_are_each_closed_by_themselves(overlay: str) -> None:
    """Each side's policy alone keeps that side closed."""
    network = Network(overlay)
    called_ports = ports_of(overlay).items()
    every = [(caller, called, port) for caller in network.pods for called, ports in called_ports for port in ports]
    let_in = {one for one in every if network.lets("ingress", one[1], network.pods[one[0]].labels, one[2])}
    let_out = {one for one in every if network.lets("egress", one[0], network.pods[one[1]].labels, one[2])}
    # Anybody may call the gateway.
    assert {one for one in let_in if one[1:] != ("gateway", 9800)} == {
        one for one in allowed(overlay) if one[1:] != ("gateway", 9800)
    }
    assert let_out == allowed(overlay)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_the_gateway_is_reached_from_outside(overlay: str) -> None:
    network = Network(overlay)
    served = ports_of(overlay).items()
    found = {port for name, ports in served for port in ports if network.lets("ingress", name, None, port)}
    assert found == {9800}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_metrics_are_read_from_namespaces_that_are_labelled_for_it(overlay: str) -> None:
    policy = of_kind(overlay, "NetworkPolicy")["metrics"]["spec"]
    network = Network(overlay)
    assert all(chosen(policy["podSelector"], network.pods[name].labels) for name in ports_of(overlay))
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"duetime.io/metrics": "scrape"}}}]
    assert rule["ports"] == [{"protocol": "TCP", "port": "metrics"}]


def test_keda_reaches_the_port_for_certificates_from_its_own_namespace() -> None:
    policy = of_kind("production", "NetworkPolicy")["gateway-keda"]["spec"]
    assert chosen(policy["podSelector"], Network("production").pods["gateway"].labels)
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "keda"}}}]
    assert rule["ports"] == [{"protocol": "TCP", "port": "certified"}]


@pytest.mark.parametrize("name", ["gateway", "scheduler", "retry", "migrate", "spark"])
def test_those_with_metadata_reach_their_database(name: str) -> None:
    network = Network("local")
    assert network.connects(name, "postgres", 5432)


def test_stores_and_strangers_do_not_reach_the_database() -> None:
    network = Network("local")
    assert not network.connects("store", "postgres", 5432)
    assert not network.lets("ingress", "postgres", None, 5432)


def test_production_has_no_unlimited_egress() -> None:
    database = of_kind("production", "NetworkPolicy")["database"]["spec"]
    (rule,) = database["egress"]
    assert rule["to"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 5432}]


def test_webhook_workers_alone_reach_the_internet_and_no_inner_network() -> None:
    peers = {
        name: [peer for rule in one["spec"].get("egress", []) for peer in rule.get("to", [])]
        for name, one in of_kind("production", "NetworkPolicy").items()
        if name != "database"
    }
    blocks = {name: [peer["ipBlock"] for peer in found if "ipBlock" in peer] for name, found in peers.items()}
    assert [name for name, found in blocks.items() if found] == ["webhooks"]

    def reaches(text: str) -> bool:
        address = ip_address(text)
        return any(
            address.version == ip_network(block["cidr"]).version
            and address in ip_network(block["cidr"])
            and not any(address in ip_network(closed) for closed in block["except"])
            for block in blocks["webhooks"]
        )

    assert all(map(reaches, ["8.8.8.8", "172.32.0.1", "2606:4700::1111"]))
    # Pods, Services, nodes, metadata services of clouds.
    inner = ["10.244.0.7", "172.20.1.1", "192.168.1.1", "100.64.3.2", "169.254.169.254", "168.63.129.16"]
    inner += ["fd00::1", "fe80::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::"]
    assert not any(map(reaches, inner))
    # The worker refuses each closed network by itself, so that the policy stops nothing that a webhook may reach.
    closed = [ip_network(one) for block in blocks["webhooks"] for one in block["except"]]
    assert all(NetworkRules().refusal(address) for one in closed for address in (one[0], one[-1]))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_console_is_reached_from_namespaces_that_are_labelled_for_it(overlay: str) -> None:
    policy = of_kind(overlay, "NetworkPolicy")["console"]["spec"]
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"duetime.io/console": "show"}}}]
    assert rule["ports"] == [{"protocol": "TCP", "port": "http"}]
