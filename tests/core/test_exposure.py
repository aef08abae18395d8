"""Permission to listen beyond this machine."""

import itertools
import json

import pytest
from duetime_core.access.exposure import NodeListener, refuse_exposed
from duetime_core.errors import StartupError
from duetime_core.together import TogetherSettings, node_class

from tests.core.test_node import Process

EVERYWHERE = "0.0.0.0"
STORES = ["--stores", "0=127.0.0.1:1", "--database-url", "sqlite:////nowhere/meta.db"]


@pytest.mark.parametrize(("tls", "authenticated", "insecure"), list(itertools.product([False, True], repeat=3)))
def test_only_tls_and_authentication_or_the_operator_s_word_open_a_port(
    tls: bool, authenticated: bool, insecure: bool
) -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        refuse_exposed(NodeListener(host, tls, authenticated), insecure)
    for host in (EVERYWHERE, "::", "10.0.0.1", "gateway.example.com"):
        if insecure or (tls and authenticated):
            refuse_exposed(NodeListener(host, tls, authenticated), insecure)
        else:
            with pytest.raises(StartupError):
                refuse_exposed(NodeListener(host, tls, authenticated), insecure)


@pytest.mark.parametrize(
    ("tls", "authenticated", "told", "not_told"),
    [
        (
            False,
            False,
            ["without TLS and authentication", "DUETIME_TLS_CERT_FILE", "DUETIME_GATEWAY_AUTH=required"],
            [],
        ),
        (True, False, ["without authentication", "DUETIME_GATEWAY_AUTH=required"], ["DUETIME_TLS"]),
        (False, True, ["without TLS", "DUETIME_TLS_CERT_FILE"], ["DUETIME_GATEWAY_AUTH"]),
    ],
)
def test_refusal_names_the_remedy_in_one_line(
    tls: bool, authenticated: bool, told: list[str], not_told: list[str]
) -> None:
    with pytest.raises(StartupError) as caught:
        refuse_exposed(NodeListener("10.0.0.1", tls, authenticated), insecure=False)
    text = caught.value.text
    assert [word for word in [*told, "10.0.0.1", "DUETIME_INSECURE=1", "docs/security.md"] if word not in text] == []
    assert [word for word in not_told if word in text] == []
    assert "\n" not in text


def test_metrics_beyond_loopback_need_tls_but_no_users() -> None:
    for authenticated in (False, True):
        refuse_exposed(NodeListener("10.0.0.1", True, authenticated, metrics=True), insecure=False)
        refuse_exposed(NodeListener("127.0.0.1", False, authenticated, metrics=True), insecure=False)
        with pytest.raises(StartupError, match=r"the metrics port at 10\.0\.0\.1 is reachable") as caught:
            refuse_exposed(NodeListener("10.0.0.1", False, authenticated, metrics=True), insecure=False)
        assert "METRICS_TLS" in caught.value.text
        assert "METRICS_HOST=127.0.0.1" in caught.value.text


def test_metrics_are_judged_where_they_listen() -> None:
    read = node_class("store").settings_class.read
    beyond = ["--data-dir", "/nowhere", "--host", EVERYWHERE]
    assert read(beyond).metrics_listener == [NodeListener(EVERYWHERE, tls=False, authenticated=False, metrics=True)]
    (there,) = read([*beyond, "--metrics-host", "127.0.0.1"]).metrics_listener
    assert not there.is_exposed
    assert read([*beyond, "--metrics-port", "-1"]).metrics_listener == []
    settings = node_class("gateway").settings_class.read([*STORES, "--host", EVERYWHERE, "--published-host", "::1"])
    assert [one.host for one in (*settings.listeners, *settings.metrics_listener)] == ["::1", "::1"]


def test_process_beyond_loopback_starts_only_on_request() -> None:
    code, out, told = Process("--host", EVERYWHERE).end()
    assert (code, out) == (1, "")
    assert told.startswith("duetime sample: 0.0.0.0 is reachable from other machines")
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("insecure", ["0", *(pytest.param(no, marks=pytest.mark.proof) for no in ("", "false"))])
def test_a_no_is_no_word_of_the_operator(insecure: str) -> None:
    process = Process("--host", EVERYWHERE, variables={"DUETIME_INSECURE": insecure})
    assert process.end()[0] == 1


def test_insecure_process_warns_in_one_line() -> None:
    process = Process("--host", EVERYWHERE, "--log-format", "json", variables={"DUETIME_INSECURE": "1"})
    process.ready()
    process.popen.terminate()
    code, _, told = process.end()
    assert code == 0
    (warning,) = [line for line in map(json.loads, told.splitlines()) if line["level"] == "warning"]
    assert warning["event"] == "listening beyond this machine without TLS and authentication"
    assert (warning["hosts"], warning["tls"], warning["authenticated"]) == ([EVERYWHERE], False, False)


def test_process_on_loopback_warns_of_nothing() -> None:
    process = Process("--log-format", "json")
    process.ready()
    process.popen.terminate()
    code, _, told = process.end()
    assert code == 0
    assert "listening beyond" not in told


@pytest.mark.parametrize("name", ["store", "scheduler", "retry", "gateway"])
def test_callers_of_inner_ports_are_known_by_the_secret_and_clients_are_not(name: str) -> None:
    arguments = ["--data-dir", "/nowhere"] if name == "store" else STORES
    secret = ["--cluster-secret", "a-secret-of-the-cluster"]
    for given in ([], secret):
        settings = node_class(name).settings_class.read([*arguments, *given])
        assert settings.listeners == [
            NodeListener("127.0.0.1", tls=False, authenticated=bool(given) and name != "gateway")
        ]


def test_nodes_of_one_process_are_judged_where_they_listen() -> None:
    nodes = {
        "store": node_class("store").settings_class.read(["--data-dir", "/nowhere", "--host", EVERYWHERE]),
        "gateway": node_class("gateway").settings_class.read([*STORES, "--host", "10.0.0.1"]),
    }
    assert [one.host for one in TogetherSettings(nodes, inner_ports=False).listeners] == ["10.0.0.1"]
    assert [one.host for one in TogetherSettings(nodes, inner_ports=True).listeners] == [EVERYWHERE, "10.0.0.1"]
