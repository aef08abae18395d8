"""Ports that `duetime up` keeps for its processes: they may listen there, and nobody gets one by chance."""

import socket
from collections.abc import Iterator

import pytest
from duetime.cli.preflight import HOST, CannotStart, Ports
from duetime_core.node.life import serve_metrics
from duetime_core.rpc.serving import Server
from prometheus_client import CollectorRegistry

# Ports that the kernel may choose for a socket; Linux 6.3 and later.
IP_LOCAL_PORT_RANGE = 51


@pytest.fixture
def ports() -> Iterator[Ports]:
    ports = Ports()
    yield ports
    ports.close()


def choosing(port: int) -> socket.socket:
    """A socket that gets this port when it asks for any."""
    chooser = socket.socket()
    try:
        chooser.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, (port << 16 | port).to_bytes(4, "little"))
    except OSError:
        chooser.close()
        pytest.skip("this kernel chooses from all ports")
    return chooser


@pytest.mark.parametrize("reuse", [0, 1])
def test_a_reserved_port_is_never_chosen_as_any(ports: Ports, reuse: int) -> None:
    with choosing(ports.take()) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        with pytest.raises(OSError, match="Address already in use"):
            other.bind((HOST, 0))


def test_no_connection_is_made_from_a_kept_port(ports: Ports) -> None:
    with socket.create_server((HOST, 0)) as server:
        port = ports.take()
        with choosing(port) as other, pytest.raises(OSError, match="Cannot assign requested address"):
            other.connect(server.getsockname())
        ports.close()
        with choosing(port) as other:
            other.connect(server.getsockname())
            assert other.getsockname()[1] == port, "without it this is what happens"


async def test_processes_listen_on_kept_ports_again_and_again(ports: Ports) -> None:
    port, metrics_port = ports.take(), ports.take()
    for _ in range(2):
        server = Server([], 1)
        await server.start(HOST, port)
        served, stop = serve_metrics(CollectorRegistry(), HOST, metrics_port)
        assert (server.port, served) == (port, metrics_port)
        with socket.create_connection((HOST, port), timeout=60), socket.create_connection((HOST, served), timeout=60):
            pass
        stop()
        await server.stop(0)


def test_a_port_in_use_is_not_taken(ports: Ports) -> None:
    with socket.create_server((HOST, 0)) as server, pytest.raises(CannotStart, match="address already in use"):
        ports.take(server.getsockname()[1])
